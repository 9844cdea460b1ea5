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

from ..._jax import define, is_batched, take_current_trace
from .arrays import merge, pick

Leaves = Sequence[Any]
Rule = Callable[[list[Any], list[Any]], Leaves]


@dataclasses.dataclass(frozen=True, eq=False)
class Linear:
    """A function `fun(residuals, tangents) -> tangents_out`, linear in the tangents, and its transpose.

    All are lists of arrays. `fun` must be differentiable in the residuals.

    Attributes:
      fun: the linear function.
      transpose: `transpose(residuals, cotangents) -> cotangents_in`; None for zero, in and out.
      out: the abstract values of the outputs.
      n_residuals: how many of the operands are residuals.
      like: a function whose outputs depend on the operands as those of `fun` do, or on more of them; None for `fun`.
    """

    fun: Rule
    transpose: Rule
    out: tuple[Any, ...]
    n_residuals: int
    like: Rule | None = None

    def __call__(self, residuals: Leaves, tangents: Leaves) -> list[Any]:
        return linear_p.bind(*residuals, *tangents, linear=self)

    def divide(self, operands: Leaves) -> tuple[list[Any], list[Any]]:
        """Residuals and tangents among the operands."""
        return list(operands[: self.n_residuals]), list(operands[self.n_residuals :])


linear_p = jex.Primitive("linear_call")


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


def _batch(
    lanes: dict[str, Any], typed: Callable[[Any], Any], operands: Leaves, axes: Leaves, *, linear: Linear
) -> tuple[list[Any], list[int | None]]:
    residual_axes, tangent_axes = linear.divide(axes)
    differs = _differing(lanes, typed, operands, axes, linear)
    result_axes = [0 if differ else None for differ in differs]

    def fun(residuals: list[Any], tangents: list[Any]) -> Leaves:
        in_axes = (residual_axes, tangent_axes)
        return jax.vmap(linear.fun, in_axes=in_axes, out_axes=result_axes, **lanes)(residuals, tangents)

    def transpose(residuals: list[Any], cotangents: list[Any]) -> Leaves:
        ct_axes = [None if ct is None else axis for ct, axis in zip(cotangents, result_axes, strict=True)]
        is_shared = [ct is not None and axis is None for ct, axis in zip(cotangents, ct_axes, strict=True)]
        # The cotangent of what all lanes share counts once, so it goes to the first of them.
        is_first = jnp.arange(lanes["axis_size"]) == 0 if any(is_shared) else None

        def of_lane(residuals: list[Any], cotangents: list[Any], is_first: Any) -> Leaves:
            once = lambda ct: jnp.where(is_first, ct, jnp.zeros_like(ct))
            cts = [once(ct) if shared else ct for ct, shared in zip(cotangents, is_shared, strict=True)]
            return linear.transpose(residuals, cts)

        in_axes, out_axes = (residual_axes, ct_axes, 0), [axis or 0 for axis in tangent_axes]
        cts = jax.vmap(of_lane, in_axes=in_axes, out_axes=out_axes, **lanes)(residuals, cotangents, is_first)
        # All lanes share a tangent that is not mapped, so its cotangent is the sum over them.
        return [ct if ct is None or axis is not None else ct.sum(0) for ct, axis in zip(cts, tangent_axes, strict=True)]

    def like(residuals: list[Any], tangents: list[Any]) -> Leaves:
        in_axes = (residual_axes, tangent_axes)
        return jax.vmap(linear.like or linear.fun, in_axes=in_axes, **lanes)(residuals, tangents)

    out = tuple(typed(aval) if differ else aval for aval, differ in zip(linear.out, differs, strict=True))
    return Linear(fun, transpose, out, linear.n_residuals, like)(*linear.divide(operands)), result_axes


def _differing(
    lanes: dict[str, Any], typed: Callable[[Any], Any], operands: Leaves, axes: Leaves, linear: Linear
) -> list[bool]:
    """Which outputs differ between the lanes.

    A loop over a shared value has a shared tangent. If the tangent had a part for each lane where the primal has none,
    JAX would give the primal the lanes, too, or leave the two with different shapes. Reverse mode comes here as well,
    so nothing is pushed forward where there is `like`: `fun` may contain a rule for reverse mode only.
    """
    is_sharded = any(typed(aval).sharding.spec[0] is not None for aval in linear.out)
    if is_sharded or None not in axes:
        return [True] * len(linear.out)
    found: list[bool] = []

    def look(*operands: Any) -> None:
        out = (linear.like or linear.fun)(*linear.divide(operands))
        with take_current_trace() as trace:
            found.extend(is_batched(y, trace) for y in out)

    jax.eval_shape(jax.vmap(look, in_axes=tuple(axes), **lanes), *operands)
    return found


define(
    linear_p,
    run=lambda *operands, linear: list(linear.fun(*linear.divide(operands))),
    types=lambda *operands, linear: list(linear.out),
    jvp=_jvp,
    transpose=lambda cts, *operands, linear: (
        [None] * linear.n_residuals + list(linear.transpose(linear.divide(operands)[0], list(cts)))
    ),
    batch=_batch,
)
