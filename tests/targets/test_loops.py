"""Loops within a budget, as the compilers of a GPU and of a TPU see them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import statetransform as st
from statetransform import transform
from statetransform._memory.targets import compile_for


def stencil(c: Any, r: Any) -> Any:
    return jnp.sin(c + 0.1 * (jnp.roll(c, 1) + jnp.roll(c, -1) - 2 * c)) * r


def temporaries(card: st.Target, n: int, checkpoint: Any, step: Any = stencil, length: int = 400) -> float:
    """Of the gradient as compiled, in carries of `n` numbers."""

    def loss(r: Any, u: Any) -> Any:
        return (transform.scan(lambda c, _: (step(c, r), None), u, None, length, checkpoint=checkpoint)[0] ** 2).sum()

    avals = jax.ShapeDtypeStruct((), jnp.float32), jax.ShapeDtypeStruct((n,), jnp.float32)
    found = compile_for(card, lambda r, u: list(jax.value_and_grad(loss)(r, u)), avals)
    assert found.temporary is not None
    return found.temporary / (4 * n)


@pytest.mark.parametrize("carries", [12, 24, 48])
def test_a_budget_of_a_loop_is_kept_on_a_gpu(h100: st.Target, carries: int) -> None:
    n = 1 << 20
    budget = st.MemoryBudget(carries * 4 * n, target=h100)
    assert 0.75 * carries <= temporaries(h100, n, budget) <= 1.03 * carries


def test_a_budget_of_a_loop_is_kept_on_a_tpu(v5e: st.Target) -> None:
    n = 1 << 25  # smaller arrays are kept on the chip, and not counted
    assert temporaries(v5e, n, st.MemoryBudget(24 * 4 * n, target=v5e)) <= 1.03 * 24


def test_vectors_fill_no_tiles_with_nothing(v5e: st.Target) -> None:
    n = 1 << 25
    assert temporaries(v5e, n, 7, lambda c, r: r * c * (1 - c)) <= 7 + 8


def test_a_loop_that_is_run_backwards_needs_the_same_for_any_length(card: st.Target) -> None:
    n = 1 << (25 if card.platform == "tpu" else 20)

    def swing(carry: Any, r: Any) -> Any:
        angle, speed = carry
        speed = speed - 0.01 * jnp.sin(angle) * r
        return angle + 0.01 * speed, speed

    def back(carry: Any, r: Any) -> Any:
        angle = carry[0] - 0.01 * carry[1]
        return angle, carry[1] + 0.01 * jnp.sin(angle) * r

    def needed(length: int) -> float:
        def loss(r: Any, u: Any) -> Any:
            undo = st.Reversible(lambda c, _: back(c, r))
            carry, _ = transform.scan(lambda c, _: (swing(c, r), None), (u, u), None, length, checkpoint=undo)
            return (carry[0] ** 2).sum()

        avals = jax.ShapeDtypeStruct((), jnp.float32), jax.ShapeDtypeStruct((n,), jnp.float32)
        found = compile_for(card, lambda r, u: list(jax.value_and_grad(loss)(r, u)), avals)
        assert found.temporary is not None
        return found.temporary / (4 * n)

    assert needed(100) == needed(10_000) <= 2 * 5
