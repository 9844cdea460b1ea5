"""Units of memory that hold a carry or the residuals of a step."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import statetransform as st
from statetransform import State, transform

# Budgets choose units in few cases; here each number of them is run.
from statetransform._memory.loops import loops, mixed
from statetransform._memory.loops.choice import Sizes

X, W = jnp.linspace(0.0, 1.0, 5), jnp.linspace(0.9, 1.1, 5)


@functools.cache
def of_maddison(n: int, units: int) -> int:
    """The mixed schedule: from a stored carry, either another is stored further on, or the next step is recorded."""
    if n <= units + 1:
        return n
    if not units:
        return n * (n + 1) // 2
    stored = min(i + of_maddison(n - i, units - 1) + of_maddison(i, units) for i in range(1, n))
    return min(stored, 1 + of_maddison(n - 1, units - 1))


@pytest.mark.parametrize("units", range(7))
def test_no_more_evaluations_than_the_mixed_schedule_and_revolve(units: int) -> None:
    for n in range(1, 90):
        found = mixed.evaluations(n, units)
        assert found <= of_maddison(n, units)
        assert found <= st.schedule(n, units).evaluations


def test_forty_units_and_a_thousand_steps() -> None:
    budget = st.MemoryBudget(46 * 1000)
    choice = budget.choose("scan", 1000, Sizes(1000, 1000, unit=1000))
    assert (choice.carries, choice.block, choice.evaluations) == (40, 0, 2136)  # published: 2142
    assert choice.bytes == budget.bytes
    assert "stores 40 units of 1000 B, each a carry or the residuals of a step, 44.9 KiB in all" in str(choice)


def test_long_loops_with_many_units_have_plans_without_a_table() -> None:
    choice = st.MemoryBudget(10**6).choose("scan", 100_000, Sizes(1000, 1000, unit=1000))
    assert choice.block and choice.evaluations


def program(x: Any, w: Any, n: int, k: int | None, block: int, is_reversed: bool = False, note: Any = None) -> Any:
    def step(c: Any, t: Any) -> Any:
        if note is not None:
            jax.debug.callback(note)
        a, b, i = c
        return (a * 1.01 + 0.1 * t * w, jnp.sin(b * w + t), i + 1), b.sum() * t

    xs = jnp.linspace(0.0, 1.0, n)
    c, ys = loops.scan(step, (x, x * 2, jnp.int32(0)), xs, checkpoint=k, block=block, reverse=is_reversed)
    return (c[0] ** 2).sum() + c[1].sum() + (ys * jnp.arange(n)).sum()


@pytest.mark.parametrize(
    ("n", "units", "is_reversed"),
    [*[(n, units, False) for n, units in ((1, 0), (2, 0), (3, 1), (30, 3), (40, 38))], (1, 0, True), (10, 2, True)],
)
def test_gradients_are_those_of_the_plain_loop_and_evaluations_are_as_planned(
    n: int, units: int, is_reversed: bool
) -> None:
    count = [0]
    note = lambda: count.__setitem__(0, count[0] + 1)
    gradient = lambda *how: jax.jit(jax.grad(lambda x, w: program(x, w, n, *how), (0, 1)))(X, W)
    found = jax.block_until_ready(gradient(units, 0, is_reversed, note))
    jax.effects_barrier()
    assert count[0] == mixed.evaluations(n, units)
    expected = gradient(None, 1, is_reversed)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), found, expected)


@pytest.mark.parametrize("progress", [False, True])
def test_with_states_and_progress(progress: bool) -> None:
    if progress:
        pytest.importorskip("tqdm")
    u, budget = State(X, name="u"), st.MemoryBudget(10 * X.nbytes)

    def loss(w: Any, checkpoint: Any) -> Any:
        def step(_: Any, __: Any) -> Any:
            u.value = w * u.value
            return None, None

        u.value = X
        transform.scan(step, None, length=50, checkpoint=checkpoint, progress=progress)
        return (u.value**2).sum()

    gradient = transform.jit(transform.grad(loss), static_argnums=1)
    np.testing.assert_allclose(gradient(W, budget), gradient(W, None), rtol=1e-5)
    assert budget.choices[-1].block == 0
