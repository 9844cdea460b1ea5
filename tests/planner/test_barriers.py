"""Both ways to keep the order of a plan: barriers, and loops for compilers that remove these."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from statetransform import RandomState, policies, transform
from statetransform._planner import barriers, emit
from statetransform._planner.emit import Emitted, whole
from statetransform._planner.joint import Pattern
from statetransform._planner.measure import Planner, temporary_bytes


@pytest.fixture
def without_barriers(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (emit, barriers):
        monkeypatch.setattr(module, "keeps_barriers", lambda: False)


@pytest.mark.usefixtures("without_barriers")
def test_values_behind_a_loop_are_the_same() -> None:
    values = [
        jnp.array([-0.0, jnp.nan, jnp.inf]),
        jnp.arange(6).reshape(2, 3),
        jnp.array(True),
        jnp.array([1 + 2j]),
        jnp.ones(2, jnp.bfloat16),
        jax.random.key(0),
    ]
    bits = lambda x: jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x
    assert "while" in str(jax.make_jaxpr(barriers.tied)(values))
    for x, y in zip(values, jax.jit(barriers.tied)(values), strict=True):
        assert y.dtype == x.dtype
        assert jnp.array_equal(bits(x), bits(y), equal_nan=bits(x).dtype.kind in "fc")
    (zero, *_), *_ = jax.jit(barriers.tied)(values)
    assert bool(jnp.signbit(zero))


@pytest.mark.usefixtures("without_barriers")
def test_no_loop_depends_on_keys_or_on_nothing() -> None:
    assert "while" not in str(jax.make_jaxpr(barriers.tied)([jax.random.key(0), jnp.ones((0, 3))]))


def residual(x: Any, ws: Any) -> Any:
    for w in ws:
        x = x + jnp.tanh(jax.nn.gelu(x @ w) @ w.T)
    return (x**2).mean()


def products(x: Any, ws: Any) -> Any:
    for w in ws:
        x = jnp.tanh(x @ w[:, : len(w)])
    return (x**2).mean()


@pytest.mark.usefixtures("without_barriers")
@pytest.mark.parametrize(("loss", "share"), [(residual, 0.6), (residual, 0.4), (products, 0.6)])
def test_a_plan_without_barriers_compiles_to_what_it_says(loss: Callable[..., Any], share: float) -> None:
    x, ws = jnp.ones((256, 32)), [jnp.ones((32, 64)) / 9] * 12
    planner, pattern = Planner(jax.make_jaxpr(loss)(x, ws)), Pattern((False, *[True] * 12), (True,))
    version = planner.versions(pattern).first
    plan = version.solver.plan(int(share * version.solver.plain.bytes))
    assert plan is not None
    step = whole(Emitted(version.joint, plan.sequence), 13)
    found = temporary_bytes(version.as_outermost(step), version)
    assert found is not None and found <= 1.15 * plan.bytes
    value, *gradients = jax.jit(step)(x, *ws, jnp.ones(()))
    expected, of_plain = jax.value_and_grad(loss, argnums=1)(x, ws)
    assert jnp.allclose(value, expected)
    assert all(jnp.allclose(a, b, atol=1e-6) for a, b in zip(gradients, of_plain, strict=True))


def normed(x: Any, ws: Any) -> Any:
    """Compilers compute the sums along the layers again where they are read, and hold all products up to there."""
    for a, b, c in ws:
        y = x - x.mean(-1, keepdims=True)
        y = y / jnp.sqrt((y**2).mean(-1, keepdims=True) + 1e-6)
        x = x + jax.nn.gelu(y @ a) @ b + c
    return (x**2).mean()


def patched(x: Any, ws: Any) -> Any:
    """Compilers move the dimensions of the input once for both passes."""
    y = x.reshape(8, 8, 4, 8, 4).transpose(0, 1, 3, 2, 4).reshape(8, 64, 16)
    for w in ws:
        y = jnp.tanh(y @ w)
    return (y**2).mean()


@pytest.mark.skipif(not barriers.keeps_barriers(), reason="the CPU compiler of JAX 0.10 removes barriers")
@pytest.mark.parametrize(
    ("loss", "x", "layer", "share"),
    [
        (normed, (256, 32), [(32, 64), (64, 32), (32,)], 0.5),
        (normed, (256, 32), [(32, 64), (64, 32), (32,)], 0.25),
        (patched, (8, 32, 32), (16, 16), 0.5),
    ],
)
def test_a_plan_compiles_to_what_it_says(loss: Callable[..., Any], x: Any, layer: Any, share: float) -> None:
    is_shape = lambda node: isinstance(node, tuple) and isinstance(node[0], int)
    args = jax.tree.map(jnp.ones, (x, [layer] * 8), is_leaf=is_shape)
    n = len(jax.tree.leaves(args))
    version = Planner(jax.make_jaxpr(loss)(*args)).versions(Pattern((False, *[True] * (n - 1)), (True,))).first
    plan = version.solver.plan(int(share * version.solver.plain.bytes))
    assert plan is not None
    found = temporary_bytes(version.as_outermost(whole(Emitted(version.joint, plan.sequence), n)), version)
    assert found is not None and found <= 1.02 * plan.bytes


@pytest.mark.usefixtures("without_barriers")
def test_random_numbers_are_drawn_again_and_lanes_are_mapped_without_barriers() -> None:
    def loss(x: Any, ws: Any, random: RandomState) -> Any:
        for w in ws:
            x = jnp.tanh(x @ w) * jax.random.bernoulli(random.split(), 0.9, x.shape)
        return (x**2).sum()

    x, ws = jax.random.normal(jax.random.key(1), (3, 64, 16)), [jnp.eye(16) + 0.1] * 4
    alone = lambda f: transform.grad(f, argnums=1)(x[0], ws, RandomState(0))
    mapped = lambda f: jax.jit(jax.vmap(jax.grad(f, 1), (0, None)))(x, ws)
    for f, gradients, size in ((loss, alone, "26 KiB"), (products, mapped, "39 KiB")):
        budget = policies.fit(size, compile=False)
        ours, plain = gradients(transform.checkpoint(f, policy=budget)), gradients(f)
        assert not budget.choices[-1].is_plain  # pyright: ignore[reportAttributeAccessIssue]
        assert jax.tree.all(jax.tree.map(lambda a, b: jnp.allclose(a, b, atol=1e-4), ours, plain))
