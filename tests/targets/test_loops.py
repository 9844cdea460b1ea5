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


def test_a_loop_that_is_run_backwards_needs_the_same_for_any_length(h100: st.Target) -> None:
    n = 1 << 20
    back = st.Reversible(lambda c, _: c / 1.01)
    found = [temporaries(h100, n, back, lambda c, r: c * 1.01 + r * 0, length) for length in (100, 10_000)]
    assert found[0] == found[1] <= 6
