"""An estimate of the arithmetic that a jaxpr does.

Counted as in the usual conventions: a multiply-add is two operations, an elementwise operation one per element of its
output, a reduction one per element of its input, and moving data nothing. Unlike the compiler's own count,
a loop counts as often as it runs. Of a conditional's branches the most expensive one counts.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from .._core.jaxcompat import opened
from .counts import count_of
from .walk import inner_jaxprs

# Moving, renaming, comparing shapes: no arithmetic.
# fmt: off
FREE = frozenset((
    "broadcast_in_dim", "reshape", "squeeze", "expand_dims", "transpose", "rev", "slice", "dynamic_slice",
    "dynamic_update_slice", "gather", "concatenate", "pad", "copy", "copy_p", "device_put", "convert_element_type",
    "bitcast_convert_type", "iota", "stop_gradient", "name", "optimization_barrier", "split", "random_wrap",
    "random_unwrap", "random_seed", "random_fold_in", "random_split", "empty", "empty2", "sharding_constraint",
    "layout_constraint", "reduce_precision", "create_token", "after_all", "debug_callback", "pvary",
    "mutable_array", "ref", "get", "swap", "call_hi_primitive", "select_n", "scatter", "full", "real", "imag",
))
# fmt: on
# fmt: off
_REDUCTIONS = (
    "reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or", "reduce_xor", "argmax",
    "argmin", "scatter-add", "scatter_add", "cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp",
    "reduce_window_sum", "reduce_window_max", "reduce_window",
)
# fmt: on


class Flops(NamedTuple):
    """An operation count, and whether every loop in it has a known length."""

    operations: int
    bounded: bool = True


def _size(aval: Any) -> int:
    try:
        return math.prod(int(d) for d in aval.shape)
    except (AttributeError, TypeError):
        return 0


def _dot_general(eqn: Any) -> int:
    (contracting, _), _ = eqn.params["dimension_numbers"]
    lhs = eqn.invars[0].aval.shape
    return 2 * _size(eqn.outvars[0].aval) * math.prod(lhs[d] for d in contracting)


def _convolution(eqn: Any) -> int:
    kernel = eqn.invars[1].aval.shape
    out_features, in_features, *spatial = eqn.params["dimension_numbers"].rhs_spec
    del out_features
    # The kernel's input dimension is already divided by the number of feature groups.
    per_output = kernel[in_features] * math.prod(kernel[d] for d in spatial)
    return 2 * _size(eqn.outvars[0].aval) * per_output


def _linear_algebra(eqn: Any) -> int:
    *batch, rows, columns = eqn.invars[0].aval.shape
    batch_size, small = math.prod(batch), min(rows, columns)
    name = eqn.primitive.name
    if name == "triangular_solve":
        return batch_size * rows * _size(eqn.invars[1].aval) // max(1, batch_size)
    factor = {"cholesky": 1 / 3, "lu": 2 / 3, "geqrf": 4 / 3, "qr": 4 / 3, "eigh": 9, "svd": 12, "eig": 25}
    return int(factor[name] * batch_size * rows * columns * small)


def _fft(eqn: Any) -> int:
    points = math.prod(eqn.params["fft_lengths"])
    return int(5 * _size(eqn.invars[0].aval) * max(1.0, math.log2(max(points, 2))))


def _sort(eqn: Any) -> int:
    aval = eqn.invars[0].aval
    length = aval.shape[eqn.params["dimension"]] if aval.shape else 1
    return int(_size(aval) * max(1.0, math.log2(max(length, 2))))


_RULES = {
    "dot_general": _dot_general,
    "conv_general_dilated": _convolution,
    "fft": _fft,
    "sort": _sort,
    "integer_pow": lambda eqn: _size(eqn.outvars[0].aval) * abs(eqn.params["y"]).bit_length(),
    **dict.fromkeys(("cholesky", "lu", "geqrf", "qr", "eigh", "svd", "eig", "triangular_solve"), _linear_algebra),
    **dict.fromkeys(_REDUCTIONS, lambda eqn: _size(eqn.invars[0].aval)),
}


def equation_flops(eqn: Any) -> int:
    """The operations of one equation that has no jaxpr inside it.

    >>> import jax, jax.numpy as jnp
    >>> jaxpr = jax.make_jaxpr(jnp.dot)(jnp.ones((2, 3)), jnp.ones((3, 5)))
    >>> equation_flops(jaxpr.jaxpr.eqns[0])
    60
    """
    name = eqn.primitive.name
    if name in FREE:
        return 0
    rule = _RULES.get(name)
    if rule is not None:
        return rule(eqn)
    return sum(_size(v.aval) for v in eqn.outvars)


def jaxpr_flops(jaxpr: Any, with_recomputation: bool = True) -> Flops:
    """The operations of a whole jaxpr, loops counted as often as they run.

    A ``while`` loop of unknown length counts once and makes ``bounded`` false. Without recomputation, the steps that
    the sweeps of a checkpointed loop take again are left out.

    >>> import jax, jax.numpy as jnp
    >>> f = lambda x: jax.lax.fori_loop(0, 10, lambda i, x: jnp.sin(x), x)
    >>> jaxpr_flops(jax.make_jaxpr(f)(jnp.ones(100)))
    Flops(operations=1010, bounded=True)
    """
    total, bounded = 0.0, True
    for eqn in opened(jaxpr).eqns:
        count = count_of(eqn)
        if count is not None and count.is_recomputation and not with_recomputation:
            continue
        inner = [(jaxpr_flops(i.jaxpr, with_recomputation), i) for i in inner_jaxprs(eqn)]
        if not inner:
            total += equation_flops(eqn)
            continue
        unknown = None if count is None else count.times
        repeats = [unknown if i.repeats is None else i.repeats for _, i in inner]
        counts = [flops.operations * (1 if n is None else n) for (flops, _), n in zip(inner, repeats, strict=True)]
        total += max(counts) if eqn.primitive.name == "cond" else sum(counts)
        bounded &= all(flops.bounded for flops, _ in inner) and None not in repeats
    return Flops(round(total), bounded)
