"""The gradient of what picks one number of each row, by elementwise operations.

`jnp.take_along_axis` picks the logits of the labels in a cross entropy. JAX writes its gradient as a scatter into
zeros, and compilers hold that array, which is as large as the logits. A comparison with the labels is fused with what
reads it.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp
from jax import lax

from ... import _jax
from ..programs.rewrite import rewrite
from ..programs.sizes import local_shape


def without_scatters(flat: Any) -> Any:
    """A closed jaxpr in which what `take_along_axis` picked one of is compared, not scattered; not within loops."""
    fills, found = set[Any](), set[Any]()
    for eqn in _jax.opened(flat).eqns:
        atom = eqn.invars[0] if eqn.invars else None
        if eqn.primitive.name == "broadcast_in_dim" and isinstance(atom, jex.Literal) and atom.val == 0:
            fills.update(eqn.outvars)
        elif _is_of_one(eqn) and atom in fills:
            found.update(eqn.outvars)
    pick = lambda eqn, inputs, _: [_compared(eqn, *inputs)] if found.issuperset(eqn.outvars or [None]) else None
    return rewrite(flat, pick) if found else flat


def _is_of_one(eqn: Any) -> bool:
    """Whether an equation adds one number to each row of an array on one device."""
    if eqn.primitive.name != "scatter-add":
        return False
    dims, aval = eqn.params["dimension_numbers"], eqn.invars[0].aval
    picked = dims.inserted_window_dims
    if len(picked) != 1 or dims.scatter_dims_to_operand_dims != picked or dims.update_window_dims:
        return False
    others = tuple(axis for axis in range(aval.ndim) if axis not in picked)
    is_in_order = dims.operand_batching_dims == dims.scatter_indices_batching_dims == others
    one = tuple(1 if axis in picked else size for axis, size in enumerate(aval.shape))
    is_one = eqn.invars[2].aval.shape == one and eqn.invars[1].aval.shape == (*one, 1)
    return is_in_order and is_one and local_shape(aval) == aval.shape


def _compared(eqn: Any, zeros: jax.Array, indices: jax.Array, updates: jax.Array) -> jax.Array:
    """What the scatter makes: the numbers where they were picked, and zeros elsewhere."""
    (axis,), shape = eqn.params["dimension_numbers"].inserted_window_dims, zeros.shape
    dtype = jnp.promote_types(indices.dtype, jnp.int32)
    index = lax.convert_element_type(lax.reshape(indices, updates.shape), dtype)
    if eqn.params["mode"] == lax.GatherScatterMode.CLIP:
        index = lax.clamp(dtype.type(0), index, dtype.type(shape[axis] - 1))
    along = lambda row: lax.broadcast_in_dim(row, shape, range(len(shape)))
    return lax.select(lax.eq(lax.broadcasted_iota(dtype, shape, axis), along(index)), along(updates), zeros)
