"""An error of JAX on the page for troubleshooting that no doctest can show, with its cure."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from statetransform import State, transform


def test_a_gradient_that_runs_out_of_memory_fits_with_few_carries() -> None:
    """2**30 steps of 4 MB: more than any machine has, so that none of them runs."""
    start = jnp.ones(2**20)
    u = State(start, name="u")

    def loss(x: Any, checkpoint: int | None) -> Any:
        def step() -> None:
            u.value = jnp.sin(u.value * x)

        transform.for_loop(step, length=2**30, checkpoint=checkpoint)
        return u.value.sum()

    with pytest.raises(jax.errors.JaxRuntimeError, match="RESOURCE_EXHAUSTED: Out of memory"):
        jax.block_until_ready(transform.jit(transform.grad(lambda x: loss(x, None)))(1.0))
    u.value = start  # the call had returned when the program failed
    compiled = transform.jit(transform.grad(lambda x: loss(x, 20))).lower(1.0).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 30 * start.nbytes
