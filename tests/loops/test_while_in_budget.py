"""Under a budget of a function, `while` loops that others wrote can be differentiated in reverse mode."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from statetransform import BudgetError, State, policies, transform

X = jnp.linspace(0.1, 1.0, 1000)
N = 60


def loop(x: Any) -> Any:
    step = lambda s: (s[0] + 1, 1.01 * jnp.sin(s[1]) + 0.1 * x)
    return lax.while_loop(lambda s: s[0] < N, step, (0, x))[1]


def reference(x: Any) -> Any:
    return lax.scan(lambda c, _: (1.01 * jnp.sin(c) + 0.1 * x, None), x, None, N)[0]


PROGRAMS: dict[str, Any] = {
    "alone": lambda loop: lambda x: (loop(x) ** 2).sum(),
    "twice": lambda loop: lambda x: (loop(jnp.cos(loop(x))) ** 2).sum(),
    "in a scan": lambda loop: lambda x: lax.scan(lambda c, _: (jnp.cos(loop(c)), None), x, None, 5)[0].sum(),
    "beside a scan": lambda loop: (
        lambda x: (lax.scan(lambda c, _: (jnp.sin(c), None), loop(x), None, 100)[0] * jnp.tanh(x)).sum()
    ),
    "in a branch": lambda loop: lambda x: lax.cond(x[0] > 0, lambda x: loop(x).sum(), lambda x: (x**2).sum(), x),
    "in jit": lambda loop: lambda x: jax.jit(loop)(x).sum(),
}


@pytest.mark.parametrize(
    ("name", "carries"), [*[(name, 14) for name in PROGRAMS], ("alone", 80), ("beside a scan", 80)]
)
def test_gradients_are_those_of_the_unrolled_loop(name: str, carries: int) -> None:
    f, expected = PROGRAMS[name](loop), jax.jit(jax.grad(PROGRAMS[name](reference)))(X)
    budget = policies.fit(carries * X.nbytes)
    gradient = transform.grad(transform.checkpoint(f, policy=budget))
    for run in (jax.jit(gradient), gradient) if name == "alone" else (jax.jit(gradient),):
        np.testing.assert_allclose(run(X), expected, rtol=1e-4, atol=1e-6)
    assert budget.choices[-1].bytes <= budget.bytes


@pytest.mark.optimized
def test_the_compiled_step_keeps_the_budget() -> None:
    budget = policies.fit(30 * X.nbytes)
    gradient = transform.grad(transform.checkpoint(PROGRAMS["alone"](loop), policy=budget))
    compiled = jax.jit(gradient).lower(X).compile()
    assert compiled.memory_analysis().temp_size_in_bytes <= budget.bytes


def test_a_budget_that_is_too_small_says_what_could() -> None:
    with pytest.raises(BudgetError, match=r"checkpoint: a budget of 3\.91 KiB cannot be met"):
        transform.grad(transform.checkpoint(PROGRAMS["alone"](loop), policy=policies.fit(X.nbytes)))(X)


def test_with_states_and_forward_mode() -> None:
    rate = State(jnp.float32(0.9), name="rate")

    def f(x: Any) -> Any:
        rate.value = rate.value * 1.0
        return (lax.while_loop(lambda s: s[0] < N, lambda s: (s[0] + 1, jnp.sin(s[1] * rate.value)), (0, x))[1]).sum()

    by_hand = lambda r, x: lax.scan(lambda c, _: (jnp.sin(c * r), None), x, None, N)[0].sum()
    fitting = transform.checkpoint(f, policy=policies.fit(40 * X.nbytes))
    np.testing.assert_allclose(transform.grad(fitting, states=rate)(X), jax.grad(by_hand)(0.9, X), rtol=1e-4)
    rate.value = jnp.float32(0.9)
    moved = transform.jvp(fitting, (X,), (X,))[1]
    np.testing.assert_allclose(moved, jax.jvp(functools.partial(by_hand, 0.9), (X,), (X,))[1], rtol=1e-4)


def test_what_is_not_differentiated_may_print() -> None:
    def f(x: Any) -> Any:
        def step(n: Any) -> Any:
            jax.debug.print("{}", n, ordered=True)
            return n * 0.5

        return (jnp.sin(x) * lax.while_loop(lambda n: n > 1.0, step, lax.stop_gradient(x).max() * 4)).sum()

    fitting = transform.checkpoint(f, policy=policies.fit("1 MiB"))
    np.testing.assert_allclose(transform.grad(fitting)(X), jax.grad(f)(X), rtol=1e-6)
