"""A module of flax.nnx with parameters, statistics and random numbers, and how two of a kind are compared."""

from __future__ import annotations

import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

nnx = pytest.importorskip("flax.nnx")

_OPTIONS = inspect.signature(nnx.Variable.__init__).parameters
#: What makes a variable of JAX's high types, and one that is a Ref.
HIJAX = {"hijax" if "hijax" in _OPTIONS else "is_hijax": True}
REF = {"ref" if "ref" in _OPTIONS else "has_ref": True}

X = jnp.linspace(-1, 1, 12).reshape(4, 3)


class Net(nnx.Module):
    def __init__(self) -> None:
        rngs = nnx.Rngs(0)
        self.linear = nnx.Linear(3, 5, rngs=rngs)
        self.norm = nnx.BatchNorm(5, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.calls = nnx.Variable(jnp.zeros(()))

    def __call__(self, x: Any) -> Any:
        self.calls[...] = self.calls[...] + 1
        return jnp.sum(self.dropout(self.norm(self.linear(x))) ** 2)


def arrays(held: Any) -> list[Any]:
    """Of a module, an optimizer or a pytree."""
    found = jax.tree.leaves(nnx.state(held) if isinstance(held, nnx.Module | nnx.Optimizer) else held)
    keys = jax.dtypes.prng_key
    return [np.asarray(jax.random.key_data(x) if jnp.issubdtype(x.dtype, keys) else x) for x in found]


def same(x: Any, y: Any, atol: float = 1e-5) -> None:
    for a, b in zip(arrays(x), arrays(y), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=atol)
