"""From functions to graphs: what is fused, what is not, and that plans of any graph give the same gradients."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from statetransform._planner import barriers
from statetransform._planner.emit import Emitted, whole
from statetransform._planner.joint import Pattern, build, flattened, joint_step, without_equal
from statetransform._planner.measure import Decision, Planner, temporary_bytes


def attraction(x: Any) -> Any:
    """Differences of all pairs: cheap to have, wide to hold."""
    for _ in range(3):
        d = x[:, None] - x[None]
        x = x - 0.01 * (d / ((d**2).sum(-1, keepdims=True) + 0.1)).sum(1)
    return (x**2).sum()


PATTERN = Pattern((True,), (True,))
HAS_BARRIERS = barriers.keeps_barriers()


def joint(fun: Any, x: Any) -> Any:
    return build(flattened(joint_step(jax.make_jaxpr(fun)(x), PATTERN)), PATTERN)


def test_a_network_that_is_called_twice_is_planned_once() -> None:
    net = lambda x: jnp.tanh(x @ x)
    x = jnp.linspace(0.1, 1.0, 16).reshape(4, 4)
    loss = lambda x: (net(x) ** 2).sum() + jnp.abs(net(x)).sum() + (1 / (0.0 * x)).sum() + (1 / (-0.0 * x)).sum()
    flat = without_equal(flattened(joint_step(jax.make_jaxpr(loss)(x), PATTERN)))
    products = [node for node in build(flat, PATTERN).graph.nodes if node.is_product and not node.is_backward]
    assert len(products) == 1
    value, gradient = jax.core.eval_jaxpr(flat.jaxpr, flat.consts, x, 1.0)
    assert jnp.isnan(value)  # zeros of different signs are not equal
    assert jnp.array_equal(gradient, jax.grad(loss)(x), equal_nan=True)


def test_what_the_compiler_fuses_need_not_be_held() -> None:
    """A plan with a barrier at each run would hold the differences of all pairs."""
    x = jnp.linspace(0.0, 1.0, 60).reshape(20, 3)
    planner = Planner(jax.make_jaxpr(attraction)(x))
    plain = planner.plain_bytes(PATTERN)
    assert plain is not None
    found = planner.decide(PATTERN, int(0.6 * plain))
    assert isinstance(found, Decision) and found.compiled is not None
    assert found.compiled <= 0.6 * plain and found.cost < 1.4


def waves(u: Any, *ks: Any) -> Any:
    """All that is computed again for a step of this kind is fused into one loop."""
    for k in ks:
        lap = jnp.pad(u[1:] - u[:-1], ((0, 1), (0, 0))) - jnp.pad(u[1:] - u[:-1], ((1, 0), (0, 0)))
        u = u + 0.1 * k * lap - 0.01 * u**3
    return (u**2).mean()


def planner_of_waves(steps: int) -> tuple[Planner, Pattern, int]:
    """With the bytes of the plain step."""
    pattern = Pattern((False, *[True] * steps), (True,))
    planner = Planner(jax.make_jaxpr(waves)(*[jnp.ones((32, 32))] * (steps + 1)))
    plain = planner.plain_bytes(pattern)
    assert plain is not None
    return planner, pattern, plain


@pytest.mark.skipif(not HAS_BARRIERS, reason="a loop in the place of a barrier holds more")
@pytest.mark.parametrize(("steps", "most"), [(8, 2.0), (24, 1.2)])  # of the latter, compilers need much more
def test_a_budget_is_given_up_only_when_checkpoints_by_hand_do_not_honour_it(steps: int, most: float) -> None:
    planner, pattern, plain = planner_of_waves(steps)
    budget = plain // 16
    found = planner.decide(pattern, budget)
    assert isinstance(found, Decision) and found.compiled is not None
    assert found.compiled <= budget and found.cost < most


def experts(x: Any, ws: Any) -> Any:
    """Layers of products with weights that have to be copied for them."""
    for w in ws:
        x = x + jnp.einsum("ebk->bk", jnp.tanh(jnp.einsum("bd,edk->ebk", x, w)))
    return (x**2).mean()


def small_unet(x: Any, ws: Any) -> Any:
    """Gradients of convolutions, which need copies of their inputs."""
    numbers = ("NHWC", "HWIO", "NHWC")
    for w in ws:
        x = jax.nn.relu(jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=numbers))
    return (x**2).mean()


@pytest.mark.skipif(not HAS_BARRIERS, reason="a loop in the place of a barrier holds more")
@pytest.mark.parametrize(
    ("fun", "x", "w"),
    [
        (experts, jnp.ones((64, 24)), jnp.ones((4, 24, 24))),
        (small_unet, jnp.ones((2, 8, 8, 4)), jnp.ones((3, 3, 4, 4))),
    ],
)
def test_copies_that_operations_need_are_made_when_they_are_needed(fun: Any, x: Any, w: Any) -> None:
    """Made at the start, for both passes together, they would be there all the time."""
    planner = Planner(jax.make_jaxpr(fun)(x, [w] * 6))
    version = planner.versions(Pattern((False, *[True] * 6), (True,))).first
    plan = version.solver.plan(3 * version.solver.plain.bytes // 4)
    assert plan is not None
    step = version.as_outermost(whole(Emitted(version.joint, plan.sequence), 7))
    found = temporary_bytes(step, version)
    assert found is not None and found <= 1.25 * plan.bytes
