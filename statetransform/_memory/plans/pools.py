"""The gradient of max pooling by elementwise operations.

JAX writes it as `select_and_scatter_add`. XLA expands that to a scatter, with four arrays of integers as large as what
is pooled. They depend on nothing, so that compilers make those of all layers at the start.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

_PLACES = 9  # of a window, up to which its places are written out


def is_unpooled(eqn: Any) -> bool:
    """Whether an equation is the gradient of max pooling that `unpooled` computes."""
    if eqn.primitive.name != "select_and_scatter_add" or eqn.params["select_prim"] is not lax.ge_p:
        return False
    window, strides, padding = _windows(eqn.params)
    shapes = zip(*(var.aval.shape for var in eqn.invars), strict=True)
    # The place just behind the padding is in `x` for all windows: it is the one where nothing is larger than another.
    of_x = zip(window, strides, padding, shapes, strict=True)
    is_inside = all(low < size and (n - 1) * stride < whole for size, stride, (low, _), (n, whole) in of_x)
    return is_inside and math.prod(window) <= _PLACES


def unpooled(params: Any, cotangent: jax.Array, x: jax.Array) -> jax.Array:
    """The cotangent of `x`, which was pooled: that of each window goes to the first of its largest values.

    Args:
      params: of the equation.
      cotangent: that of the result.
      x: what was pooled.
    """
    window, strides, padding = _windows(params)
    places = list(itertools.product(*map(range, window)))
    lows, highs = zip(*padding, strict=True)
    lowest = jnp.array(-jnp.inf, x.dtype)
    padded = lax.pad(x, lowest, [(low, high, 0) for low, high in padding]) if any(lows + highs) else x
    ends = [(n - 1) * stride + 1 for n, stride in zip(cotangent.shape, strides, strict=True)]
    parts = [lax.slice(padded, at, [*map(sum, zip(at, ends, strict=True))], strides) for at in places]
    largest = jnp.full_like(cotangent, lowest)
    found = jnp.full_like(cotangent, places.index(lows), jnp.int8)
    for k, part in enumerate(parts):
        is_larger = ~(largest >= part)  # as XLA asks, also of what is not a number
        largest, found = jnp.where(is_larger, part, largest), jnp.where(is_larger, k, found)
    total = jnp.zeros_like(x)
    for k, at in enumerate(places):
        starts = [start - low for start, low in zip(at, lows, strict=True)]
        rest = [n - end - start for n, end, start in zip(x.shape, ends, starts, strict=True)]
        spread = list(zip(starts, rest, [stride - 1 for stride in strides], strict=True))
        total += lax.pad(jnp.where(found == k, cotangent, 0), jnp.zeros((), x.dtype), spread)
    return total


def _windows(params: Any) -> tuple[Any, Any, Any]:
    return params["window_dimensions"], params["window_strides"], params["padding"]
