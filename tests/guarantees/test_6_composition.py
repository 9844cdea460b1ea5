"""Guarantee 6: any transform may be applied inside or outside any other, to any depth."""

from __future__ import annotations

import random
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import statetransform as st
from statetransform import transform

from ..cases import BY_NAME as CASES
from ..cases import assert_same
from ..tables import BY_NAME, Row, apply_jax, apply_ours

X = jnp.float32(0.7)
NAMES = [name for name in BY_NAME if name not in ("while_loop", "vmap")]


def shard_map(f: Any, map_over: Any = transform.shard_map) -> Any:
    """Over one device, with everything on it."""
    place = jax.P()
    return map_over(f, mesh=jax.make_mesh((1,), ("d",)), in_specs=place, out_specs=place)


def switch(f: Any, choose: Any = transform.switch) -> Any:
    same = (lambda x: x) if choose is transform.switch else (lambda values, x: (x, values))
    return lambda *args: choose(jnp.int32(1), [same, f, same], *args)


SHARDED = Row("shard_map", shard_map, lambda twin: shard_map(twin, jax.shard_map))
BELOW = [
    *map(BY_NAME.__getitem__, NAMES),
    Row("switch", switch, lambda twin: switch(twin, jax.lax.switch), is_loop=True),
]


@pytest.mark.parametrize("seed", range(12))
def test_a_random_stack_around_shard_map_gives_the_values_of_the_twin(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(2):
        rows = (BY_NAME["jit"], *draw.choices(BELOW, k=draw.randint(1, 4)), SHARDED)
        case = CASES[draw.choice(["accumulate", "two writes", "pytree", "dropout"])]
        states, values = case.states(), case.initial()
        f, twin = apply_ours(rows, case.make(states)), apply_jax(rows, case.twin)
        try:
            reference, values = twin(values, X)
        except ValueError:  # no context mesh: JAX refuses some stacks, and so do we
            with pytest.raises(ValueError, match="mesh"):
                f(X)
            continue
        assert_same(f(X), reference)
        assert_same(st.values(states), values)


def test_lanes_whose_states_are_first_read_on_the_devices_of_a_shard_map() -> None:
    def run(on_devices: Any) -> list[Any]:
        rng, w = st.RandomState(0), st.State(jnp.arange(2.0))

        def f(x: Any) -> Any:
            w.value = w.value + x
            return w.value * jax.random.uniform(rng.split())

        branch = lambda x: transform.cond(True, on_devices(f), lambda x: x, x)
        out = transform.jit(transform.vmap(branch, state_axes={w: 0}))(jnp.ones(2))
        return [out.tolist(), w.value.tolist(), jax.random.key_data(rng.key).tolist()]

    assert run(shard_map) == run(lambda f: f)


def test_nested_vmap_over_two_axes_of_one_state() -> None:
    e = st.State(jnp.arange(6.0).reshape(2, 3), name="e")

    def cell(x: object) -> object:
        e.value = e.value * x
        return e.value

    outer = st.transform.vmap(st.transform.vmap(cell, state_axes={e: 0}), in_axes=None, axis_size=2, state_axes={e: 0})
    out = outer(jnp.array([1.0, 2.0, 3.0]))
    expected = jnp.arange(6.0).reshape(2, 3) * jnp.array([1.0, 2.0, 3.0])
    assert out.tolist() == e.value.tolist() == expected.tolist()
