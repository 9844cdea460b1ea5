"""`vmap` and random states: each lane draws numbers of its own, and the state goes on once."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from statetransform import RandomState, transform

from .tables import ONCE

XS = jnp.arange(3.0)


@pytest.mark.parametrize("style", [jax.random.key, jax.random.PRNGKey], ids=["typed", "raw"])
def test_each_lane_draws_its_own_numbers_and_the_state_advances_once(wrap: Any, style: Any) -> None:
    after = []
    for lanes in (2, 5):
        rng = RandomState(style(0), name="rng")
        f = wrap(transform.vmap(lambda x, rng=rng: jax.random.uniform(rng.split()) + x, in_axes=0))
        first, second = f(jnp.zeros(lanes)), f(jnp.zeros(lanes))
        assert len(set(first.tolist() + second.tolist())) == 2 * lanes
        assert rng.key.shape == style(0).shape
        after.append(jax.random.bits(rng.key))
    assert after[0] == after[1]


def test_lanes_draw_the_same_where_the_user_says_so() -> None:
    f = lambda rng: lambda x: jax.random.uniform(rng.split()) + x
    rng, twin = RandomState(0), RandomState(0)
    same = transform.vmap(f(rng), split_rngs=False)(jnp.zeros(3))
    assert set(same.tolist()) == {float(f(twin)(0.0))}
    assert jax.random.bits(rng.key) == jax.random.bits(twin.key)
    assert len(set(transform.vmap(f(rng), state_axes={rng: None})(jnp.zeros(3)).tolist())) == 1
    per_lane = RandomState(jax.random.split(jax.random.key(0), 3))
    assert len(set(transform.vmap(f(per_lane), state_axes={per_lane: 0})(jnp.zeros(3)).tolist())) == 3
    assert per_lane.key.shape == (3,)


def test_a_random_state_among_the_arguments_is_split() -> None:
    rng = RandomState(0)
    f = transform.vmap(lambda model, x: jax.random.uniform(model["rng"].split()) + x, in_axes=(None, 0))
    assert len(set(f({"rng": rng}, jnp.zeros(4)).tolist())) == 4


@pytest.mark.parametrize("is_compiled", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("inner", ["jit", "checkpoint", "named_call", "scan", "jit of checkpoint"])
def test_lanes_draw_their_own_numbers_through_transforms_inside(inner: str, is_compiled: bool) -> None:
    rng = RandomState(0, name="rng")
    g = transform.vmap(ONCE[inner](lambda x: jax.random.uniform(rng.split()) + x))
    g = transform.jit(g) if is_compiled else g
    first, second = g(jnp.zeros(4)), g(jnp.zeros(4))
    assert len(set(first.tolist() + second.tolist())) == 8
    assert rng.key.shape == ()


NESTED = {
    "vmap": lambda f, lanes=transform.vmap: lanes(lambda _: lanes(f)(XS)),
    "jit": lambda f, lanes=transform.vmap: lanes(transform.jit(lambda _: lanes(f)(XS))),
    "scan": lambda f, lanes=transform.vmap: lanes(
        lambda x: transform.scan(lambda c, _: (c, lanes(f)(XS)), x, length=2)[1][0]
    ),
}


@pytest.mark.parametrize("nest", NESTED)
def test_a_random_state_that_nobody_draws_from_stays(nest: str, wrap: Any) -> None:
    rng = RandomState(0)
    before = jax.random.bits(rng.key)
    g = wrap(NESTED[nest](lambda x: x if rng is not None else 0))
    for _ in range(2):
        g(jnp.ones(2))
        assert jax.random.bits(rng.key) == before
    assert transform.functionalize(g).trace(jnp.ones(2)).reads == []


@pytest.mark.parametrize("nest", NESTED)
@pytest.mark.parametrize("names", [{}, {"axis_name": "i"}], ids=["no name", "one name for both"])
def test_each_lane_of_each_level_draws_its_own_numbers(nest: str, names: Any, wrap: Any) -> None:
    rng = RandomState(0)
    draw = lambda x: jax.random.uniform(rng.split()) + 0.0 * x
    g = wrap(NESTED[nest](draw, transform.vmap(**names)))
    first, second = g(jnp.ones(2)), g(jnp.ones(2))
    assert first.shape == (2, 3)
    assert len({*np.ravel(first).tolist(), *np.ravel(second).tolist()}) == 12


@pytest.mark.parametrize("style", [jax.random.key, jax.random.PRNGKey], ids=["typed", "raw"])
def test_the_keys_of_the_lanes_are_split_off_one_that_is_split_off_the_state(style: Any) -> None:
    rng = RandomState(style(7))
    draws = transform.vmap(lambda x: jax.random.uniform(rng.split()) + 0.0 * x)(XS)
    advanced, fresh = jax.random.split(style(7))
    lanes = [jax.random.split(key)[1] for key in jax.random.split(fresh, 3)]
    assert draws.tolist() == [float(jax.random.uniform(key)) for key in lanes]
    assert jax.random.bits(rng.key) == jax.random.bits(advanced)


def test_a_batch_may_be_empty() -> None:
    rng = RandomState(0)
    assert transform.vmap(lambda x: x + jax.random.uniform(rng.split()))(jnp.ones(0)).shape == (0,)


@pytest.mark.parametrize("splits", [True, False])
def test_a_key_that_is_set_after_a_draw_is_the_new_one(splits: bool) -> None:
    rng, key = RandomState(0), jax.random.key(5)

    def f(x: Any) -> Any:
        drawn = jax.random.uniform(rng.split())
        rng.value = key
        return x + drawn

    transform.vmap(f, split_rngs=splits)(XS)
    assert rng.value == key
