"""A call of a function under a byte budget: it is traced, and what its gradient keeps is planned (`differentiate`).

Where a gradient is around lanes of `vmap`, these become a part of the function: what they share has one gradient.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp

from ... import _jax
from ..context import Context, Lanes
from ..loops.arrays import merge, pick
from ..loops.budget import MemoryBudget
from ..loops.others import with_reverse_mode
from ..programs.references import made_in
from ..programs.walk import backward_slice
from .constants import Constants
from .cost import operations
from .differentiate import Budgeted, Leaves

_PARTS = 0.01  # of the work of a loss, which its parts may take besides: what a plan may have too much of it


def planned(program: Any, budget: MemoryBudget, context: Context) -> Callable[..., list[Any]]:
    """A closed jaxpr as a function of its inputs whose gradient keeps its intermediates within a budget.

    Args:
      program: the closed jaxpr.
      budget: the budget, which records what is chosen.
      context: what is around the call.

    Returns:
      The function, with the same values and derivatives.
    """
    name, _ = _jax.function_of(program)

    def call(*inputs: Any) -> list[Any]:
        closed = with_reverse_mode(program, max(budget.bytes // context.lanes.count, 1))
        body, consts = _jax.without_constvars(closed)
        flags = context.active or (True,) * len(body.outvars)
        context.depend()
        return _Call(name or "the program", body, budget, _guess(body, flags), context)(consts, inputs)

    return call


def _guess(body: Any, flags: Sequence[bool]) -> tuple[bool, ...]:
    """Which outputs will have cotangents: of a loss with other things, the loss; otherwise all that can.

    What a layer or a step, which returns no scalar, writes to states is likely to be read by what follows.
    The parts of a loss may be figures to look at, or summed by the caller. If they are hardly more work than the first
    of them, they count as the loss: with cotangents of zero they are hardly more work, either.
    """
    can = [jnp.issubdtype(var.aval.dtype, jnp.inexact) for var in body.outvars]
    likely = [wanted and flag for wanted, flag in zip(can, flags, strict=True)]
    if not any(likely):
        return tuple(can)
    some = list(itertools.compress(body.outvars, likely))
    if some[0].aval.shape:
        return tuple(can)
    if not likely[0] or len(some) == 1:
        return tuple(likely)
    work = lambda outputs: sum(map(operations, backward_slice(body, outputs)))
    if not any(var.aval.shape for var in some) and work(some) <= (1 + _PARTS) * work(some[:1]):
        return tuple(likely)
    return tuple(i == 0 for i in range(len(can)))


@dataclasses.dataclass(frozen=True, eq=False)
class _Call:
    """A call of a flat function under a budget.

    Attributes:
      name: of the function.
      body: an open jaxpr without constants.
      budget: the budget.
      guess: which outputs are expected to have cotangents.
      context: what is around the call.
    """

    name: str
    body: Any
    budget: MemoryBudget
    guess: tuple[bool, ...]
    context: Context

    def __call__(self, consts: Leaves, leaves: Leaves) -> list[Any]:
        inputs = [*consts, *leaves]
        lanes = self.context.lanes.of(len(inputs), len(consts))
        call = dataclasses.replace(self, context=dataclasses.replace(self.context, lanes=lanes))
        if lanes.is_innermost and not self.body.effects and made_in(self.body) is None:
            return _lanes_p.bind(*inputs, call=call)
        return call.alone(*inputs)

    def alone(self, *inputs: Any) -> list[Any]:
        """Runs the function, differentiably, for one lane."""
        shardings = tuple(map(self.context.sharding_of, inputs))
        around = shardings, self.context.lanes, Constants(inputs)
        return Budgeted(self.name, self.body, self.budget, self.guess, *around)(*inputs)

    def plain(self, *inputs: Any) -> list[Any]:
        """The function itself."""
        return _jax.eval_jaxpr(self.body, (), *inputs)

    def jvp(self, primals: Leaves, dots: Leaves) -> tuple[list[Any], list[Any]]:
        """The outputs and their tangents."""
        is_moving = [dot is not None for dot in dots]
        run = lambda *some: self.alone(*merge(primals, is_moving, some))
        out, dots = jax.jvp(run, pick(primals, is_moving), pick(dots, is_moving))
        return out, [dot if jnp.issubdtype(y.dtype, jnp.inexact) else None for y, dot in zip(out, dots, strict=True)]

    def of_lanes(self, lanes: dict[str, Any], operands: Leaves, axes: Leaves) -> tuple[list[Any], list[int | None]]:
        """The call of the function of all lanes."""
        differs, axes = list[bool](), tuple(axes)

        def look(*inputs: Any) -> None:
            out = self.plain(*inputs)
            with _jax.take_current_trace() as trace:
                differs.extend(_jax.is_batched(y, trace) for y in out)

        jax.eval_shape(jax.vmap(look, in_axes=axes, **lanes), *operands)
        out_axes = [0 if differ else None for differ in differs]
        together = jax.vmap(self.plain, in_axes=axes, out_axes=out_axes, **lanes)
        body, consts = _jax.without_constvars(jax.make_jaxpr(together)(*operands))
        context = dataclasses.replace(self.context, lanes=Lanes.around(operands))
        return _Call(self.name, body, self.budget, self.guess, context)(consts, operands), out_axes


_lanes_p = jex.Primitive("budget_in_lanes")
_jax.define(
    _lanes_p,
    run=lambda *inputs, call: call.alone(*inputs),
    types=lambda *inputs, call: [var.aval for var in call.body.outvars],
    jvp=lambda primals, dots, *, call: call.jvp(primals, dots),
    batch=lambda lanes, _, operands, axes, *, call: call.of_lanes(lanes, operands, axes),
)
