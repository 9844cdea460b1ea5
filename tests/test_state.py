"""`State`: one mutable cell that holds a pytree of arrays."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from statetransform import Param, RandomState, State, transform


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


EMPTY = [None, (), {}, [], {"n": None}, jnp.zeros((0, 3))]
SCALARS = [True, 3, 2.5, 1j, np.bool_(True), jnp.bfloat16(2), jax.random.key(1)]


@pytest.mark.parametrize("value", [*EMPTY, *SCALARS], ids=str)
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


@pytest.mark.parametrize("wrap", [transform.jit, transform.checkpoint])
def test_a_state_that_changes_its_class_is_of_another_structure(wrap: Any) -> None:
    class Heat(State):
        """A kind."""

    class Charge(State):
        """Another, of the same layout."""

    u = Heat(1.0, name="u")
    f = wrap(lambda: u.value * (2 if isinstance(u, Charge) else 1))
    assert [float(f()) for _ in range(5)] == [1.0] * 5
    u.__class__ = Charge
    assert [float(f()) for _ in range(2)] == [2.0] * 2
