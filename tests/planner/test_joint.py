"""From functions to graphs: what is fused, what is not, and that plans of any graph give the same gradients."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from statetransform._planner import barriers, cost
from statetransform._planner.emit import Emitted, whole
from statetransform._planner.joint import Pattern, build, flattened, joint_step
from statetransform._planner.measure import Decision, Planner, temporary_bytes
from statetransform._planner.solve import Solver


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


@pytest.mark.parametrize("share", [1.0, 0.75])
def test_plans_give_the_gradients_of_the_function(share: float) -> None:
    x = jnp.linspace(0.0, 1.0, 60).reshape(20, 3)
    found = joint(attraction, x)
    solver = Solver(found.graph)
    plan = solver.plan(int(share * solver.plain.bytes))
    assert plan is not None
    value, gradient = whole(Emitted(found, plan.sequence), 1)(x, jnp.ones(()))
    expected, of_plain = jax.value_and_grad(attraction)(x)
    assert jnp.allclose(value, expected)
    assert jnp.allclose(gradient, of_plain, atol=1e-6)


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


def test_a_plan_that_people_write_is_brought_into_a_budget_that_it_exceeds() -> None:
    """To keep the products of an LSTM costs least, and needs a little more than there is."""

    def loss(h: Any, w: Any, ps: Any) -> Any:
        c = h
        for p in ps:
            i, f, g, o = jnp.split(h @ w + p, 4, -1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h**2).mean()

    closed = jax.make_jaxpr(loss)(jnp.ones((16, 16)), jnp.ones((16, 64)), [jnp.ones((16, 64))] * 8)
    version = Planner(closed).versions(Pattern((False, False, *[True] * 8), (True,))).first
    plan = version.solver.plan(int(0.35 * version.solver.plain.bytes))
    assert plan is not None and plan.cost <= 1.25 * version.joint.graph.cost


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


@pytest.mark.parametrize("layout", [("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW"), ("NCHW", "HWIO", "NHWC")])
@pytest.mark.parametrize("way", ["forward", "of the image", "of the kernel"])
def test_the_copies_of_a_convolution_are_those_of_the_compiler(layout: tuple[str, str, str], way: str) -> None:
    sizes = {"N": 4, "H": 16, "W": 16, "C": 8, "I": 8, "O": 32}
    x, w = (jnp.ones([3 if name in "HW" and "I" in dims else sizes[name] for name in dims]) for dims in layout[:2])
    run = lambda x, w: jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=layout)
    pull = lambda x, w, ct: jax.vjp(run, x, w)[1](ct)
    step, args = {
        "forward": (run, (x, w)),
        "of the image": (lambda w, ct: pull(x, w, ct)[0], (w, run(x, w))),
        "of the kernel": (lambda x, ct: pull(x, w, ct)[1], (x, run(x, w))),
    }[way]
    eqn = [eqn for eqn in jax.make_jaxpr(step)(*args).eqns if eqn.primitive.name == "conv_general_dilated"][-1]
    alone = lambda *operands: eqn.primitive.bind(*operands, **eqn.params)
    operands = [jnp.ones(var.aval.shape) for var in eqn.invars]
    compiled = jax.jit(alone).lower(*operands).compile(compiler_options={"xla_backend_optimization_level": 0})
    assert compiled.memory_analysis().temp_size_in_bytes == cost.scratch(eqn)
