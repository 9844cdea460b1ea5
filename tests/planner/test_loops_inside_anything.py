"""Loops are opened wherever they are: in calls, checkpoints, branches and steps of other loops, and with effects."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from statetransform import BudgetError, policies, transform

STEPS, X = 200, jnp.linspace(0.1, 1.0, 64)
RESIDUALS = STEPS * X.nbytes


def step(c: Any, _: Any = None) -> Any:
    return jnp.sin(c) * 1.01, None


def loop(x: Any) -> Any:
    return lax.scan(step, x, None, length=STEPS)[0]


def debugged(x: Any) -> Any:
    def told(c: Any, _: Any) -> Any:
        jax.debug.callback(lambda v: None, c[0])
        return step(c)

    return lax.scan(told, x, None, length=STEPS)[0]


def nested(x: Any) -> Any:
    """Loops in branches of a checkpointed step, as libraries write bounded `while` loops."""
    inner = lambda c: lax.scan(step, c, None, length=20)[0]
    outer = lambda c, _: (lax.cond(c[0] > -9, inner, lambda c: c, c), None)
    return lax.scan(jax.checkpoint(outer), x, None, length=STEPS // 20)[0]


LOOPS: dict[str, Callable[[Any], Any]] = {
    "jit": jax.jit(loop),
    "jit in jit": jax.jit(lambda x: jax.jit(loop)(x) + 1),
    "fori_loop in jit": jax.jit(lambda x: lax.fori_loop(0, STEPS, lambda i, c: step(c)[0], x)),
    "vmap of jit": lambda x: jax.vmap(jax.jit(loop))(x.reshape(4, -1)),
    "checkpoint": jax.checkpoint(loop),
    "checkpoint of the step": lambda x: lax.scan(jax.checkpoint(step), x, None, length=STEPS)[0],
    "cond": lambda x: lax.cond(x[0] > 0, loop, lambda x: x, x),
    "switch of jit": lambda x: lax.switch(1, [lambda x: x, jax.jit(loop)], x),
    "a debug callback": debugged,
    "nested": nested,
}


@pytest.mark.optimized
@pytest.mark.parametrize("name", LOOPS)
def test_a_budget_opens_a_loop_inside(name: str) -> None:
    f = LOOPS[name]
    loss = lambda x: (f(x) ** 2).sum()
    budget = policies.fit(RESIDUALS // 5)
    compiled = jax.jit(jax.grad(transform.checkpoint(loss, policy=budget))).lower(X).compile()
    assert compiled.memory_analysis().temp_size_in_bytes <= budget.bytes
    assert budget.choices[-1].flops_over_plain < 2.1  # pyright: ignore[reportAttributeAccessIssue]
    assert jnp.allclose(compiled(X), jax.grad(loss)(X), rtol=1e-5)


@jax.custom_vjp
def by_rule(x: Any) -> Any:
    return loop(x)


by_rule.defvjp(lambda x: jax.vjp(loop, x), lambda pull, ct: pull(ct))


@pytest.mark.optimized
def test_a_loop_in_a_derivative_rule_is_not_opened_and_what_it_needs_is_kept() -> None:
    loss = lambda x: (by_rule(x) ** 2).sum()
    gradient = lambda size: jax.jit(jax.grad(transform.checkpoint(loss, policy=policies.fit(size)))).lower(X).compile()
    with pytest.raises(BudgetError, match=r"The least for which a plan was found .* `scan` at test_loops") as caught:
        gradient(RESIDUALS // 5)
    least = caught.value.least
    assert least is not None and RESIDUALS < least < 1.1 * RESIDUALS
    assert gradient(least).memory_analysis().temp_size_in_bytes <= least


def test_a_loop_is_opened_with_nearly_all_bytes_of_a_budget() -> None:
    w, xs, n = 0.1 * jnp.eye(16, 64), jnp.ones((48, 16, 64)), 16

    def lstm(state: Any, x: Any) -> Any:
        c, gates = state[1], state[0] @ w + x
        i, f, o = (jax.nn.sigmoid(gates[:, k * n : (k + 1) * n]) for k in range(3))
        c = f * c + i * jnp.tanh(gates[:, 3 * n :])
        return (o * jnp.tanh(c), c), None

    loss = lambda xs: (lax.scan(lstm, (jnp.ones((16, n)), jnp.ones((16, n))), xs)[0][0] ** 2).mean()
    budget = policies.fit(80_000, compile=False)  # the carries of all steps take 98 kB
    jax.make_jaxpr(jax.grad(transform.checkpoint(loss, policy=budget)))(xs)
    (choice,) = budget.choices
    assert choice.flops_over_plain < 1.47  # of a checkpoint around each four steps, which takes 114 kB


def test_a_checkpoint_inside_makes_no_plan_worse() -> None:
    ws, x = [jnp.eye(32)] * 4, jnp.ones((256, 32))
    layer = lambda x, w: jnp.tanh(jnp.sin(x @ w))
    loss = lambda layer, ws: (functools.reduce(layer, ws, x) ** 2).sum()
    with_checkpoints = policies.plan(functools.partial(loss, jax.checkpoint(layer)), ws)
    assert with_checkpoints.to_dicts() == policies.plan(functools.partial(loss, layer), ws).to_dicts()


@pytest.mark.optimized
def test_a_budget_that_a_checkpointed_function_meets_leaves_its_checkpoints() -> None:
    f = lambda x: (jax.checkpoint(loop)(x) ** 2).sum()
    ours = jax.make_jaxpr(jax.grad(transform.checkpoint(f, policy=policies.fit("1 GB"))))(X)
    assert "checkpoint" in str(ours) or "remat" in str(ours)


@jax.custom_vjp
def fixed_point(w: Any, x: Any) -> Any:
    """The solution of `z = tanh(z @ w + x)`. The rule of its derivative runs a loop of its own."""
    return iterated(lambda z: jnp.tanh(z @ w + x), x)


def iterated(f: Callable[[Any], Any], z: Any) -> Any:
    return lax.while_loop(lambda c: c[1] < 40, lambda c: (f(c[0]), c[1] + 1), (z, 0))[0]


def _pull(saved: Any, g: Any) -> Any:
    w, x, z = saved
    _, pull = jax.vjp(lambda w, x, z: jnp.tanh(z @ w + x), w, x, z)
    return pull(iterated(lambda u: pull(u)[2] + g, g))[:2]


fixed_point.defvjp(lambda w, x: ((z := fixed_point(w, x)), (w, x, z)), _pull)


def test_loops_in_a_derivative_rule_are_run_and_not_reversed() -> None:
    """They take no carries from the budget, which the plain function meets here."""

    def loss(w: Any, x: Any) -> Any:
        for _ in range(3):
            x = jnp.tanh(fixed_point(w, x) @ w)
        return (x**2).mean()

    args = 0.1 * jnp.sin(jnp.arange(1024.0)).reshape(32, 32), jnp.ones((32, 32))
    step = jax.jit(jax.value_and_grad(loss))
    plain = step.lower(*args).compile().memory_analysis().temp_size_in_bytes
    fitting = transform.checkpoint(loss, policy=policies.fit(int(1.2 * plain)))
    ours, theirs = jax.tree.leaves(jax.jit(jax.value_and_grad(fitting))(*args)), jax.tree.leaves(step(*args))
    assert all(jnp.allclose(a, b, atol=1e-6) for a, b in zip(ours, theirs, strict=True))
