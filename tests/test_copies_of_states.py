"""A copy of a state, in memory or by pickle, has its value and kind, and is another state."""

from __future__ import annotations

import copy
import functools
import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from statetransform import Param, RandomState, State, StateStructureError, transform, update


class Tagged(State):
    def __init__(self, size: int, unit: str = "mV") -> None:
        super().__init__(jnp.zeros(size), name="tagged", unit=unit)
        self.unit = unit


def equal(one: Any, other: Any) -> bool:
    return jax.tree.structure(one) == jax.tree.structure(other) and jax.tree.all(
        jax.tree.map(np.array_equal, one, other)
    )


@pytest.mark.parametrize("clone", [copy.copy, copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))])
@pytest.mark.parametrize(
    "make",
    [
        lambda: State({"a": jnp.arange(3), "b": np.ones(2)}, name="u", unit="mV"),
        lambda: Param(1.5),
        lambda: State(("a", 1), static=True),
        lambda: RandomState(jax.random.PRNGKey(3)),
        lambda: Tagged(2),
    ],
    ids=["tree", "scalar", "static", "key", "subclass"],
)
def test_a_copy_is_independent_and_has_the_same_value(clone: Any, make: Any) -> None:
    s, same = make(), make()
    c = clone(s)
    assert type(c) is type(s)
    assert c is not s
    assert (c.name, c.static, dict(c.metadata)) == (s.name, s.static, dict(s.metadata))
    assert getattr(c, "unit", None) == getattr(s, "unit", None)
    assert equal(c.value, same.value)
    c.value = ("other",) if s.static else jax.tree.map(lambda x: x + 1, c.value)
    assert equal(s.value, same.value)


def test_a_copied_container_is_not_shared() -> None:
    s = State({"a": np.zeros(2)})
    for clone in (copy.copy, copy.deepcopy):
        c = clone(s)
        c.value["a"][0] = 5.0
        c.value["b"] = 1.0
        assert list(s.value) == ["a"]
        assert s.value["a"].tolist() == [0.0, 0.0]


def test_deepcopy_and_pickle_keep_a_shared_state_shared() -> None:
    s = State(jnp.float32(1))
    model = {"encoder": s, "decoder": s}
    for clone in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert clone["encoder"] is clone["decoder"] is not s


@pytest.mark.parametrize(
    "make, advance",
    [
        (lambda: State({"a": jnp.arange(3.0)}), lambda x: x + 1),
        (lambda: RandomState(3), lambda x: jax.random.fold_in(x, 1)),
    ],
    ids=["arrays", "key"],
)
@pytest.mark.parametrize("clone", [copy.copy, copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))])
def test_a_copy_keeps_its_value_when_the_original_is_donated(make: Any, advance: Any, clone: Any) -> None:
    s, same = make(), make()
    c = clone(s)  # not looked at before the call: JAX donates nothing that NumPy sees

    @functools.partial(transform.jit, donate_states=True)
    def step() -> None:
        s.value = jax.tree.map(advance, s.value)

    step()
    assert jax.tree.all(jax.tree.map(lambda x, y: (x == y).all(), c.value, same.value))


def test_a_typed_key_can_be_copied_and_pickled() -> None:
    rng = RandomState(7)
    for clone in (copy.copy(rng), copy.deepcopy(rng)):
        assert jax.random.bits(clone.split()) == jax.random.bits(copy.copy(rng).split())


def test_a_state_copied_inside_a_transform_holds_its_value_afterwards() -> None:
    s = State(jnp.float32(1), name="u")

    @transform.jit
    def f(x: Any) -> Any:
        s.value = s.value * x
        return copy.copy(s)

    c = f(3.0)
    assert (s.value, c.value, c.name) == (3.0, 3.0, "u")
    assert c is not s


def test_a_copied_transform_is_about_the_copied_states() -> None:
    class Model:
        def __init__(self) -> None:
            self.u = State(jnp.arange(2.0))
            self.slope = transform.grad(self.energy, states=self.u)
            self.lanes = transform.vmap(self.one, state_axes={self.u: 0})

        def energy(self) -> Any:
            return (self.u.value**2).sum()

        def one(self) -> Any:
            return self.u.value

    model = Model()
    clone = copy.deepcopy(model)
    clone.u.value = jnp.full(2, 3.0)
    assert clone.slope().tolist() == [6.0, 6.0]
    assert model.slope().tolist() == [0.0, 2.0]
    assert clone.lanes().tolist() == [3.0, 3.0]


def test_a_copy_was_created_where_the_user_copied() -> None:
    s = copy.deepcopy(State(jnp.zeros(2), name="s"))
    with pytest.raises(StateStructureError, match=r"'s' \(created at test_copies_of_states\.py"):
        update(s, jnp.zeros(3))


def test_a_copied_transform_of_a_plain_function_is_about_the_same_states() -> None:
    w = State(3.0)
    holder = {"w": w, "slope": transform.grad(lambda: w.value**2, states=w)}
    assert holder["slope"]() == copy.deepcopy(holder)["slope"]() == 6.0
