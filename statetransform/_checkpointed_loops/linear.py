"""A linear function with its own transpose, under every transform of JAX.

`jax.custom_derivatives.linear_call` is this without batching and without derivatives in the residuals; a custom VJP
has no forward mode. So a loop's tangent is one equation here: forward mode runs `fun`, reverse mode runs `transpose`,
and neither is traced where the other one is wanted.

The rules of the primitive need `jax.interpreters`, the documented place of the tables of rules, from which this module
alone imports. It is needed until `linear_call` has these rules; a test says when that is so.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend.core as jex
import numpy as np
from jax.interpreters import ad, batching, mlir

Leaves = Sequence[Any]
Rule = Callable[[list[Any], list[Any]], Leaves]


@dataclasses.dataclass(frozen=True, eq=False)
class Linear:
    """A function `fun(residuals, tangents) -> tangents_out`, linear in the tangents, and its transpose.

    All are lists of arrays. `fun` must be differentiable in the residuals.

    Attributes:
      fun: the linear function.
      transpose: `transpose(residuals, cotangents) -> cotangents_in`; a cotangent may be None, for zero.
      out: the abstract values of the outputs.
      n_residuals: how many of the operands are residuals.
    """

    fun: Rule
    transpose: Rule
    out: tuple[Any, ...]
    n_residuals: int

    def __call__(self, residuals: Leaves, tangents: Leaves) -> list[Any]:
        return linear_p.bind(*residuals, *tangents, linear=self)

    def divide(self, operands: Leaves) -> tuple[list[Any], list[Any]]:
        """Residuals and tangents among the operands."""
        return list(operands[: self.n_residuals]), list(operands[self.n_residuals :])


linear_p = jex.Primitive("linear_call")
linear_p.multiple_results = True


@linear_p.def_impl
def _run(*operands: Any, linear: Linear) -> list[Any]:
    return list(linear.fun(*linear.divide(operands)))


@linear_p.def_abstract_eval
def _abstract(*operands: Any, linear: Linear) -> list[Any]:
    del operands
    return list(linear.out)


def _jvp(primals: Leaves, dots: Leaves, *, linear: Linear) -> tuple[list[Any], list[Any]]:
    residuals, tangents = linear.divide(primals)
    dots_residuals, dots_tangents = linear.divide(dots)
    out = linear(residuals, tangents)
    parts = []
    if not all(type(dot) is ad.Zero for dot in dots_tangents):
        parts.append(linear(residuals, [ad.instantiate_zeros(dot) for dot in dots_tangents]))
    moved = [
        i
        for i, dot in enumerate(dots_residuals)
        if type(dot) is not ad.Zero and getattr(dot, "dtype", None) != jax.dtypes.float0
    ]
    if moved:

        def of_moved(values: Leaves) -> list[Any]:
            whole = list(residuals)
            for i, value in zip(moved, values, strict=True):
                whole[i] = value
            return list(linear.fun(whole, tangents))

        parts.append(jax.jvp(of_moved, ([residuals[i] for i in moved],), ([dots_residuals[i] for i in moved],))[1])
    if not parts:
        return out, [ad.Zero(aval) for aval in linear.out]
    return out, parts[0] if len(parts) == 1 else [x + y for x, y in zip(*parts, strict=True)]


def _transpose(cotangents: Leaves, *operands: Any, linear: Linear) -> list[Any]:
    residuals, _ = linear.divide(operands)
    given = [None if type(ct) is ad.Zero else ct for ct in cotangents]
    return [None] * linear.n_residuals + list(linear.transpose(residuals, given))


def _batch(operands: Leaves, axes: Leaves, *, linear: Linear) -> tuple[list[Any], list[int]]:
    (size,) = {np.shape(x)[axis] for x, axis in zip(operands, axes, strict=True) if axis is not None}
    residual_axes, tangent_axes = linear.divide(axes)

    def fun(residuals: list[Any], tangents: list[Any]) -> Leaves:
        return jax.vmap(linear.fun, in_axes=(residual_axes, tangent_axes), axis_size=size)(residuals, tangents)

    def transpose(residuals: list[Any], cotangents: list[Any]) -> Leaves:
        ct_axes = [None if ct is None else 0 for ct in cotangents]
        mapped = jax.vmap(
            linear.transpose, in_axes=(residual_axes, ct_axes), out_axes=[axis or 0 for axis in tangent_axes]
        )
        cts = mapped(residuals, cotangents)
        # All lanes share a tangent that is not mapped, so its cotangent is the sum over them.
        return [ct.sum(0) if axis is None else ct for ct, axis in zip(cts, tangent_axes, strict=True)]

    out = tuple(jex.unmapped_aval(size, 0, aval) for aval in linear.out)
    return Linear(fun, transpose, out, linear.n_residuals)(*linear.divide(operands)), [0] * len(out)


ad.primitive_jvps[linear_p] = _jvp
ad.primitive_transposes[linear_p] = _transpose
batching.primitive_batchers[linear_p] = _batch
mlir.register_lowering(linear_p, mlir.lower_fun(_run, multiple_results=True))
