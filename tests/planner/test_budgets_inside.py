"""A budget inside a budget keeps the promise for its region."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from statetransform import policies, transform

pytestmark = pytest.mark.optimized
X, WS = jnp.linspace(-1, 1, 256 * 16).reshape(256, 16), [jnp.eye(16) * 0.9] * 8
ROW = X.nbytes
BARRIERS_ARE_KEPT = not jax.__version__.startswith("0.10.")  # by the compiler for the CPU
if not BARRIERS_ARE_KEPT:
    pytestmark = [pytestmark, pytest.mark.filterwarnings("ignore:checkpoint. no plan fits")]


def block(x: Any, ws: Any) -> Any:
    for w in ws:
        x = jnp.tanh(x @ w)
    return x


def gradient(block: Any, budget: Any) -> Any:
    loss = lambda ws: (block(jnp.sin(block(X, ws[:1])), ws) ** 2).sum()
    return jax.jit(jax.grad(transform.checkpoint(loss, policy=budget) if budget else loss))


@pytest.mark.parametrize("outer", ["1 GiB", 8 * ROW, 6 * ROW])
def test_both_budgets_hold(outer: Any) -> None:
    inner, outer = policies.fit(5 * ROW), policies.fit(outer)
    compiled = gradient(transform.checkpoint(block, policy=inner), outer).lower(WS).compile()
    regions = [choice for choice in inner.choices if not choice.is_plain]  # pyright: ignore[reportAttributeAccessIssue]
    assert regions and all(region.planned_bytes <= inner.bytes for region in regions)
    if BARRIERS_ARE_KEPT:
        # The region, and what the rest holds meanwhile; without the inner budget, the region needs eight.
        assert compiled.memory_analysis().temp_size_in_bytes <= min(inner.bytes + 3 * ROW, outer.bytes)
    theirs = gradient(block, None)(WS)
    assert all(jnp.allclose(a, b, atol=1e-5) for a, b in zip(compiled(WS), theirs, strict=True))


@pytest.mark.parametrize("share", [0.7, 0.5])
def test_a_budget_inside_that_the_plain_region_meets_changes_nothing(share: float) -> None:
    plain = gradient(block, None).lower(WS).compile().memory_analysis().temp_size_in_bytes
    loose = transform.checkpoint(block, policy=policies.fit("1 GiB"))
    figures = []
    for region in (block, loose):
        compiled = gradient(region, policies.fit(int(share * plain))).lower(WS).compile()
        figures.append((compiled.memory_analysis().temp_size_in_bytes, compiled.cost_analysis()["flops"]))
    assert figures[0] == figures[1]
