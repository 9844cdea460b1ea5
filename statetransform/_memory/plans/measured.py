"""What the compiler of a target makes of a gradient step, and of plans for it: temporary bytes, each asked for once.

Compilers find room by rules of thumb. With the value of the function, as `value_and_grad` runs the step, or without, as
`grad` does, a value more may be there. So what JAX differentiates is compiled both ways near a budget, and the more of
both counts. A plan computes the value in any case.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping
from typing import Any

from ..targets import compile_for
from .barriers import keeps_barriers
from .candidates import Candidate
from .existing import Held, existing
from .meter import Meter
from .plan_cache import Known, MeasuredPlan
from .versions import Version

logger = logging.getLogger("statetransform")

_FAR = 1.5  # times the budget: what the plain step takes without its calls, where it need not be compiled with them


@dataclasses.dataclass(frozen=True)
class CompiledStep:
    """A compiled gradient step: its temporary bytes on one device, for one lane of `vmap`, and its text."""

    bytes: int | None
    text: str | None = None


def compiled_step(function: Callable[..., Any], version: Version, wants_text: bool = False) -> CompiledStep:
    """Compiles a step for the target.

    Args:
      function: the step.
      version: what it is the step of.
      wants_text: also read the compiled program.
    """
    try:
        run, avals = version.of_lanes(function)
        found = compile_for(version.target, *version.constants.within(run, avals, version.shardings), is_fast=True)
    except Exception as error:  # what cannot be compiled alone can still be planned
        logger.info("the gradient step alone cannot be compiled: %s", error)
        return CompiledStep(None)
    if found.is_refused:  # for want of memory: it needs more than any budget
        return CompiledStep(max(found.total or 0, version.target.memory or 0))
    size = found.temporary
    size = None if size is None else -(-size // version.pattern.lanes.count)
    return CompiledStep(size, found.program.as_text() if wants_text else None)


class Measured:
    """The figures of one gradient step and of plans for it.

    Args:
      first: the function as it is, whose gradient step is the plain one.
      known: what was found before, where what is found now is kept.
      meter: shows how far the work is.
    """

    def __init__(self, first: Version, known: Known, meter: Meter | None) -> None:
        self._first, self._known, self._meter = first, known, meter

    def begin(self, part: str) -> None:
        """A part of the work begins."""
        logger.debug("checkpoint: %s", part)
        if self._meter is not None:
            self._meter(part)

    def plain(self, budget: int | None) -> int | None:
        """Bytes of the plain step; within a budget, the more of with the function's value and without.

        Where a budget is far below what the step takes without its calls, the step itself is not compiled.
        """
        first, known = self._first, self._known
        if budget is not None and not first.has_checkpoints:
            flat = self._flat()
            if flat is not None and flat > _FAR * budget:
                return flat
        if known.plain is None and first.is_flat:
            known.plain = self._flat()
        elif known.plain is None:
            self.begin("compiling the plain step")
            known.plain = compiled_step(first.as_outermost(first.plain_step), first).bytes
            known.write()
        if known.plain is None or budget is None or known.plain > budget:
            return known.plain
        if known.plain_alone is None:
            known.plain_alone = compiled_step(first.as_outermost(first.plain_step, False), first).bytes
            known.write()
        return max(known.plain, known.plain_alone or 0)

    def held(self) -> Mapping[int, Held]:
        """What each equation of the plain step, without calls and checkpoints, holds as compiled."""
        self._flat()
        return self._known.held or {}

    def _flat(self) -> int | None:
        """Bytes of the plain step without calls and checkpoints, whose text is read."""
        first, known = self._first, self._known
        if known.held is None:
            self.begin("compiling the plain step")
            found = compiled_step(first.as_outermost(first.scoped_step), first, wants_text=True)
            known.held, known.flat = existing(found.text) if found.text else {}, found.bytes
            known.write()
        return known.flat

    def once(self, some: Candidate) -> MeasuredPlan:
        """A candidate with what its step takes, compiled once.

        That is with the value of the function, but without where the step computes it in any case: there it takes an
        output's place, and is one number more otherwise. On a CPU the loss may take one small array more with it.
        """
        record = self._known.tried.get(some.key)
        if record is None:
            self.begin("compiling a plan")
            step, version = some.step
            size, plan = compiled_step(version.as_outermost(step, not some.has_value), version).bytes, some.plan
            record = MeasuredPlan(
                some.version.recipe, plan.sequence, plan.checkpoints, plan.bytes, some.over_plain, size
            )
            self._known.add(record)
        return record

    def within(self, some: Candidate, budget: int) -> MeasuredPlan:
        """A candidate with its figures; near the budget with the function's value and without, where that differs."""
        record = self.once(some)
        if some.has_value:
            return record
        # Where barriers are removed, the two may have nothing in common.
        room = max(some.version.joint.graph.sizes, default=0) if keeps_barriers() else budget
        size = record.compiled
        if record.alone is not None or size is None or not size <= budget < size + room:
            return record
        step, version = some.step
        alone = compiled_step(version.as_outermost(step, with_value=False), version).bytes
        record = dataclasses.replace(record, alone=alone or 0)
        self._known.add(record)
        return record
