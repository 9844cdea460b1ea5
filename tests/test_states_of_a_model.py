"""Many states at once: `states` finds those of a model by path, `values` and `update` read and write them."""

from __future__ import annotations

import collections
import dataclasses
import types
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import statetransform as st
from statetransform import Param, RandomState, State, inspect, transform


@dataclasses.dataclass
class Node:
    w: State
    children: list[Any] = dataclasses.field(default_factory=list)


class Slots:
    __slots__ = ("b", "w")

    def __init__(self, w: State) -> None:
        self.w = w


class Base:
    def __init__(self) -> None:
        self.w = Param(1.0)
        self.layers = [{"w": Param(2.0)}, {"w": State(3.0), "n": 4}]
        self.again = self.layers[0]["w"]
        self.me = self


Pair = collections.namedtuple("Pair", ["left", "right"])


def test_states_are_found_by_path_each_once_in_the_order_of_definition() -> None:
    model = Base()
    found = st.states(model)
    assert list(found) == ["w", "again", "layers.1.w"]
    assert len({id(s) for s in found.values()}) == len(found) == 3
    assert set(st.states(model, Param).values()) == {model.w, model.again}
    assert list(st.states(model, lambda s: s.value == 3.0)) == ["layers.1.w"]
    assert len(st.states(model, Param, lambda s: s.value == 3.0)) == 3
    assert st.states(model, RandomState) == {}


class Private:
    __slots__ = ("__w",)

    def __init__(self, w: State) -> None:
        self.__w = w


def nested(s: State) -> Any:
    tree: Any = s
    for _ in range(5000):
        tree = [tree]
    return tree


@pytest.mark.parametrize(
    ("make", "path"),
    [
        (lambda s: {"a": [s]}, "a.0"),
        (lambda s: {1: {"x": s}}, "1.x"),
        (lambda s: Node(s), "w"),
        (lambda s: types.SimpleNamespace(s=s), "s"),
        (lambda s: collections.deque([1, s]), "1"),
        (lambda s: collections.OrderedDict(a=s), "a"),
        (lambda s: types.MappingProxyType({"a": s}), "a"),
        (Slots, "w"),
        (Private, "_Private__w"),
        *[
            (make, None)
            for make in (lambda s: Pair(1, s), lambda s: lambda: s.value, lambda s: s, lambda s: {s}, nested)
        ],
    ],
)
def test_states_are_found_wherever_they_are(make: Any, path: str | None) -> None:
    s = State(1.0)
    found = st.states(make(s))
    assert list(found.values()) == [s]
    assert path in (None, *found)


def test_what_holds_no_state_has_none() -> None:
    assert st.states([1, None, "text", jnp.ones(3)]) == {}


class Shared:
    count = State(3.0, name="shared")


def test_a_state_of_a_class_is_found_unless_the_instance_hides_it() -> None:
    plain, own = Shared(), Shared()
    own.count = State(5.0)
    assert st.states(plain) == {"count": Shared.count}
    assert st.states(own) == {"count": own.count}
    counts = transform.jit(lambda model: st.values(model)["count"] * 1)
    assert (counts(plain), counts(plain), counts(own)) == (3.0, 3.0, 5.0)
    assert len(inspect.explain_retrace(counts)) == 2  # one without an attribute, and one with


@pytest.mark.parametrize("make", [lambda a, b: {1: a, "1": b}, lambda a, b: {"a": {"b": a}, "a.b": b}])
def test_two_states_of_one_path_are_refused(make: Any) -> None:
    with pytest.raises(ValueError, match=r"State 'x' \(created at .*\) and State 'y' .* have the same path"):
        st.states(make(State(1.0, name="x"), State(2.0, name="y")))


def test_a_weak_registry_of_states_is_followed_and_traced_once() -> None:
    a, b = State(jnp.float32(1), name="a"), State(jnp.float32(2), name="b")
    registry = weakref.WeakValueDictionary({"a": a, "b": b})
    assert st.states(registry) == {"a": a, "b": b}

    @transform.jit
    def total(x: Any) -> Any:
        registry["a"].value += x
        return sum(state.value for state in registry.values())

    assert (total(1.0), total(1.0)) == (4.0, 5.0)
    registry["a"] = other = State(jnp.float32(10), name="a")
    assert total(1.0) == 13.0
    assert len(inspect.explain_retrace(total)) == 1
    registry["c"] = one_more = State(jnp.float32(5), name="c")
    assert total(1.0) == 19.0
    assert (other.value, one_more.value, a.value) == (12.0, 5.0, 3.0)


def test_values_and_update_read_and_write_a_pytree_of_states() -> None:
    model = Base()
    states = st.states(model)
    values = st.values(states)
    assert values == {key: state.value for key, state in states.items()}
    st.update(states, {key: value * 10 for key, value in values.items()})
    assert (model.w.value, model.again.value) == (10.0, 20.0)
    st.update((model.w, [model.again]), (1.0, [2.0]))
    assert st.values((model.w, [model.again])) == (1.0, [2.0])
    assert st.values(model.w) == 1.0


@pytest.mark.parametrize(
    "wrong",
    [
        {"a": jnp.ones(2)},
        {"a": jnp.ones(2), "c": 1.0},
        {"a": jnp.ones(2), "b": {"x": 2}},
        {"a": jnp.ones(3), "b": {"x": 1.0}},
    ],
)
def test_update_writes_nothing_when_any_structure_is_wrong(wrong: Any) -> None:
    states = {"a": State(jnp.zeros(2), name="a"), "b": State({"x": 0.0}, name="b")}
    with pytest.raises(st.StateStructureError):
        st.update(states, wrong)
    assert states["a"].value.tolist() == [0.0, 0.0]
    assert states["b"].value == {"x": 0.0}


@pytest.mark.parametrize("model", [dict, list], ids=["dict", "list"])
def test_update_names_what_is_missing_and_what_is_too_much_and_nothing_else(model: Any) -> None:
    states = {f"layers.{i}.w": State(0.0) for i in range(300)}
    values = {path: {"not": "there"} if path == "layers.8.w" else 1.0 for path in (*states, "layers.300.w")}
    del values["layers.7.w"]
    states, values = ([found] if model is list else found for found in (states, values))
    with pytest.raises(st.StateStructureError) as caught:
        st.update(states, values)
    said = str(caught.value).splitlines()
    start = "0." if model is list else ""
    assert said[1:3] == [f"  missing    : '{start}layers.7.w'", f"  unexpected : '{start}layers.300.w'"]
    assert "st.update({path: states[path] for path in values}, values)" in said[3] and len(said) == 4


def test_update_says_of_another_container_that_it_is_one() -> None:
    with pytest.raises(st.StateStructureError, match=r"Nothing was written.\n.*tuple"):
        st.update((State(0.0), State(1.0)), [2.0, 3.0])


def test_update_writes_nothing_when_a_static_value_is_not_hashable() -> None:
    a, mode = State(0.0, name="a"), State("x", static=True)
    with pytest.raises(TypeError, match="hashable"):
        st.update([a, mode], [1.0, {"not": "hashable"}])
    with pytest.raises(TypeError, match=r"State 'a' .* value of type str"):
        st.update([mode, a], ["test", "1.0"])
    assert a.value == 0.0


def test_values_is_a_mapping_and_a_pytree() -> None:
    a, b = State(1.0, name="a"), State(2.0, name="b")
    values = st.Values({b: 20.0, a: 10.0})
    assert dict(values) == {a: 10.0, b: 20.0}
    assert (len(values), a in values, State(1.0) in values) == (2, True, False)
    doubled = jax.tree.map(lambda x: 2 * x, values)
    assert isinstance(doubled, st.Values)
    assert (doubled[a], doubled[b]) == (20.0, 40.0)
    assert jax.tree.structure(values) == jax.tree.structure(st.Values({a: 0.0, b: 0.0}))
    assert jax.jit(lambda v: v[a] + v[b])(values) == 30.0
    with pytest.raises(KeyError):
        values[State(0.0)]


def test_values_and_update_take_a_whole_model() -> None:
    class Model:
        def __init__(self) -> None:
            self.layers = [State(jnp.ones(2)), State(jnp.zeros(3))]

    model = Model()
    start = st.values(model)
    assert {path: value.shape for path, value in start.items()} == {"layers.0": (2,), "layers.1": (3,)}
    model.layers[0].value = jnp.full(2, 7.0)
    st.update(model, start)
    assert model.layers[0].value.tolist() == [1.0, 1.0]
    with pytest.raises(TypeError, match=r"st\.states\(model\)"):
        st.values(object())


def test_a_predicate_may_look_at_values_under_every_transform() -> None:
    w, b = State(jnp.arange(3.0), name="w"), State(2.0, name="b")
    is_vector = lambda state: jnp.ndim(state.value) == 1
    f = lambda x: x * w.value * b.value
    mapped = transform.vmap(f, state_axes={is_vector: 0})
    kept = transform.checkpoint(f, states=is_vector)
    placed = transform.jit(f, state_shardings={is_vector: jax.sharding.SingleDeviceSharding(jax.devices()[0])})
    for fun, x in ((mapped, jnp.ones(3)), (kept, 1.0), (placed, 1.0), (transform.jit(mapped), jnp.ones(3))):
        assert jnp.array_equal(fun(x), 2.0 * w.value)


@pytest.mark.parametrize("how", ["states", "values", "update"])
def test_a_trace_that_asks_for_the_states_of_a_model_sees_those_that_there_are_now(how: str) -> None:
    class Model:
        def __init__(self) -> None:
            self.inner = types.SimpleNamespace(u=State(jnp.ones(2), name="u"))

        @transform.jit
        def total(self, x: Any) -> Any:
            if how == "update":
                st.update(self, jax.tree.map(lambda v: v * x, st.values(self)))
            found = st.values(self) if how == "values" else {n: s.value for n, s in st.states(self).items()}
            return sum(value.sum() for value in found.values())

    model, other = Model(), Model()
    x = 2.0 if how == "update" else 1.0
    assert model.total(x) == other.total(x) == 2 * x  # without a `RetraceWarning`
    assert len(inspect.explain_retrace(Model.total)) == 1
    model.inner.v = State(jnp.ones(3))
    model.inner.u = State(jnp.ones(1))
    assert model.total(x) == 4 * x
    assert other.inner.u.value.tolist() == [x, x]
