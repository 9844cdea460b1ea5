"""The gradient of max pooling by elementwise operations.

JAX writes it as `select_and_scatter_add`. XLA expands that to a scatter, with four arrays of integers as large as what
is pooled. They depend on nothing, so that compilers make those of all layers at the start.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

_PLACES = 9  # of a window, up to which its places are written out


def is_unpooled(eqn: Any) -> bool:
    """Whether an equation is the gradient of max pooling that `unpooled` computes."""
    if eqn.primitive.name != "select_and_scatter_add":
        return False
    params = eqn.params
    is_small = math.prod(params["window_dimensions"]) <= _PLACES
    return is_small and params["select_prim"] is lax.ge_p and not any(map(any, params["padding"]))


def unpooled(cotangent: jax.Array, x: jax.Array, window: Sequence[int], strides: Sequence[int]) -> jax.Array:
    """The cotangent of `x`, which was pooled without padding: each window's goes to the first of its largest values."""
    places = list(itertools.product(*map(range, window)))
    ends = [(n - 1) * stride + 1 for n, stride in zip(cotangent.shape, strides, strict=True)]
    parts = [lax.slice(x, at, [*map(sum, zip(at, ends, strict=True))], strides) for at in places]
    largest, found = parts[0], jnp.zeros(cotangent.shape, jnp.int8)
    for k, part in enumerate(parts):
        is_larger = ~(largest >= part)  # as XLA asks, also of what is not a number
        largest, found = jnp.where(is_larger, part, largest), jnp.where(is_larger, k, found)
    total = jnp.zeros_like(x)
    for k, at in enumerate(places):
        rest = [n - end - start for n, end, start in zip(x.shape, ends, at, strict=True)]
        spread = list(zip(at, rest, [stride - 1 for stride in strides], strict=True))
        total += lax.pad(jnp.where(found == k, cotangent, 0), jnp.zeros((), x.dtype), spread)
    return total
