"""Lists of arrays, which is all that the sweeps work on, and the arrays with a leading axis that they are kept in.

The leading axis is never sharded; the others are as in the arrays that are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
from jax import lax

from .._jaxcompat import typeof, zeros

Leaves = list[Any]
Index = Any  # an int32 scalar


def is_differentiable(x: Any) -> bool:
    """Whether a leaf has tangents of its own type."""
    return jnp.issubdtype(x.dtype if hasattr(x, "dtype") else jnp.result_type(x), jnp.inexact)


def slice_type(x: Any) -> Any:
    """The abstract value of a step's slice of an array."""
    aval = typeof(x)
    return jex.mapped_aval(aval.shape[0], 0, aval)


def take(arrays: Leaves, i: Index) -> Leaves:
    """The `i`-th slices."""
    return [lax.dynamic_index_in_dim(x, i, 0, keepdims=False) for x in arrays]


def put(arrays: Leaves, i: Index, slices: Leaves) -> Leaves:
    """With the `i`-th slices replaced."""
    return [lax.dynamic_update_index_in_dim(x, y, i, 0) for x, y in zip(arrays, slices, strict=True)]


def empty(n: int, avals: Sequence[Any]) -> Leaves:
    """Room for `n` of each: zeros of shape `[n, *aval.shape]`."""
    return [zeros(aval, (n,)) for aval in avals]


def pick(leaves: Sequence[Any], mask: Sequence[bool]) -> Leaves:
    """Those with a mark."""
    return [x for x, marked in zip(leaves, mask, strict=True) if marked]


def merge(leaves: Sequence[Any], mask: Sequence[bool], picked: Sequence[Any]) -> Leaves:
    """With those with a mark replaced."""
    rest = iter(picked)
    return [next(rest) if marked else x for x, marked in zip(leaves, mask, strict=True)]


def select(condition: Any, new: Sequence[Any], old: Sequence[Any]) -> Leaves:
    """The new arrays where the condition holds, else the old ones."""
    return [jnp.where(condition, x, y) for x, y in zip(new, old, strict=True)]


def zeros_like(x: Any) -> Any:
    """Zeros in the kind of memory that `x` is in; :func:`jax.numpy.zeros_like` fails for host memory."""
    space = typeof(x).memory_space
    if space != jax.memory.Space.Host:
        return jnp.zeros_like(x)
    return jax.device_put(zeros(typeof(x)), space)


def zero_tangent(x: Any) -> Any:
    """The zero among the tangents of `x`."""
    return zeros_like(x) if is_differentiable(x) else np.zeros(np.shape(x), jax.dtypes.float0)
