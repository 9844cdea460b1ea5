"""`State`: one mutable cell that holds a pytree of arrays; finding and reading many of them."""

from __future__ import annotations

import collections
import copy
import dataclasses
import pickle
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import statetransform as st
from statetransform import Param, RandomState, State, transform


class Tagged(State):
    """A user's kind, with a signature and attributes of its own."""

    def __init__(self, size: int, unit: str = "mV") -> None:
        super().__init__(jnp.zeros(size), name="tagged", unit=unit)
        self.unit = unit


def test_value_name_metadata_and_static_are_what_was_given() -> None:
    s = State(jnp.arange(3), name="u", unit="mV", axes=("x",))
    assert (s.name, s.static, dict(s.metadata)) == ("u", False, {"unit": "mV", "axes": ("x",)})
    assert s.value.tolist() == [0, 1, 2]
    assert (State(1).name, dict(State(1).metadata)) == (None, {})
    with pytest.raises(TypeError):
        s.metadata["unit"] = "V"  # type: ignore[index]
    with pytest.raises(AttributeError):
        s.name = "v"  # type: ignore[misc]


def test_an_index_reads_and_writes_like_a_jax_reference() -> None:
    s = State(jnp.arange(6.0).reshape(2, 3))
    assert s[...] is s.value
    assert s[1, 2] == 5.0
    assert s[:, 0].tolist() == [0.0, 3.0]
    s[0] = 9.0
    assert s.value.tolist() == [[9.0, 9.0, 9.0], [3.0, 4.0, 5.0]]
    s[s.value > 8] = 0.0
    s[1, jnp.array([0, 2])] = jnp.array([7.0, 8.0])
    s[..., 1] += 1.0
    assert s.value.tolist() == [[0.0, 1.0, 0.0], [7.0, 5.0, 8.0]]
    s[...] = jnp.ones((2, 3))
    assert s.value.tolist() == [[1.0] * 3] * 2


def test_a_whole_write_takes_what_a_reference_takes() -> None:
    s = State(jnp.zeros(3, jnp.int16))
    s[...] = 5
    assert s.value.tolist() == [5, 5, 5]
    assert s.value.dtype == jnp.int16
    tree = State({"a": jnp.ones(2)})
    tree[...] = {"a": jnp.zeros(2)}
    assert tree["a"].tolist() == [0.0, 0.0]
    with pytest.raises(TypeError, match="only an array can be written by index"):
        tree["a"] = jnp.ones(2)


def test_a_state_iterates_over_its_value() -> None:
    u = State(jnp.arange(3.0))
    assert [float(x) for x in u] == [0.0, 1.0, 2.0] and 2.0 in u
    assert float(transform.jit(lambda: sum(x * i for i, x in enumerate(u)))()) == 5.0
    assert list(State({"a": 1.0, "b": 2.0})) == ["a", "b"]
    with pytest.raises(TypeError):
        iter(State(1.0))


def test_an_index_write_does_not_change_a_numpy_array_of_the_user() -> None:
    array = np.zeros(3, np.float32)
    s = State(array)
    s[0] = 1.0
    assert s.value.tolist() == [1.0, 0.0, 0.0]
    assert array.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("wrap", [transform.jit, transform.checkpoint, transform.grad, transform.named_call])
def test_indexed_writes_work_under_transforms(wrap: Any) -> None:
    s = State(jnp.zeros(3))

    def f(x: Any) -> Any:
        s[1] = x
        s[2] += s[1] * 2.0
        return s[...].sum()

    wrap(f)(3.0), wrap(f)(4.0)
    assert s.value.tolist() == [0.0, 4.0, 14.0]


def test_repr_shows_class_name_and_types_but_no_array() -> None:
    assert repr(State(jnp.zeros((1000, 1000)), name="u")) == "State(float32[1000,1000], name='u')"
    text = repr(Param({"w": jnp.ones(3), "b": (np.int8(1), None)}, unit="mV"))
    assert text.startswith("Param({'b': (int8[], None), 'w': float32[3]}")
    assert "unit='mV'" in text
    assert repr(State(("train", 3), static=True)) == "State(('train', 3), static=True)"
    assert "key<fry>[]" in repr(RandomState(0))
    assert len(repr(State(jnp.ones(4), table=np.arange(10**6)))) < 200


def test_repr_inside_a_transform_shows_the_type_that_is_seen_there() -> None:
    s, seen = State(jnp.zeros(3), name="u"), []

    def f(x: Any) -> Any:
        s.value = jnp.ones((2, 2)) * x
        seen.append(repr(s))
        return x

    transform.jit(f)(1.0)
    transform.vmap(lambda x: (seen.append(repr(s)), x)[1])(jnp.ones(3))
    assert seen == ["State(float32[2,2], name='u')"] * 2


def test_a_state_is_no_pytree_node_and_is_compared_by_identity() -> None:
    a, b = State(1.0), State(1.0)
    assert jax.tree.leaves({"x": [a, b]}) == [a, b]
    assert a != b
    assert len({a, b, a}) == 2


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
    s = make()
    c = clone(s)
    assert type(c) is type(s)
    assert c is not s
    assert (c.name, c.static, dict(c.metadata)) == (s.name, s.static, dict(s.metadata))
    assert getattr(c, "unit", None) == getattr(s, "unit", None)
    assert jax.tree.structure(c.value) == jax.tree.structure(s.value)
    assert (
        jax.tree.all(jax.tree.map(lambda x, y: np.array_equal(x, y), c.value, s.value))
        if not s.static
        else c.value == s.value
    )
    before = jax.tree.map(np.asarray, s.value) if not s.static else s.value
    c.value = ("other",) if s.static else jax.tree.map(lambda x: x + 1, c.value)
    assert s.value == before if s.static else jax.tree.all(jax.tree.map(np.array_equal, s.value, before))


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


@pytest.mark.parametrize("seed", [0, np.int32(0), jnp.int32(0), jax.random.key(0), jax.random.PRNGKey(0)], ids=str)
def test_a_random_state_takes_a_seed_or_a_key_of_either_style(seed: Any) -> None:
    rng = RandomState(seed, name="rng")
    first = rng.key
    keys = [rng.split(), rng.split(), *rng.split(2), *rng.split((2, 2)).reshape(4, *first.shape)]
    assert len({tuple(np.ravel(jax.random.bits(key, (4,))).tolist()) for key in keys}) == 8
    assert not np.array_equal(jax.random.bits(rng.key), jax.random.bits(first))
    assert rng.key.dtype == first.dtype
    again = RandomState(seed)
    assert jax.random.bits(again.split()) == jax.random.bits(keys[0])
    assert rng.split(3).shape == (3, *first.shape)


@dataclasses.dataclass
class Node:
    w: State
    children: list[Any] = dataclasses.field(default_factory=list)


class Slots:
    __slots__ = ("b", "w")

    def __init__(self) -> None:
        self.w = Param(1.0)


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
    assert list(found) == ["w", "layers.0.w", "layers.1.w"] or set(found) == {
        "w",
        "again",
        "layers.1.w",
    }
    assert len({id(s) for s in found.values()}) == len(found) == 3
    assert set(st.states(model, Param).values()) == {model.w, model.again}
    assert list(st.states(model, lambda s: s.value == 3.0)) == ["layers.1.w"]
    assert len(st.states(model, Param, lambda s: s.value == 3.0)) == 3
    assert st.states(model, RandomState) == {}


@pytest.mark.parametrize(
    ("make", "path"),
    [
        (lambda s: {"a": [s]}, "a.0"),
        (lambda s: Node(s), "w"),
        (lambda s: Pair(1, s), "right"),
        (lambda s: types.SimpleNamespace(s=s), "s"),
        (lambda s: collections.deque([1, s]), "1"),
        (lambda s: collections.OrderedDict(a=s), "a"),
        (lambda s: types.MappingProxyType({"a": s}), "a"),
        (lambda s: [s], "0"),
    ],
    ids=[
        "dict",
        "dataclass",
        "namedtuple",
        "namespace",
        "deque",
        "ordered dict",
        "mapping proxy",
        "list",
    ],
)
def test_states_are_found_in_every_common_container(make: Any, path: str) -> None:
    s = State(1.0)
    assert list(st.states(make(s)).values()) == [s]
    if path != "right":
        assert list(st.states(make(s))) == [path]


def test_states_are_found_in_slots_closures_methods_and_a_state_itself() -> None:
    slots, s = Slots(), State(1.0)
    assert list(st.states(slots)) == ["w"]
    assert list(st.states(lambda: s.value).values()) == [s]
    assert list(st.states(s).values()) == [s]
    assert list(st.states({s}).values()) == [s]
    assert list(st.states({1: {"x": s}})) == ["1.x"]
    assert st.states([1, None, "text", jnp.ones(3)]) == {}


def test_a_very_deep_graph_is_walked() -> None:
    s = State(1.0)
    tree: Any = s
    for _ in range(5000):
        tree = [tree]
    assert list(st.states(tree).values()) == [s]


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


def test_update_writes_nothing_when_a_static_value_is_not_hashable() -> None:
    a, mode = State(0.0), State("x", static=True)
    with pytest.raises(TypeError, match="hashable"):
        st.update([a, mode], [1.0, {"not": "hashable"}])
    assert a.value == 0.0


def test_values_and_update_work_inside_transforms() -> None:
    states = {"a": State(jnp.float32(1)), "b": State(jnp.ones(2))}

    @transform.jit
    def f(lr: Any) -> Any:
        st.update(states, jax.tree.map(lambda v: v - lr, st.values(states)))
        return sum(v.sum() for v in st.values(states).values())

    assert f(0.5) == 1.5
    assert f(0.5) == 0.0
    assert states["b"].value.tolist() == [0.0, 0.0]


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


@pytest.mark.parametrize(
    "value",
    [
        None,
        (),
        {},
        [],
        {"n": None},
        jnp.zeros((0, 3)),
        True,
        3,
        2.5,
        1j,
        np.bool_(True),
        jnp.bfloat16(2),
        jax.random.key(1),
    ],
    ids=str,
)
def test_every_kind_of_value_goes_through_a_transform_unchanged(value: Any) -> None:
    s = State(value, name="s")

    def f(x: Any) -> Any:
        s.value = jax.tree.map(lambda leaf: leaf, s.value)
        return x

    for wrap in (
        transform.jit,
        transform.checkpoint,
        lambda f: lambda x: transform.scan(lambda c, _: (f(c), None), x, length=2)[0],
    ):
        s.value = value
        assert wrap(f)(1.0) == 1.0
        assert jax.tree.structure(s.value) == jax.tree.structure(value)
        for ours, given in zip(jax.tree.leaves(s.value), jax.tree.leaves(value), strict=True):
            assert jax.dtypes.result_type(ours) == jax.dtypes.result_type(given)
            assert jnp.array_equal(ours, given)


def test_the_class_of_a_state_is_fixed() -> None:
    """Traces are found by the classes of states, and who has seen a state does not look at its class again."""

    class Heat(State):
        """A kind with attributes."""

    class Charge(State):
        """Another, of the same layout."""

    u = Heat(1.0, name="u")
    with pytest.raises(
        TypeError, match=r"u.* cannot become an instance of Charge.*Make a new one, `Charge\(state.value\)`"
    ):
        u.__class__ = Charge
    assert type(u) is u.__class__ is Heat
