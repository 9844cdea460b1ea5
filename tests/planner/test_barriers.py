"""Both ways to keep the order of a plan: barriers, and loops for compilers that remove these."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from statetransform import RandomState, policies, transform

# What JAX 0.10 needs on the CPU is tested with newer releases as well.
from statetransform._memory.plans import barriers, emit

from .compilers import KEEPS_BARRIERS


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
    args = jnp.ones((256, 32)), [jnp.ones((32, 64)) / 9] * 12
    compiled = lambda f: jax.jit(jax.value_and_grad(f, argnums=1)).lower(*args).compile()
    size = lambda program: program.memory_analysis().temp_size_in_bytes
    plain = compiled(loss)
    budget = policies.fit(int(share * size(plain)), compile=False)
    within = compiled(transform.checkpoint(loss, policy=budget))
    assert size(within) <= 1.15 * budget.choices[-1].planned_bytes  # pyright: ignore[reportAttributeAccessIssue]
    assert not budget.choices[-1].is_plain  # pyright: ignore[reportAttributeAccessIssue]
    assert jax.tree.all(jax.tree.map(lambda a, b: jnp.allclose(a, b, atol=1e-6), within(*args), plain(*args)))


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


@pytest.mark.skipif(not KEEPS_BARRIERS, reason="the CPU compiler of JAX 0.10 removes barriers")
def test_what_small_products_are_made_of_waits_for_them() -> None:
    def loss(ws: Any, x: Any) -> Any:
        """A network over time: GPUs merge all products with its last weights, and hold all that goes in."""
        total = jnp.zeros((64, 4))
        for _ in range(5):
            x = jnp.tanh(x @ ws[0])
            total = total + x @ ws[1]
        return (jax.nn.softmax(total) ** 2).sum()

    ws, x = (jnp.ones((16, 16)), jnp.ones((16, 4))), jnp.ones((64, 16))
    f = transform.checkpoint(loss, policy=policies.fit("16KiB", compile=False))
    lines = jax.jit(jax.grad(f)).lower(ws, x).as_text().splitlines()
    assert sum(line.endswith(": tensor<64x4xf32>, tensor<64x16xf32>") for line in lines) == 4  # all but the last one
