"""A budget holds for all lanes of a `vmap` around; where they come later, a warning says so."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from statetransform import State, policies, transform

from ..cases import spike
from .compilers import KEEPS_BARRIERS

WS = [jax.random.normal(jax.random.key(i), (32, 32)) / 6 for i in range(10)]
XS = jax.random.normal(jax.random.key(10), (4, 256, 32))


def loss(ws: Any, x: Any) -> Any:
    for w in ws:
        x = jnp.tanh(x @ w)
    return (x**2).mean()


Step = Callable[[Any], Callable[[Any, Any], Any]]


def of_mapped(f: Any, axes: Any = (None, 0)) -> Any:
    return transform.value_and_grad(lambda ws, xs: transform.vmap(f, in_axes=axes)(ws, xs).sum())


def raw(f: Any) -> Any:
    return jax.value_and_grad(lambda ws, xs: jax.vmap(f, in_axes=(None, 0))(ws, xs).sum())


STEPS: dict[str, Step] = {
    "grad of vmap": of_mapped,
    "raw grad of vmap": raw,
    "vmap of grad": lambda f: transform.vmap(transform.value_and_grad(f), in_axes=(None, 0)),
    "raw vmap of grad": lambda f: jax.vmap(jax.value_and_grad(f, argnums=1), in_axes=(None, 0)),
    "vmap of vmap": lambda f: (
        lambda ws, xs: of_mapped(transform.vmap(f, in_axes=(None, 0)))(ws, xs.reshape(2, 2, 256, 32))
    ),
    "vmap of grad of vmap": lambda f: lambda ws, xs: jax.vmap(raw(f), in_axes=(None, 0))(ws, xs.reshape(2, 2, 256, 32)),
    "closed over": lambda f: lambda ws, xs: jax.vmap(lambda x: jax.value_and_grad(lambda ws: f(ws, x))(ws))(xs),
}


def temporary(step: Any) -> int:
    jitted: Any = transform.jit(step)
    return jitted.lower(WS, XS).compile().memory_analysis().temp_size_in_bytes


@pytest.mark.optimized
@pytest.mark.skipif(not KEEPS_BARRIERS, reason="the CPU compiler of JAX 0.10 removes barriers")
@pytest.mark.parametrize("name", STEPS)
def test_all_lanes_are_within_the_budget(name: str) -> None:
    step = STEPS[name]
    budget = policies.fit(int(0.55 * temporary(step(loss))))
    fitting = step(transform.checkpoint(loss, policy=budget))
    assert temporary(fitting) <= budget.bytes
    assert not budget.choices[-1].is_plain  # pyright: ignore[reportAttributeAccessIssue]
    for one, other in zip(*map(jax.tree.leaves, (transform.jit(fitting)(WS, XS), step(loss)(WS, XS))), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_a_state_with_lanes_counts_them() -> None:
    x, plain = State(XS[0]), policies.fit(10**9)
    f = transform.checkpoint(lambda ws: loss(ws, x.value), policy=plain)
    mapped: Any = State(XS)
    g = transform.checkpoint(lambda ws: loss(ws, mapped.value), policy=plain)
    transform.jit(transform.grad(f)).lower(WS)
    alone: Any = plain.choices[-1].compiled_bytes  # pyright: ignore[reportAttributeAccessIssue]
    run = transform.vmap(transform.grad(g), in_axes=None, axis_size=4, state_axes={mapped: 0})
    transform.jit(run).lower(WS)
    together: Any = plain.choices[-1].compiled_bytes  # pyright: ignore[reportAttributeAccessIssue]
    assert together >= 3 * alone


def test_lanes_that_come_later_are_warned_of() -> None:
    budget = policies.fit(int(1.5 * temporary(lambda ws, xs: jax.value_and_grad(loss)(ws, xs[0]))))
    f = transform.checkpoint(loss, policy=budget)
    jax.jit(jax.grad(f))(WS, XS[0])
    with pytest.warns(policies.PolicyWarning, match="got 4 lanes of `vmap` later"):
        jax.vmap(jax.jit(jax.grad(f)), in_axes=(None, 0))(WS, XS)


def test_lanes_that_come_later_and_fit_are_not_warned_of() -> None:
    f = transform.checkpoint(loss, policy=policies.fit("1 GB"))
    jax.vmap(jax.jit(jax.grad(f)), in_axes=(None, 0))(WS, XS)


def test_the_same_function_is_planned_for_each_number_of_lanes() -> None:
    budget = policies.fit(10**9)
    f = transform.checkpoint(loss, policy=budget)
    sizes: list[Any] = []
    for xs in (XS, XS[:2]):
        transform.jit(STEPS["vmap of grad"](f)).lower(WS, xs)
        sizes.append(budget.choices[-1].compiled_bytes)  # pyright: ignore[reportAttributeAccessIssue]
    assert sizes[0] == 2 * sizes[1]


@pytest.mark.parametrize("share", [2.0, 0.5])
@pytest.mark.parametrize("name", ["grad of vmap", "vmap of grad of vmap", "of jit"])
def test_the_function_may_have_a_rule_for_reverse_mode_only(name: str, share: float) -> None:
    def spiking(ws: Any, x: Any) -> Any:
        for w in ws:
            x = x + spike(jnp.tanh(x @ w))
        return (x**2).mean()

    step = STEPS.get(name, lambda f: of_mapped(jax.jit(f)))
    budget = policies.fit(int(share * temporary(step(spiking))))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", policies.PolicyWarning)  # how much it takes is not the point
        found = step(transform.checkpoint(spiking, policy=budget))(WS, XS)
    for one, other in zip(*map(jax.tree.leaves, (found, step(spiking)(WS, XS))), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.optimized
@pytest.mark.skipif(not KEEPS_BARRIERS, reason="the CPU compiler of JAX 0.10 removes barriers")
@pytest.mark.filterwarnings("error::statetransform.policies.PolicyWarning")
def test_what_lanes_share_has_one_gradient_in_the_plan() -> None:
    xs = jnp.tile(XS[:, :8], (8, 1, 1)).reshape(4, 8, 8, 32)  # a lane's part of a gradient is four times its values
    mapped = lambda f: of_mapped(transform.vmap(f, in_axes=(None, 0)))
    bytes_of = lambda f: transform.jit(mapped(f)).lower(WS, xs).compile().memory_analysis().temp_size_in_bytes
    budget = policies.fit(bytes_of(loss) // 2)
    assert bytes_of(transform.checkpoint(loss, policy=budget)) <= budget.bytes
    assert budget.choices[-1].flops_over_plain < 1.25  # pyright: ignore[reportAttributeAccessIssue]
