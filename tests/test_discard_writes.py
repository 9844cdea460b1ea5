"""`discard_writes`: the function sees its writes, and nobody else does."""

from __future__ import annotations

import functools
import inspect
import pickle
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import statetransform as st
from statetransform import Param, RandomState, State, transform

from .tables import ONCE, ONCE_IN_LOOPS


class Rod:
    """A rod that cools and is shaken."""

    def __init__(self) -> None:
        self.u = State(jnp.arange(3.0), name="u")
        self.w = Param(jnp.float32(2), name="w")
        self.rng = RandomState(0, name="rng")
        self.mode = State("cold", static=True, name="mode")
        self.calls = 0

    def __call__(self, rate: Any) -> Any:
        self.u.value = self.u.value * (1 - rate) + jax.random.uniform(self.rng.split())
        self.mode.value = "warm"
        self.u.value = self.u.value * self.w.value
        return (self.u.value**2).sum() + len(self.mode.value)

    @transform.discard_writes
    def bare(self, rate: Any) -> Any:
        """Looks ahead."""
        return self(rate)

    @transform.jit(static_argnames="twice")
    @transform.discard_writes()
    def compiled(self, rate: Any, *, twice: bool = False) -> Any:
        return self(rate) if not twice else self(rate) + self(rate)

    @transform.discard_writes
    @staticmethod
    def static(rod: Rod, rate: Any) -> Any:
        return rod(rate)


def held(rod: Rod) -> Any:
    return jax.tree.map(str, {name: state.value for name, state in st.states(rod).items()})


def by_hand(rate: Any) -> Any:
    fresh = jax.random.split(jax.random.key(0))[1]
    u = (jnp.arange(3.0) * (1 - rate) + jax.random.uniform(fresh)) * 2
    return (u**2).sum() + 4


def looped(f: Any, checkpoint: Any = None) -> Any:
    return lambda x: transform.for_loop(lambda _: f(x), jnp.arange(3.0), checkpoint=checkpoint)[1]


AROUND = ONCE | {
    "eager": lambda f: f,
    "vmap": lambda f: lambda x: transform.vmap(f, split_rngs=False)(jnp.stack([x, 2 * x]))[0],
    "for_loop": looped,
    "checkpointed scan": lambda f: looped(f, checkpoint=1),
    "itself": transform.discard_writes,
    "apply": lambda f: lambda x: transform.functionalize(f).apply({}, x)[0],
    "partial": lambda f: functools.partial(transform.discard_writes(lambda y, x: f(x)), None),
}


@pytest.mark.parametrize("name", AROUND)
@pytest.mark.parametrize("is_outside", [False, True], ids=["inside", "outside"])
def test_each_call_starts_from_the_same_states(name: str, is_outside: bool) -> None:
    rod = Rod()
    before, x = held(rod), jnp.float32(0.1)
    if not is_outside:
        f = AROUND[name](transform.discard_writes(rod))
    elif name in ONCE_IN_LOOPS:
        rod.mode.value = "warm"  # which these cannot write
        before = held(rod)
        f = transform.discard_writes(AROUND[name](lambda x: transform.discard_writes(rod)(x)))
    elif name == "vmap":
        f = transform.discard_writes(AROUND[name](transform.discard_writes(rod)))
    else:
        f = transform.discard_writes(AROUND[name](rod))
    for _ in range(3):
        assert float(f(x)) == pytest.approx(float(by_hand(x)), rel=1e-6)
        assert held(rod) == before


def test_the_function_sees_its_own_writes_and_a_later_one_of_others(wrap: Any) -> None:
    n = State(jnp.float32(0), name="n")

    @transform.discard_writes
    def ahead(x: Any) -> Any:
        for _ in range(3):
            n.value = n.value + x
        return n.value

    def f(x: Any) -> Any:
        n.value = n.value + 10
        seen = ahead(x)
        n.value = n.value + seen
        return ahead(x)

    g = wrap(f)
    assert [float(g(1.0)), float(n.value)] == [26.0, 23.0]
    assert [float(g(1.0)), float(n.value)] == [72.0, 69.0]


def test_gradients_with_respect_to_states_and_arguments_are_those_of_the_function() -> None:
    rod = Rod()
    slope = transform.jit(transform.grad(transform.discard_writes(rod), argnums=0, states=[rod.u, rod.w]))
    twin = jax.grad(lambda x: by_hand(x))
    first, second = slope(0.1), slope(0.1)
    assert float(first[1]) == float(second[1]) == pytest.approx(float(twin(0.1)), rel=1e-6)
    for a, b in zip(first[0], second[0], strict=True):
        assert jnp.array_equal(a, b)
        assert bool(jnp.any(a != 0))


def test_the_compiled_program_has_no_output_for_what_is_dropped() -> None:
    rod = Rod()
    compiled = transform.jit(transform.discard_writes(rod)).lower(0.1).compile()
    twin = jax.jit(lambda u, w, key, x: by_hand(x)).lower(jnp.arange(3.0), 2.0, jax.random.key(0), 0.1).compile()
    assert compiled.memory_analysis().output_size_in_bytes == twin.memory_analysis().output_size_in_bytes == 4


def test_lanes_write_what_they_like_and_draw_the_same_numbers_in_each_call(wrap: Any) -> None:
    u, rng = State(jnp.float32(1), name="u"), RandomState(0, name="rng")

    def f(x: Any) -> Any:
        u.value = u.value * x + jax.random.uniform(rng.split())
        return u.value

    g = wrap(transform.vmap(transform.discard_writes(f)))
    first, second = g(jnp.zeros(4)), g(jnp.zeros(4))
    assert first.tolist() == second.tolist()
    assert len(set(first.tolist())) == 4
    assert float(u.value) == 1.0
    assert jax.random.bits(rng.key) == jax.random.bits(jax.random.key(0))


def test_methods_keep_their_signature_and_can_be_pickled() -> None:
    rod = Rod()
    expected = pytest.approx(float(by_hand(0.1)), rel=1e-6)
    assert float(rod.bare(0.1)) == float(Rod.bare(rod, rate=0.1)) == expected
    assert float(rod.compiled(0.1)) == float(Rod.static(rod, 0.1)) == expected
    assert float(rod.compiled(0.1, twice=True)) > float(rod.compiled(0.1))
    assert list(inspect.signature(Rod.bare).parameters) == ["self", "rate"]
    assert (Rod.bare.__name__, Rod.bare.__doc__) == ("bare", "Looks ahead.")
    assert pickle.loads(pickle.dumps(Rod.bare)) is Rod.bare


def test_a_state_that_is_made_inside_has_its_last_value_afterwards(wrap: Any) -> None:
    made: dict[str, State] = {}

    @transform.discard_writes
    def f(x: Any) -> Any:
        if not made:
            made["s"] = State(x, name="s")
        made["s"].value = made["s"].value + 1.0
        return {"new": State(2 * x)}, made["s"].value

    g = wrap(f)
    out, value = g(1.0)
    assert (float(out["new"].value), float(value), float(made["s"].value)) == (2.0, 2.0, 2.0)
    assert float(g(1.0)[1]) == 3.0  # it is there now, so that this write is dropped
    assert float(made["s"].value) == 2.0


def test_a_write_in_a_raw_transform_inside_is_still_refused() -> None:
    rod = Rod()
    with pytest.raises(st.StateTraceError, match=r"'u'.* is written inside a raw JAX transform"):
        transform.discard_writes(jax.jit(lambda x: rod.u.__setitem__(..., rod.u.value * x)))(2.0)


def test_under_raw_jax_there_is_nothing_to_carry_out() -> None:
    rod = Rod()
    f = transform.discard_writes(rod)
    with pytest.warns(st.StaleReadWarning):
        assert float(jax.jit(f)(0.1)) == pytest.approx(float(by_hand(0.1)), rel=1e-6)
    assert float(jax.grad(f)(0.1)) == float(transform.grad(f)(0.1))
