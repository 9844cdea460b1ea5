"""From functions to graphs: what is fused, what is not, and that plans of any graph give the same gradients."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from statetransform._jaxpr.sizes import nbytes
from statetransform._planner import cost
from statetransform._planner.emit import Emitted, whole
from statetransform._planner.joint import MODEST, THRIFTY, Fusion, Pattern, build, flattened, joint_step
from statetransform._planner.solve import Solver


def attraction(x: Any) -> Any:
    """Differences of all pairs: cheap to have, wide to hold."""
    for _ in range(3):
        d = x[:, None] - x[None]
        x = x - 0.01 * (d / ((d**2).sum(-1, keepdims=True) + 0.1)).sum(1)
    return (x**2).sum()


PATTERN = Pattern((True,), (True,))


def joint(fun: Any, x: Any, fusion: Fusion = MODEST) -> Any:
    return build(flattened(joint_step(jax.make_jaxpr(fun)(x), PATTERN)), PATTERN, fusion)


def test_a_thrifty_graph_holds_less_for_more_work() -> None:
    x = jnp.linspace(0.0, 1.0, 60).reshape(20, 3)
    modest, thrifty = joint(attraction, x).graph, joint(attraction, x, THRIFTY).graph
    assert Solver(thrifty).plain.bytes < 0.6 * Solver(modest).plain.bytes
    assert modest.cost < thrifty.cost < 1.6 * modest.cost


@pytest.mark.parametrize("fusion", [MODEST, THRIFTY])
@pytest.mark.parametrize("share", [1.0, 0.7])
def test_plans_give_the_gradients_of_the_function(fusion: Fusion, share: float) -> None:
    x = jnp.linspace(0.0, 1.0, 60).reshape(20, 3)
    found = joint(attraction, x, fusion)
    solver = Solver(found.graph)
    plan = solver.plan(int(share * solver.plain.bytes))
    assert plan is not None
    value, gradient = whole(Emitted(found, plan.sequence), 1)(x, jnp.ones(()))
    expected, of_plain = jax.value_and_grad(attraction)(x)
    assert jnp.allclose(value, expected)
    assert jnp.allclose(gradient, of_plain, atol=1e-6)


def test_gradients_have_memory_that_the_graph_knows() -> None:
    graph = joint(attraction, jnp.ones((20, 3))).graph
    assert sorted(size for _, size in graph.buffers) == [4, 240]


def test_what_compilers_do_not_fuse_counts() -> None:
    x = jnp.ones((8, 16))
    of = lambda fun: cost.unfused(jax.make_jaxpr(fun)(x).eqns)
    assert of(lambda x: ((x + 0.5) ** 2).sum()) == 8 * 16 * 4  # the number, as an array
    assert of(lambda x: (x**2).sum()) == 0
    assert of(lambda x: x * jax.lax.exp(x[:, :1])) == 8 * 4  # not computed for each column
    assert of(lambda x: x * jax.lax.exp(x)) == 0


def test_bytes_are_those_of_any_other_part_of_the_package() -> None:
    key = jax.eval_shape(jax.random.key, 0)
    nothing = jax.ShapeDtypeStruct((2, 3), jax.dtypes.float0)
    for aval in (key, nothing, jax.ShapeDtypeStruct((3, 5), jnp.bfloat16), jax.ShapeDtypeStruct((), jnp.int32)):
        assert cost.nbytes(aval) == nbytes(aval)


def test_functions_with_rules_of_their_own_are_opened() -> None:
    found = joint(lambda x: jax.nn.relu(x * jax.nn.silu(jax.lax.stop_gradient(x))).sum(), jnp.ones(4))
    names = {eqn.primitive.name for node in found.graph.nodes for eqn in node.eqns}
    assert not any(name.startswith("custom_") or name in ("pjit", "jit") for name in names)
