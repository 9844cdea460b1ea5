"""A linear function with its own transpose, under every transform of JAX.

`jax.custom_derivatives.linear_call` is this without batching and without derivatives in the residuals; a custom VJP
has no forward mode. So a loop's tangent is one equation here: forward mode runs `fun`, reverse mode runs `transpose`,
and neither is traced where the other one is wanted.

It is needed until `linear_call` has these rules; tests/project says when that is so.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp

from .._core.jaxcompat import define
from .leaves import merge, pick

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


def _run(*operands: Any, linear: Linear) -> list[Any]:
    return list(linear.fun(*linear.divide(operands)))


def _types(*operands: Any, linear: Linear) -> list[Any]:
    del operands
    return list(linear.out)


def _jvp(primals: Leaves, dots: Leaves, *, linear: Linear) -> tuple[list[Any], list[Any]]:
    residuals, tangents = linear.divide(primals)
    dots_residuals, dots_tangents = linear.divide(dots)
    out = linear(residuals, tangents)
    parts = []
    if not all(dot is None for dot in dots_tangents):
        whole = [jnp.zeros_like(x) if dot is None else dot for x, dot in zip(tangents, dots_tangents, strict=True)]
        parts.append(linear(residuals, whole))
    is_moving = [dot is not None for dot in dots_residuals]
    if any(is_moving):
        of_moved = lambda values: list(linear.fun(merge(residuals, is_moving, values), tangents))
        parts.append(jax.jvp(of_moved, (pick(residuals, is_moving),), (pick(dots_residuals, is_moving),))[1])
    if not parts:
        return out, [None] * len(out)
    return out, parts[0] if len(parts) == 1 else [x + y for x, y in zip(*parts, strict=True)]


def _transpose(cotangents: Leaves, *operands: Any, linear: Linear) -> list[Any]:
    residuals, _ = linear.divide(operands)
    return [None] * linear.n_residuals + list(linear.transpose(residuals, list(cotangents)))


def _batch(
    lanes: dict[str, Any], typed: Callable[[Any], Any], operands: Leaves, axes: Leaves, *, linear: Linear
) -> tuple[list[Any], list[int]]:
    residual_axes, tangent_axes = linear.divide(axes)

    def fun(residuals: list[Any], tangents: list[Any]) -> Leaves:
        return jax.vmap(linear.fun, in_axes=(residual_axes, tangent_axes), **lanes)(residuals, tangents)

    def transpose(residuals: list[Any], cotangents: list[Any]) -> Leaves:
        ct_axes = [None if ct is None else 0 for ct in cotangents]
        in_axes, out_axes = (residual_axes, ct_axes), [axis or 0 for axis in tangent_axes]
        cts = jax.vmap(linear.transpose, in_axes=in_axes, out_axes=out_axes, **lanes)(residuals, cotangents)
        # All lanes share a tangent that is not mapped, so its cotangent is the sum over them.
        return [ct.sum(0) if axis is None else ct for ct, axis in zip(cts, tangent_axes, strict=True)]

    out = tuple(typed(aval) for aval in linear.out)
    return Linear(fun, transpose, out, linear.n_residuals)(*linear.divide(operands)), [0] * len(out)


define(linear_p, run=_run, types=_types, jvp=_jvp, transpose=_transpose, batch=_batch)
