"""Programs that lose or spoil state elsewhere: blocks under remat, and stages of a pipeline with state of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import statetransform as st
from statetransform import policies, transform

from .modules import nnx, same

WIDTH, LENGTH, N = 4, 5, 3
TOKENS = jnp.linspace(-1, 1, 2 * LENGTH * WIDTH).reshape(2, LENGTH, WIDTH)


class Block(nnx.Module):
    """A block of a decoder: attention with dropout, a gated layer, and a count of what went through."""

    def __init__(self, rngs: Any) -> None:
        self.norm = nnx.RMSNorm(WIDTH, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(
            num_heads=2, in_features=WIDTH, dropout_rate=0.2, deterministic=False, decode=False, rngs=rngs
        )
        self.gate, self.up = nnx.Linear(WIDTH, 6, rngs=rngs), nnx.Linear(WIDTH, 6, rngs=rngs)
        self.down = nnx.Linear(6, WIDTH, rngs=rngs)
        self.dropout = nnx.Dropout(0.3, rngs=rngs)
        self.seen = nnx.Variable(jnp.zeros(()))

    def __call__(self, x: Any, scale: float) -> Any:
        mask = nnx.make_causal_mask(x[..., 0])
        x = x + self.attention(self.norm(x), mask=mask) * scale
        self.seen[...] = self.seen[...] + 1
        return x + self.dropout(self.down(nnx.silu(self.gate(x)) * self.up(x)))


class Decoder(nnx.Module):
    def __init__(self) -> None:
        rngs = nnx.Rngs(0)
        self.blocks = nnx.List([Block(rngs) for _ in range(N)])

    def run(self, x: Any, wrap: Callable[[Any], Any]) -> Any:
        for block in self.blocks:
            x = wrap(block)(x, 0.5)
        return jnp.mean(x**2)


WRAPS: dict[str, Callable[[Any], Any]] = {
    "checkpoint": transform.checkpoint,
    "a static argument": lambda block: transform.checkpoint(block, static_argnums=1),
    "the method": lambda block: transform.checkpoint(block.__call__),
    "a policy": lambda block: transform.checkpoint(block, policy=policies.dots_saveable),
    "a budget": lambda block: transform.checkpoint(block, policy=policies.fit("2kB", compile=False)),
    "nnx.remat": lambda block: lambda x, scale: nnx.remat(lambda m, x: m(x, scale))(block, x),
}


@pytest.mark.filterwarnings("ignore::statetransform.policies.PolicyWarning")
@pytest.mark.parametrize(("wrap", "is_jitted"), [("checkpoint", False), *((wrap, True) for wrap in WRAPS)])
def test_blocks_under_remat_compute_what_they_compute_without(wrap: str, is_jitted: bool) -> None:
    """The report is https://github.com/google/flax/issues/4626."""
    reference, model = Decoder(), Decoder()
    value, expected = nnx.value_and_grad(lambda m: m.run(TOKENS, lambda block: block))(reference)

    def loss(x: Any) -> Any:
        return model.run(x, WRAPS[wrap])

    step = transform.value_and_grad(loss, states=nnx.state(model, nnx.Param))
    found_value, found = (transform.jit(step) if is_jitted else step)(TOKENS)
    np.testing.assert_allclose(found_value, value, rtol=1e-5)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        # The softmax takes no notice of a key's bias: what its gradient of zero is rounded to depends on the processor.
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)
    same(model, reference)  # the counts of dropout's streams included


class Stage(nnx.Module):
    """A stage of a pipeline, with a weight, and a count that is no parameter."""

    def __init__(self, w: Any) -> None:
        self.w, self.n, self.mean = nnx.Param(w), nnx.Variable(jnp.zeros_like(w)), nnx.BatchStat(jnp.zeros_like(w))

    def __call__(self, x: Any) -> Any:
        self.n[...] = self.n[...] + 1
        self.mean[...] = 0.9 * self.mean[...] + 0.1 * x
        return jnp.tanh(self.w[...] * x)


PIPELINES: dict[str, Callable[[Any], Any]] = {
    "plain": lambda stage: stage,
    "checkpointed": transform.checkpoint,
    "within a budget": lambda stage: transform.checkpoint(stage, policy=policies.fit("1kB", compile=False)),
}


@pytest.mark.filterwarnings("ignore::statetransform.policies.PolicyWarning")
@pytest.mark.parametrize("checkpoint", [None, 2])
@pytest.mark.parametrize("kind", PIPELINES)
def test_stages_of_a_pipeline_keep_what_is_no_parameter(kind: str, checkpoint: int | None) -> None:
    """In https://github.com/AI-Hypercomputer/maxtext/issues/4288 and 4525 the counts stay [0, 0, 0, 0]."""
    n_stages, n_steps = 4, 7
    ws, start = jnp.linspace(0.5, 1.5, n_stages), jnp.linspace(0, 1, n_stages)
    stages = Stage(ws)
    step = transform.vmap(PIPELINES[kind](stages), state_axes=dict.fromkeys(st.states(stages).values(), 0))

    def loss(x: Any) -> Any:
        def body(x: Any, _: Any) -> Any:
            return jnp.roll(step(x), 1), None

        return jnp.sum(transform.scan(body, x, None, length=n_steps, checkpoint=checkpoint)[0] ** 2)

    def by_hand(ws: Any) -> Any:
        x, mean = start, jnp.zeros(n_stages)
        for _ in range(n_steps):
            mean, x = 0.9 * mean + 0.1 * x, jnp.roll(jnp.tanh(ws * x), 1)
        return jnp.sum(x**2), mean

    found = transform.jit(transform.grad(loss, states=stages.w))(start)
    expected, mean = jax.grad(by_hand, has_aux=True)(ws)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(stages.n[...], [n_steps] * n_stages)
    np.testing.assert_allclose(stages.mean[...], mean, rtol=1e-5)
