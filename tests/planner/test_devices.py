"""A budget is for one device: its bytes are those that a device holds, as the compiler partitions values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding

from statetransform import BudgetError, Param, inspect, policies, transform

# The compiler for the CPU of JAX 0.10 ignores barriers, and a warning says so.
BARRIERS_ARE_KEPT = not jax.__version__.startswith("0.10.")
pytestmark = [pytest.mark.optimized]
if not BARRIERS_ARE_KEPT:
    pytestmark.append(pytest.mark.filterwarnings("ignore:checkpoint. no plan fits"))
P = jax.P
X, WS = jnp.linspace(-1, 1, 2048 * 16).reshape(2048, 16), [jnp.eye(16) * 0.9] * 8


def loss(ws: Any, x: Any) -> Any:
    for w in ws:
        x = jnp.tanh(x @ w)
    return (x**2).mean()


def temp(f: Any, *args: Any) -> int:
    return f.lower(*args).compile().memory_analysis().temp_size_in_bytes


def mesh_of(kind: AxisType, *names: str) -> Mesh:
    return jax.make_mesh((8,) if len(names) == 1 else (4, 2), names, axis_types=(kind,) * len(names))


def on(mesh: Mesh, x: Any, *spec: Any) -> Any:
    return jax.device_put(x, NamedSharding(mesh, P(*spec)))


def honours(step: Callable[[Any], Any], plain: Any, *args: Any, share: float = 0.5) -> Any:
    """Checks a budget of a share of the plain bytes of one device; `step` makes a jitted gradient of a policy."""
    needed = temp(plain, *args)
    budget = policies.fit(int(share * needed))
    compiled = step(budget).lower(*args).compile()
    (chosen,) = budget.choices[-1:]
    assert chosen.planned_bytes < needed and not chosen.is_plain
    if BARRIERS_ARE_KEPT:
        assert chosen.planned_bytes <= budget.bytes and chosen.flops_over_plain < 1.4
        assert compiled.memory_analysis().temp_size_in_bytes <= budget.bytes
    for ours, theirs in zip(jax.tree.leaves(compiled(*args)), jax.tree.leaves(plain(*args)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)
    return chosen


def gradient(budget: Any) -> Any:
    return transform.jit(transform.grad(transform.checkpoint(loss, policy=budget)))


def sharded(kind: AxisType = AxisType.Auto) -> Any:
    mesh = mesh_of(kind, "d")
    return [on(mesh, w) for w in WS], on(mesh, X, "d")


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_data_parallel(kind: AxisType) -> None:
    with jax.set_mesh(mesh_of(kind, "d")):
        honours(gradient, jax.jit(jax.grad(loss)), *sharded(kind))


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_a_budget_that_a_device_meets_leaves_the_program_alone(kind: AxisType) -> None:
    with jax.set_mesh(mesh_of(kind, "d")):
        args = sharded(kind)
        budget = policies.fit(temp(jax.jit(jax.value_and_grad(loss)), *args))
        text = gradient(budget).lower(*args).as_text()
    assert budget.choices[-1].is_plain and "optimization_barrier" not in text  # pyright: ignore


def test_states_keep_their_shardings() -> None:
    ws, x = sharded()
    params = [Param(w) for w in ws]

    def step(budget: Any) -> Any:
        f = transform.checkpoint(lambda x: loss([p.value for p in params], x), policy=budget)
        return transform.jit(transform.grad(f, states=params))

    honours(step, jax.jit(lambda x: jax.grad(loss)(ws, x)), x)


def test_an_eager_gradient_knows_where_its_arguments_are() -> None:
    args = sharded()
    budget = policies.fit(temp(jax.jit(jax.grad(loss)), *args) // 2)
    transform.grad(transform.checkpoint(loss, policy=budget))(*args)
    assert budget.choices[-1].planned_bytes <= budget.bytes  # pyright: ignore


def test_a_plan_is_for_the_shardings_of_its_call() -> None:
    """Types do not say on an automatic mesh how values are split: a trace with a plan depends on it besides."""
    ws, x = sharded()
    params, mesh = [Param(w) for w in ws], mesh_of(AxisType.Auto, "d")
    budget = policies.fit(temp(jax.jit(lambda x: jax.grad(loss)(ws, x)), x) // 2)
    f = transform.checkpoint(lambda x: loss([p.value for p in params], x), policy=budget)
    eager = transform.grad(f, states=params)
    step, inner = transform.jit(eager), transform.jit(eager)
    outer = transform.jit(lambda x: inner(x))
    xs = {"split": x, "whole": on(mesh, X)}

    def split() -> None:
        assert not BARRIERS_ARE_KEPT or temp(step, xs["split"]) <= budget.bytes
        eager(xs["split"]), inner(xs["split"]), outer(xs["split"])
        assert budget.choices[-1].planned_bytes <= budget.bytes  # pyright: ignore[reportOptionalSubscript]

    def whole() -> None:
        for gradient in (step, eager, inner, outer):
            with pytest.raises(BudgetError):
                gradient(xs["whole"])

    split(), whole(), split()
    assert "shardings" in str(inspect.explain_retrace(step))


@pytest.mark.parametrize("option", ["in_shardings", "in_shardings, around it jax.jit", "state_shardings"])
def test_a_plan_knows_the_shardings_that_jit_gives(option: str) -> None:
    mesh = mesh_of(AxisType.Auto, "d")
    split, whole = NamedSharding(mesh, P("d")), NamedSharding(mesh, P())
    rows = Param(jnp.array(X))

    def step(budget: Any) -> Any:
        f = transform.checkpoint(loss, policy=budget)
        if option == "state_shardings":
            return transform.jit(transform.grad(lambda ws, _: f(ws, rows.value)), state_shardings={Param: P("d")})
        compiled = transform.jit(transform.grad(f), in_shardings=(whole, split))
        return compiled if option == "in_shardings" else jax.jit(lambda *args: compiled(*args))

    with jax.set_mesh(mesh):
        honours(step, jax.jit(jax.grad(loss), in_shardings=(whole, split)), WS, X)


@pytest.mark.parametrize("check_vma", [True, False])
def test_within_shard_map(check_vma: bool) -> None:
    mesh = mesh_of(AxisType.Auto, "d")

    def gradient_of(map: Any, f: Any) -> Any:
        mean = lambda ws, x: jax.lax.pmean(f(ws, x), "d")
        return jax.grad(map(mean, mesh=mesh, in_specs=(P(), P("d")), out_specs=P(), check_vma=check_vma))

    def step(budget: Any) -> Any:
        return transform.jit(gradient_of(transform.shard_map, transform.checkpoint(loss, policy=budget)))

    honours(step, jax.jit(gradient_of(jax.shard_map, loss)), *sharded())


def test_within_shard_map_beside_a_number_that_all_devices_share() -> None:
    def cooled(x: Any, t: Any) -> Any:
        for _ in range(8):
            x = jnp.tanh(x) * jnp.sin(t)
            t = jnp.cos(t) * 0.9
        return jax.lax.psum((x**2).sum(), "d") + t, jnp.sin(t) * 2

    def gradient(f: Any) -> Any:
        mapped = jax.shard_map(f, mesh=mesh_of(AxisType.Auto, "d"), in_specs=(P("d"), P()), out_specs=P())
        return jax.jit(jax.grad(lambda *args: sum(mapped(*args)), argnums=(0, 1)))

    args = X, jnp.float32(0.8)
    budget = policies.fit(temp(gradient(cooled), *args) // 2, compile=False)
    found = gradient(transform.checkpoint(cooled, policy=budget))(*args)
    assert not budget.choices[-1].is_plain  # pyright: ignore[reportOptionalSubscript]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4), found, gradient(cooled)(*args))


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_weights_and_activations_in_pieces(kind: AxisType) -> None:
    """As fully sharded data parallel on one axis, and tensor parallel on the other one."""
    mesh = mesh_of(kind, "fsdp", "tp")

    def product(x: Any, w: Any, *spec: Any) -> Any:
        to = NamedSharding(mesh, P(*spec))
        if kind is AxisType.Auto:
            return jax.lax.with_sharding_constraint(x @ w, to)
        gathered = jax.sharding.reshard(w, NamedSharding(mesh, P(None, spec[1])))
        return jnp.matmul(x, gathered, out_sharding=to)

    def block(ws: Any, x: Any) -> Any:
        for up, down in ws:
            h = jnp.tanh(product(x, up, "fsdp", "tp"))
            x = x + product(h, down, "fsdp", None)
        return (x**2).mean()

    pairs = [(on(mesh, jnp.ones((16, 64)) * 0.01, "fsdp", "tp"), on(mesh, jnp.ones((64, 16)) * 0.01, "tp", "fsdp"))] * 6
    step = lambda b: transform.jit(transform.grad(transform.checkpoint(block, policy=b)))
    plain = jax.jit(jax.grad(block))
    args = pairs, on(mesh, X, "fsdp")
    honours(step, plain, *args)


def test_raw_jit_on_an_automatic_mesh_says_that_it_counts_all_devices() -> None:
    f = transform.checkpoint(loss, policy=policies.fit("100 MB"))
    with pytest.warns(policies.PolicyWarning, match="bytes of all devices"):
        jax.jit(jax.grad(f)).lower(*sharded())


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_a_loop_over_sharded_values(kind: AxisType) -> None:
    def looped(w: Any, x: Any) -> Any:
        return (jax.lax.scan(lambda c, _: (jnp.tanh(c @ w), None), x, None, length=30)[0] ** 2).mean()

    ws, x = sharded(kind)
    step = lambda b: transform.jit(transform.grad(transform.checkpoint(looped, policy=b)))
    with jax.set_mesh(mesh_of(kind, "d")):
        honours(step, jax.jit(jax.grad(looped)), ws[0], x)


def test_the_curve_is_of_one_device() -> None:
    args, whole = sharded(), policies.plan(loss, WS, X)
    assert policies.plan(loss, *args)[0].planned_bytes * 7 < whole[0].planned_bytes


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("is_policy", [False, True])
def test_reports_know_the_shardings_of_their_arguments(kind: AxisType, is_policy: bool) -> None:
    args = sharded(kind)
    types = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), args)
    for given in (args, types):
        plain = inspect.compare({"plain": loss}, *given, argnums=0)["plain"]
        budget = policies.fit(plain.temporary_bytes // 2)  # pyright: ignore[reportOptionalOperand]
        ways = {"plain": loss, "it": budget if is_policy else transform.checkpoint(loss, policy=budget)}
        found = inspect.compare(ways, *given, argnums=0)
        assert not any("sharded" in note for note in found.notes)
        assert budget.choices[-1].planned_bytes <= budget.bytes  # pyright: ignore[reportOptionalSubscript]
        assert not BARRIERS_ARE_KEPT or found["it"].temporary_bytes <= budget.bytes  # pyright: ignore
