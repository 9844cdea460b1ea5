"""Loops that remember little on meshes: the carry keeps its sharding, and so do stored carries and cotangents."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import statetransform as st
from statetransform import State, transform

N = 9
EXPLICIT, AUTO = jax.sharding.AxisType.Explicit, jax.sharding.AxisType.Auto


def mesh_of(kind: Any) -> jax.sharding.Mesh:
    return jax.make_mesh((8,), ("i",), axis_types=(kind,), devices=jax.devices("cpu"))


@pytest.fixture(params=[EXPLICIT, AUTO], ids=["explicit", "auto"])
def mesh(request: pytest.FixtureRequest) -> Iterator[jax.sharding.Mesh]:
    mesh = mesh_of(request.param)
    with jax.set_mesh(mesh):
        yield mesh


def split(mesh: jax.sharding.Mesh) -> tuple[jax.Array, jax.Array]:
    return jax.device_put(jnp.arange(16.0) / 16, jax.NamedSharding(mesh, jax.P("i"))), jnp.float32(0.9)


def scan(x: jax.Array, w: jax.Array, checkpoint: Any) -> jax.Array:
    """Inputs and outputs are split as the carry is; with `checkpoint="by hand"` it is JAX's."""
    loop = jax.lax.scan if checkpoint == "by hand" else lambda *args: transform.scan(*args, checkpoint=checkpoint)
    step = lambda c, s: (jnp.sin(c * w) + s, c)
    carry, ys = loop(step, x, jnp.linspace(0, 1, N)[:, None] * x)
    return carry.sum() + (ys.sum(1) * jnp.arange(float(N))).sum()


def while_loop(x: jax.Array, w: jax.Array, checkpoint: Any) -> jax.Array:
    if checkpoint == "by hand":
        return jax.lax.scan(lambda c, _: (jnp.sin(c * w), None), x, None, N)[0].sum()
    body = lambda c: (c[0] + 1, jnp.sin(c[1] * w))
    return transform.while_loop(lambda c: c[0] < N, body, (0, x), max_steps=20, checkpoint=checkpoint)[1].sum()


def fori_loop_traced(x: jax.Array, w: jax.Array, checkpoint: Any) -> jax.Array:
    if checkpoint == "by hand":
        return while_loop(x, w, checkpoint)
    loop = lambda n: transform.fori_loop(0, n, lambda i, c: jnp.sin(c * w), x, checkpoint=checkpoint)
    return transform.jit(loop)(N).sum()


TRANSFORMED: dict[str, Callable[..., Any]] = {
    "grad": lambda f: lambda x, w: jax.grad(f, (0, 1))(x, w),
    "jvp": lambda f: lambda x, w: jax.jvp(f, (x, w), (x, w)),
    "grad_of_grad": lambda f: lambda x, w: jax.grad(lambda x, w: jax.grad(f)(x, w).sum(), (0, 1))(x, w),
    "grad_of_jvp": lambda f: lambda x, w: jax.jvp(jax.grad(f, (0, 1)), (x, w), (x, w)),
    "vmap_grad": lambda f: lambda x, w: jax.vmap(jax.grad(f, (0, 1)), (None, 0))(x, jnp.stack([w, -w])),
    "vmap_grad_over_devices": lambda f: lambda x, w: jax.vmap(jax.grad(f, (0, 1)), (0, None))(x[:, None] * w, w),
}


def compare(f: Callable[..., Any], mesh: jax.sharding.Mesh, transformed: Any, checkpoint: Any) -> None:
    """Values and shardings are those of JAX's scan."""
    arguments = split(mesh)
    expected = jax.jit(transformed(lambda x, w: f(x, w, "by hand")))(*arguments)
    found = jax.jit(transformed(lambda x, w: f(x, w, checkpoint)))(*arguments)

    def check(a: jax.Array, b: jax.Array) -> None:
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
        assert a.sharding.is_equivalent_to(b.sharding, a.ndim)

    jax.tree.map(check, found, expected)


@pytest.mark.parametrize("f", [scan, while_loop, fori_loop_traced], ids=lambda f: f.__name__)
def test_every_derivative_has_the_values_and_shardings_of_the_plain_loop(f: Any, mesh: jax.sharding.Mesh) -> None:
    # The scan sees all of them, the other loops those that differ between them.
    chosen = TRANSFORMED if f is scan else ("grad", "jvp", "vmap_grad_over_devices")
    every = lambda f: lambda x, w: {name: TRANSFORMED[name](f)(x, w) for name in chosen}
    compare(f, mesh, every, 3)


@pytest.mark.parametrize("checkpoint", [0, "sqrt", "log", "step", st.MemoryBudget(1000), st.MemoryBudget("1 MB")])
def test_every_form_of_checkpoint_works_with_explicit_axes(checkpoint: Any) -> None:
    mesh = mesh_of(EXPLICIT)
    with jax.set_mesh(mesh):
        compare(scan, mesh, TRANSFORMED["grad"], checkpoint)


def test_the_mesh_may_be_that_of_the_arguments_alone() -> None:
    x, _ = split(mesh_of(EXPLICIT))

    def loss(x: Any, checkpoint: Any) -> Any:
        step = lambda c, s: (jnp.sin(c * x + s), c.sum())  # an output that is not divided
        carry, ys = transform.scan(step, x, jnp.linspace(0, 1, N), checkpoint=checkpoint)
        return carry.sum() + (ys**2).sum()

    gradient = jax.jit(jax.grad(loss), static_argnums=1)
    for checkpoint in (3, st.MemoryBudget(1000)):
        np.testing.assert_allclose(gradient(x, checkpoint), gradient(x, None), rtol=1e-4)


def test_states_keep_their_sharding_with_explicit_axes() -> None:
    mesh = mesh_of(EXPLICIT)
    with jax.set_mesh(mesh):
        start, w = split(mesh)
        u = State(start, name="u")

        def loss(w: Any, checkpoint: Any) -> Any:
            def step(i: Any, total: Any) -> Any:
                u.value = jnp.sin(u.value * w)
                return total + u.value.sum()

            return transform.fori_loop(0, N, step, 0.0, checkpoint=checkpoint)

        found = []
        for checkpoint in (None, 2):
            u.value = start
            gradient = transform.grad(lambda w, k=checkpoint: loss(w, k), argnums=0, states=u)
            found.append((transform.jit(gradient)(w), u.value))
            assert jax.typeof(u.value) == jax.typeof(start)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), *found)
        assert jax.typeof(found[1][0][0]) == jax.typeof(start)


@pytest.mark.optimized
@pytest.mark.parametrize("unknown", [False, True], ids=["scan", "while_loop"])
def test_stored_carries_are_divided_among_the_devices(unknown: bool, mesh: jax.sharding.Mesh) -> None:
    size, k = 1 << 16, 6
    x = jax.device_put(jnp.ones(size), jax.NamedSharding(mesh, jax.P("i")))

    def loss(x: Any) -> Any:
        if unknown:
            step = lambda c: (c[0] + 1, jnp.sin(c[1]))
            return transform.while_loop(lambda c: c[0] < 100, step, (0, x), checkpoint=k)[1].sum()
        return transform.scan(lambda c, _: (jnp.sin(c), None), x, None, 100, checkpoint=k)[0].sum()

    memory = jax.jit(jax.grad(loss)).lower(x).compile().memory_analysis()
    assert memory.temp_size_in_bytes <= (k + 8) * 4 * size / 8


@pytest.mark.optimized
@pytest.mark.parametrize("unknown", [False, True], ids=["scan", "while_loop"])
@pytest.mark.parametrize("jit", [None, transform.jit, jax.jit], ids=["eager", "transform.jit", "jax.jit"])
def test_a_budget_is_that_of_one_device(jit: Any, unknown: bool, mesh: jax.sharding.Mesh) -> None:
    size = 1 << 16
    x = jax.device_put(jnp.ones(size), jax.NamedSharding(mesh, jax.P("i")))
    extra = 1 + [None, transform.jit, jax.jit].index(jit)  # equal budgets share their choices
    budget = st.MemoryBudget(20 * 4 * size // 8 + 8 * extra + 4 * unknown + (mesh.axis_types[0] is AUTO))

    def loss(x: Any) -> Any:
        if unknown:
            step = lambda c: (c[0] + 1, jnp.sin(c[1]))
            return transform.while_loop(lambda c: c[0] < 100, step, (0, x), checkpoint=budget)[1].sum()
        return transform.scan(lambda c, _: (jnp.sin(c), None), x, None, 100, checkpoint=budget)[0].sum()

    if jit is jax.jit and mesh.axis_types[0] is AUTO:  # types do not say how it is divided: all devices are counted
        with pytest.raises(st.BudgetError, match="5 carries of 256 KiB"):
            jit(jax.grad(loss)).lower(x)
        return
    if jit is None:
        transform.grad(loss)(x)
    else:
        memory = jit(transform.grad(loss)).lower(x).compile().memory_analysis()
        assert memory.temp_size_in_bytes <= 1.03 * budget.bytes
    assert budget.choices[-1].carries >= 12  # pyright: ignore[reportAttributeAccessIssue]


def test_an_axis_to_step_along_that_is_split_is_refused_as_in_jax() -> None:
    mesh = mesh_of(EXPLICIT)
    with jax.set_mesh(mesh):
        xs, _ = split(mesh)
        messages = []
        for checkpoint in (None, 3):
            with pytest.raises(ValueError, match="should be replicated") as info:
                transform.scan(lambda c, x: (c + x, None), 0.0, xs, checkpoint=checkpoint)
            messages.append(str(info.value))
        assert messages[0] == messages[1]


@pytest.mark.parametrize("checkpoint", [3, st.MemoryBudget(200)], ids=str)
def test_within_shard_map(checkpoint: Any) -> None:
    mesh = mesh_of(EXPLICIT)
    with jax.set_mesh(mesh):
        x, w = split(mesh)

        def total(x: Any, w: Any, checkpoint: Any) -> Any:
            loop = jax.lax.scan if checkpoint is None else lambda *a: transform.scan(*a, checkpoint=checkpoint)
            carry, ys = loop(lambda c, s: (jnp.sin(c * w) + s, c), x, jnp.linspace(0, 1, N))
            return jax.lax.psum(carry.sum() + ys.sum(), "i")

        def mapped(checkpoint: Any) -> Any:
            piece = lambda x, w: total(x, w, checkpoint)
            return jax.shard_map(piece, in_specs=(jax.P("i"), jax.P()), out_specs=jax.P())

        expected = jax.jit(jax.grad(mapped(None), (0, 1)))(x, w)
        found = jax.jit(jax.grad(mapped(checkpoint), (0, 1)))(x, w)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), found, expected)


def test_residuals_in_shard_map_beside_a_number_that_all_devices_share() -> None:
    """The barrier of JAX 0.10 makes all that it is given vary over the devices if one does."""
    x, s = jnp.arange(1.0, 17.0) / 16, jnp.float32(0.3)

    def total(x: Any, s: Any, checkpoint: Any) -> Any:
        loop = jax.lax.scan if checkpoint is None else lambda *a: transform.scan(*a, checkpoint=checkpoint)
        u, _ = loop(lambda u, _: (u + s * jnp.sin(u) * x, None), x, None, 12)
        return jax.lax.psum((u**2).sum(), "i")

    def gradient(checkpoint: Any) -> Any:
        piece = lambda x, s: total(x, s, checkpoint)
        mapped = jax.shard_map(piece, mesh=mesh_of(AUTO), in_specs=(jax.P("i"), jax.P()), out_specs=jax.P())
        return jax.jit(jax.grad(mapped, argnums=(0, 1)))(x, s)

    budget = st.MemoryBudget(203)  # no other test's: equal budgets share their choices
    found = gradient(budget)
    assert budget.choices[0].block != 1  # pyright: ignore[reportOptionalSubscript]  # residuals are recorded
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), found, gradient(None))


def test_a_collective_over_lanes_in_the_step() -> None:
    def loss(x: Any, w: Any, checkpoint: Any) -> Any:
        loop = jax.lax.scan if checkpoint is None else lambda *a: transform.scan(*a, checkpoint=checkpoint)
        return loop(lambda c, _: (jnp.sin(c * w + jax.lax.pmean(c, "lane")), None), x, None, N)[0]

    lanes = lambda x, w, k: jax.vmap(lambda x: loss(x, w, k), axis_name="lane")(x).sum()
    x, w = jnp.linspace(0, 1, 3), jnp.float32(0.9)
    expected = jax.grad(lanes, (0, 1))(x, w, None)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), jax.grad(lanes, (0, 1))(x, w, 3), expected)
