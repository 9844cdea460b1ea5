"""Loops in a function share its budget with the rest."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import pytest

from statetransform._planner.cost import overwritten
from statetransform._planner.joint import Joint, Pattern
from statetransform._planner.measure import Decision, Planner
from statetransform._planner.simulate import peak


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
    budget = int(share * planner.versions(pattern).first.solver.plain.bytes)
    offer = planner.plan(pattern, budget)
    assert offer is not None
    assert 0.9 * budget <= offer[1].bytes <= budget


def test_no_version_repeats_the_plain_one() -> None:
    planner, pattern = planner_of(long_loop, *AVALS)
    top = planner.versions(pattern).first.solver.plain.bytes
    assert planner.plan(pattern, int(0.9 * top)) is not None
    with_schedules = [
        version for version in planner.versions(pattern).opened_so_far if "products" not in version.recipe
    ]
    assert with_schedules
    assert all(version.solver.plain.bytes < top for version in with_schedules)


def test_where_a_compiler_needs_more_for_all_schedules_a_loop_gives_up_no_more_than_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planner, pattern = planner_of(long_loop, *AVALS)
    top = planner.versions(pattern).first.solver.plain.bytes
    budget, made = int(0.7 * top), planner._compiled
    more = lambda found: dataclasses.replace(found, compiled=found.planned + budget // 10)
    monkeypatch.setattr(planner, "_bytes_of", lambda *args, with_value=True: top if with_value else 0)
    monkeypatch.setattr(planner, "_compiled", lambda *args: more(made(*args)))
    found = planner.decide(pattern, budget)
    assert isinstance(found, Decision)
    assert 0.95 * budget <= found.planned + budget // 10 <= budget


def stacked(x: jax.Array, w: jax.Array) -> jax.Array:
    """A loop with a product in each step, over what is made of an argument: its gradient is stacked, too."""
    step = lambda h, x: (jnp.cos(jnp.sin(jnp.tanh(h @ w + x))), None)
    y, _ = jax.lax.scan(step, jnp.ones(x.shape[1:]), jnp.sin(x))
    return (y**2).sum()


STACKED = jax.ShapeDtypeStruct((30, 16, 32), jnp.float32), jax.ShapeDtypeStruct((32, 32), jnp.float32)
STACK = 4 * 30 * 16 * 32


def test_what_a_backward_scan_stacks_takes_memory_from_the_start() -> None:
    planner, pattern = planner_of(lambda x, w: stacked(2 * x, w) + x.sum(), *STACKED)
    graph = planner.versions(pattern).first.joint.graph
    assert graph.early
    assert any(graph.sizes[v] == STACK for v in graph.early)
    held = dataclasses.replace(graph, early=frozenset())
    assert peak(graph, graph.plain) >= peak(held, graph.plain)


def test_a_loop_writes_into_the_buffer_of_its_own_start_value_only() -> None:
    planner, pattern = planner_of(stacked, *STACKED)
    steps = planner.least(pattern)[0].joint
    loops = [node for node in steps.graph.nodes if {eqn.primitive.name for eqn in node.eqns} & {"scan", "while"}]
    assert any(node.is_backward for node in loops)
    for node in loops:
        started = {v for a in overwritten(node.eqns) or () for v in _values(steps, a)}
        assert len(node.inplace) <= len(started)


def _values(joint: Joint, atom: Any) -> list[int]:
    if isinstance(atom, jex.Literal):
        return []
    if atom in joint.numbers:
        return [joint.numbers[atom]]
    return [v for a in (joint.views[atom].invars if atom in joint.views else ()) for v in _values(joint, a)]


@pytest.mark.parametrize("share", [0.8, 0.75])
def test_a_loop_between_large_stacks_has_what_these_leave(share: float) -> None:
    planner, pattern = planner_of(stacked, *STACKED)
    plain = planner.versions(pattern).first
    offer = planner.plan(pattern, int(share * plain.solver.plain.bytes))
    assert offer is not None
    assert offer[1].cost < 2 * plain.joint.graph.cost


def filtered(zs: jax.Array, f: jax.Array) -> jax.Array:
    """A filter: what its covariance goes through does not depend on what is measured."""

    def step(carry: Any, z: jax.Array) -> Any:
        x, cov = carry
        cov = jnp.tanh(f @ cov @ f.T)
        gain = jnp.exp(cov) / (1 + jnp.cosh(cov))
        return (f @ x + gain @ (z - x), jnp.sin(gain @ cov)), None

    (x, _), _ = jax.lax.scan(step, (zs[0], jnp.eye(8)), zs)
    return (x**2).sum()


def test_what_a_loop_carries_without_a_tangent_is_not_differentiated_and_takes_no_residuals() -> None:
    avals = jax.ShapeDtypeStruct((40, 8), jnp.float32), jax.ShapeDtypeStruct((8, 8), jnp.float32)
    planner, pattern = planner_of(filtered, *avals)
    plain = planner.versions(pattern).first
    offer = planner.plan(pattern, plain.solver.plain.bytes // 2)
    assert offer is not None
    assert offer[1].cost < 2 * plain.joint.graph.cost


def test_a_loop_may_keep_its_products_and_nothing_else() -> None:
    planner, pattern = planner_of(stacked, *STACKED)
    first = planner.versions(pattern).first
    offer = planner.plan(pattern, int(0.85 * first.solver.plain.bytes))
    assert offer is not None
    assert "products" in offer[0].recipe
    assert offer[1].cost < 1.2 * first.joint.graph.cost


def test_the_least_of_a_loop_is_asked_for_directly() -> None:
    planner, pattern = planner_of(long_loop, *AVALS)
    version, plan = planner.least(pattern)
    first = planner.versions(pattern).first
    assert plan.bytes < first.solver.least.bytes
    assert len(planner.versions(pattern).opened_so_far) <= 2
    assert version.joint.graph.cost > first.joint.graph.cost
