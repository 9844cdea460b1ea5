"""The errors of flax on the page for troubleshooting (`docs/debugging.md`), each with its cure."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from statetransform import transform

from .modules import nnx


class Counter(nnx.Module):
    def __init__(self) -> None:
        self.n = nnx.Variable(jnp.float32(0.0))

    def step(self, x: Any) -> Any:
        self.n[...] = self.n[...] + x
        return self.n[...] ** 2


def test_a_write_from_a_different_trace_level() -> None:
    counter = Counter()
    with pytest.raises(Exception, match="Cannot mutate Variable from a different trace level") as raised:
        jax.jit(counter.step)(1.0)
    assert type(raised.value).__name__ == "TraceContextError"
    for wrap in (transform.jit, transform.checkpoint, transform.grad):
        wrap(counter.step)(1.0)
    transform.scan(lambda carry, x: (carry, counter.step(x)), None, jnp.ones(2))
    np.testing.assert_allclose(counter.n[...], 5.0)


def test_remat_of_a_bound_method() -> None:
    counter = Counter()
    with pytest.raises(ValueError, match="does not support bound methods"):
        nnx.remat(counter.step)(1.0)
    np.testing.assert_allclose(transform.grad(transform.checkpoint(counter.step))(3.0), 6.0)
    np.testing.assert_allclose(counter.n[...], 3.0)
