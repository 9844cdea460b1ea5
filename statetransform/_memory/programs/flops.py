"""An estimate of the arithmetic that a jaxpr does.

Counted as in the usual conventions: a multiply-add is two operations, an elementwise operation one per element of its
output, a reduction one per element of its input, and moving data nothing. Unlike the compiler's own count,
a loop counts as often as it runs. Of a conditional's branches the most expensive one counts.
"""

from __future__ import annotations

import math
from typing import Any

from ..._jax import opened
from .primitives import FREE, Kind, kind_of
from .sizes import elements
from .step_counts import count_of
from .walk import inner_jaxprs


def _dot_general(eqn: Any) -> int:
    (contracting, _), _ = eqn.params["dimension_numbers"]
    lhs = eqn.invars[0].aval.shape
    return 2 * elements(eqn.outvars[0].aval) * math.prod(lhs[d] for d in contracting)


def _convolution(eqn: Any) -> int:
    kernel = eqn.invars[1].aval.shape
    _, in_features, *spatial = eqn.params["dimension_numbers"].rhs_spec
    # The kernel's input dimension is already divided by the number of feature groups.
    per_output = kernel[in_features] * math.prod(kernel[d] for d in spatial)
    return 2 * elements(eqn.outvars[0].aval) * per_output


def _linear_algebra(eqn: Any) -> int:
    *batch, rows, columns = eqn.invars[0].aval.shape
    batch_size, small = math.prod(batch), min(rows, columns)
    name = eqn.primitive.name
    if name == "triangular_solve":
        return batch_size * rows * elements(eqn.invars[1].aval) // max(1, batch_size)
    factor = {"cholesky": 1 / 3, "lu": 2 / 3, "geqrf": 4 / 3, "qr": 4 / 3, "eigh": 9, "svd": 12, "eig": 25}
    return int(factor[name] * batch_size * rows * columns * small)


def _fft(eqn: Any) -> int:
    points = math.prod(eqn.params["fft_lengths"])
    return int(5 * elements(eqn.invars[0].aval) * max(1.0, math.log2(max(points, 2))))


def _sort(eqn: Any) -> int:
    aval = eqn.invars[0].aval
    length = aval.shape[eqn.params["dimension"]] if aval.shape else 1
    return int(elements(aval) * max(1.0, math.log2(max(length, 2))))


_RULES = {
    "dot_general": _dot_general,
    "conv_general_dilated": _convolution,
    "fft": _fft,
    "sort": _sort,
    "integer_pow": lambda eqn: elements(eqn.outvars[0].aval) * abs(eqn.params["y"]).bit_length(),
    **dict.fromkeys(("cholesky", "lu", "geqrf", "qr", "eigh", "svd", "eig", "triangular_solve"), _linear_algebra),
}


def equation_flops(eqn: Any) -> int:
    """The operations of one equation that has no jaxpr inside it.

    >>> import jax, jax.numpy as jnp
    >>> jaxpr = jax.make_jaxpr(jnp.dot)(jnp.ones((2, 3)), jnp.ones((3, 5)))
    >>> equation_flops(jaxpr.jaxpr.eqns[0])
    60
    """
    kind, rule = kind_of(eqn), _RULES.get(eqn.primitive.name)
    if kind in FREE:
        return 0
    if rule is not None:
        return rule(eqn)
    if kind in (Kind.REDUCTION, Kind.CUMULATIVE):
        return elements(eqn.invars[0].aval)
    return sum(elements(v.aval) for v in eqn.outvars)


def jaxpr_flops(jaxpr: Any, with_recomputation: bool = True) -> int:
    """The operations of a whole jaxpr, loops counted as often as they run, or once where that is not known.

    Without recomputation, the steps that the sweeps of a checkpointed loop take again are left out.

    >>> import jax, jax.numpy as jnp
    >>> f = lambda x: jax.lax.fori_loop(0, 10, lambda i, x: jnp.sin(x), x)
    >>> jaxpr_flops(jax.make_jaxpr(f)(jnp.ones(100)))
    1010
    """
    total = 0.0
    for eqn in opened(jaxpr).eqns:
        count = count_of(eqn)
        if count is not None and count.is_recomputation and not with_recomputation:
            continue
        times = 1 if count is None else count.times  # of a loop whose length is not known
        counts = [
            jaxpr_flops(inner.jaxpr, with_recomputation) * (times if inner.repeats is None else inner.repeats)
            for inner in inner_jaxprs(eqn)
        ]
        if not counts:
            total += equation_flops(eqn)
        else:
            total += max(counts) if kind_of(eqn) is Kind.BRANCH else sum(counts)
    return round(total)
