"""Lists of arrays, which is all that the sweeps work on, and the arrays with a leading axis that they are kept in.

The leading axis is never sharded; the others are as in the arrays that are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from ..._jax import zeros

Leaves = list[Any]
Index = Any  # an int32 scalar


def take(arrays: Leaves, i: Index) -> Leaves:
    """The `i`-th slices."""
    return [lax.dynamic_index_in_dim(x, i, 0, keepdims=False) for x in arrays]


def put(arrays: Leaves, i: Index, slices: Leaves) -> Leaves:
    """With the `i`-th slices replaced."""
    return [lax.dynamic_update_index_in_dim(x, y, i, 0) for x, y in zip(arrays, slices, strict=True)]


def empty(n: int, avals: Sequence[Any]) -> Leaves:
    """Room for `n` of each: zeros of shape `[n, *aval.shape]`."""
    return [zeros(aval, (n,)) for aval in avals]


def empty_rows(n: int, avals: Sequence[Any]) -> Leaves:
    """Room for `n` of each in rows, which `read_row` and `write_row` read and write.

    A vector is a matrix of one row there: a TPU pads the last but one axis of an array, of all vectors together, to
    eight, so that nine of them would take the room of sixteen.
    """
    return [zeros(aval, (n, 1) if len(aval.shape) == 1 else (n,)) for aval in avals]


def read_row(arrays: Leaves, i: Index, like: Sequence[Any]) -> Leaves:
    """What is in the `i`-th row, `like` being of the same rank."""
    pairs = zip(take(arrays, i), like, strict=True)
    return [lax.squeeze(x, (0,)) if len(y.shape) == 1 else x for x, y in pairs]


def write_row(arrays: Leaves, i: Index, values: Leaves) -> Leaves:
    """With the `i`-th row replaced."""
    return put(arrays, i, [as_row(x) for x in values])


def as_row(x: Any) -> Any:
    """An array as it is in a row."""
    return lax.expand_dims(x, (0,)) if x.ndim == 1 else x


def pick(leaves: Sequence[Any], mask: Sequence[bool]) -> Leaves:
    """The leaves for which the mask is true."""
    return [x for x, marked in zip(leaves, mask, strict=True) if marked]


def merge(leaves: Sequence[Any], mask: Sequence[bool], picked: Sequence[Any]) -> Leaves:
    """The reverse of `pick`: the leaves, with the picked ones, in order, where the mask is true."""
    rest = iter(picked)
    return [next(rest) if marked else x for x, marked in zip(leaves, mask, strict=True)]


def select(condition: Any, new: Sequence[Any], old: Sequence[Any]) -> Leaves:
    """The new arrays where the condition holds, else the old ones."""
    return [jnp.where(condition, x, y) for x, y in zip(new, old, strict=True)]
