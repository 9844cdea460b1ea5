"""Loops in a function share its budget with the rest."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from statetransform._planner.joint import Pattern
from statetransform._planner.measure import Planner


def planner_of(f: Any, *avals: Any) -> tuple[Planner, Pattern]:
    """For the gradient by the first argument."""
    closed = jax.make_jaxpr(f)(*avals)
    return Planner(closed), Pattern((True, *[False] * (len(avals) - 1)), (True,))


def long_loop(x: jax.Array, xs: jax.Array) -> jax.Array:
    """With as much outside of the loop as the loop itself needs for a part of its steps."""
    wide = jnp.tanh(jnp.outer(x, x))
    y, _ = jax.lax.scan(lambda h, x: (jnp.sin(h * x), None), x + wide.sum(1), xs)
    return (y * jnp.cos(wide).sum(0)).sum()


AVALS = jax.ShapeDtypeStruct((64,), jnp.float32), jax.ShapeDtypeStruct((200, 64), jnp.float32)


@pytest.mark.parametrize("share", [0.9, 0.7, 0.5])
def test_a_loop_has_what_the_rest_leaves(share: float) -> None:
    planner, pattern = planner_of(long_loop, *AVALS)
    budget = int(share * planner.versions(pattern)[0].solver.plain.bytes)
    offer = planner.plan(pattern, budget)
    assert offer is not None
    assert 0.9 * budget <= offer[1].bytes <= budget


def test_nothing_is_proved_about_the_steps_of_a_loop_that_can_be_opened() -> None:
    planner, pattern = planner_of(long_loop, *AVALS)
    least = planner.least_cost(pattern)
    top = planner.versions(pattern)[0].solver.plain.bytes
    necessary = planner.necessary(pattern)[0]
    for percent in range(30, 100, 10):
        budget = top * percent // 100
        offer = planner.plan(pattern, budget)
        if offer is not None:
            assert budget >= necessary
            assert least(budget) <= offer[1].cost
