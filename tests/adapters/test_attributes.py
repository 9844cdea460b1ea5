"""Plain attributes and registered classes: what no other cell has; the guarantees are in `test_guarantees.py`."""

from __future__ import annotations

import copy
import dataclasses
import gc
import pickle
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import statetransform as st
from statetransform import transform

from .cells import KINDS, ByProperty, Frozen, Plain, Registered, Slotted, handle, make

N = jnp.array([0.3, 0.5, 0.7])
X = jnp.array(1.5)


def pure(n: Any, x: Any) -> Any:
    n = n * x
    return jnp.sum(jnp.sin(n)), n


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__)
def obj(request: Any) -> Any:
    return make(request.param, N)


def test_another_object_of_the_class_keeps_its_plain_attribute() -> None:
    cell, plain = make(Plain, N), Plain(2.0)
    step = transform.jit(lambda x: cell.step(x) + plain.n)
    np.testing.assert_allclose(step(X), pure(N, X)[0] + 2, rtol=1e-6)
    plain.n = 3.0
    np.testing.assert_allclose(step(X), pure(N * X, X)[0] + 3, rtol=1e-6)


def test_an_attribute_that_becomes_a_cell_after_the_first_call_is_lifted() -> None:
    obj = Plain(2.0)
    read = transform.jit(lambda: obj.n * 1.0)
    assert read() == 2
    st.attr(obj, "n")
    for value in (3.0, 4.0):
        obj.n = value
        assert read() == value


def test_arrays_in_slots_are_freed_with_the_object() -> None:
    obj = make(Slotted, N)
    transform.jit(lambda o, x: o.step(x))(obj, X)
    gone = weakref.ref(handle(obj))
    del obj
    assert gone() is None


def test_the_handle_says_that_its_object_is_gone() -> None:
    state = st.attr(Plain(1.0), "n")
    gc.collect()
    with pytest.raises(st.StateTraceError, match="no longer exists"):
        state.value
    assert "no value" in repr(state)


def test_copies_and_pickles_see_values(obj: Any) -> None:
    for other in (copy.copy(obj), copy.deepcopy(obj), pickle.loads(pickle.dumps(obj))):
        np.testing.assert_allclose(other.n, N)
        if type(obj) is not Frozen:
            other.n = 2 * N
            np.testing.assert_allclose(obj.n, N)


def test_states_of_an_object_graph_are_named_by_path() -> None:
    model = {"a": make(Plain, N), "b": [make(Registered, N), st.State(1.0)]}
    assert list(st.states(model)) == ["a.n", "b.0", "b.1"]
    assert list(st.states(model, Registered)) == ["b.0"]
    assert st.states(model)["b.0"].name == "b.0"
    st.update(st.states(model, Registered), {"b.0": 2 * N})
    np.testing.assert_allclose(model["b"][0].n, 2 * N)
    np.testing.assert_allclose(st.values(model["b"][0]), 2 * N)


def test_registered_cells_are_taken_where_states_are() -> None:
    cell = make(Registered, N)
    expected = jax.grad(lambda n: pure(n, X)[0])(N)
    for states in (cell, [cell], {"n": cell}):
        found = transform.grad(lambda: cell.step(X), states=states)()
        np.testing.assert_allclose(jax.tree.leaves(found)[0], expected, rtol=1e-6)
        cell.n = N
    for key in (Registered, cell):
        transform.vmap(lambda x: cell.step(x), state_axes={key: 0})(N)
        np.testing.assert_allclose(cell.n, N * N, rtol=1e-6)
        cell.n = N


@jax.tree_util.register_pytree_node_class
class Node(Plain):
    def tree_flatten(self) -> Any:
        return (self.n,), None

    @classmethod
    def tree_unflatten(cls, aux: Any, children: Any) -> Any:
        return cls(*children)


def test_a_pytree_with_a_cell_goes_by_reference() -> None:
    node = Node(N)
    st.attr(node, "n")
    step = transform.jit(lambda o, x: o.step(x))
    for i in range(3):
        np.testing.assert_allclose(step(node, X), pure(N * X**i, X)[0], rtol=1e-6)
    np.testing.assert_allclose(node.n, N * X**3, rtol=1e-6)
    assert transform.jit(lambda o: o)(node) is node


def test_other_objects_of_a_class_of_pytrees_stay_pytrees() -> None:
    @jax.tree_util.register_dataclass
    @dataclasses.dataclass
    class Layer:
        w: Any
        b: Any

    ones = jnp.ones(3)
    one, other = Layer(ones, ones), Layer(ones, ones)
    w = st.attr(one, "w")
    loss = lambda d: (d["layer"].w ** 2).sum() + d["x"].sum()
    same = lambda ours, theirs: jax.tree.map(np.testing.assert_array_equal, ours, theirs)
    same(transform.grad(loss)({"layer": other, "x": ones}), jax.grad(loss)({"layer": other, "x": ones}))
    same(transform.jit(lambda layer: Layer(layer.w + 1, layer.b))(other), Layer(ones + 1, ones))
    same(transform.vmap(lambda layer, x: layer.w * x)(other, ones), ones)
    same(transform.scan(lambda c, x: (Layer(c.w + x.w, c.b), None), Layer(0.0, 0.0), other)[0], Layer(3.0, 0.0))
    same(transform.grad(lambda layer: (layer.w**2).sum(), argnums=None, states=w)(one), 2 * ones)


def test_an_attribute_that_one_instance_lacks_is_part_of_the_structure() -> None:
    class Plain:
        pass

    has, lacks, runs = Plain(), Plain(), []
    has.w = jnp.float32(1)
    st.attr(has, "w")

    @transform.jit
    def look(obj):
        runs.append(1)
        return jnp.float32(hasattr(obj, "w"))

    assert [float(look(obj)) for obj in (lacks, lacks, Plain(), has, has, lacks)] == [0, 0, 0, 1, 1, 0]
    assert len(runs) == 2


def test_the_class_may_read_and_write_through_methods() -> None:
    class Cell(ByProperty):
        def get(self) -> Any:
            return self.n

        def assign(self, value: Any) -> None:
            self.n = value

    st.register_state_type(Cell, attribute="n")
    cell = Cell(N)
    transform.jit(lambda x: cell.assign(cell.get() * x))(X)
    np.testing.assert_allclose(cell.get(), N * X, rtol=1e-6)
    np.testing.assert_allclose(transform.grad(lambda: cell.get().sum(), states=cell)(), jnp.ones(3))
