"""From a budget to a program.

1. *Plain.* The plain gradient step is compiled for the target. If it fits, it is the program. Its text says which
   values exist once the compiler has fused it.
2. *Candidates.* Those that are expected within the budget are compiled, the least work first, until one fits. What is
   near the budget is also compiled without the value of the function, as `grad` runs it.
3. *Nothing fits.* Those with the fewest bytes are compiled. If one fits, it is the program. Otherwise the budget is
   refused, or exceeded with a warning where it holds in the plan.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ... import _jax
from ..programs.rewrite import inlined
from ..programs.sizes import format_bytes
from ..programs.sources import shown_source
from ..programs.walk import walk
from ..targets import Target, compile_for, target_of
from .barriers import keeps_barriers
from .candidates import Candidate, Candidates
from .emit import Emitted
from .existing import existing
from .gradient import Pattern
from .meter import Meter
from .plan_cache import Known, MeasuredPlan, known_of
from .simulate import InvalidPlanError, check, profile
from .solve import Plan
from .versions import Version, Versions

logger = logging.getLogger("statetransform")

_SLOW = 2.0  # seconds, from which on the work is logged
_FAR = 1.5  # times the budget: what the plain step takes without its calls, where it need not be compiled with them
# Times as many bytes, compared to what is planned, as other checkpoints by hand of the same function: three blocks of a
# residual MLP compile to 1.39 of the plan on the CPU, two of them to 0.92.
_APART = 2.0
_TIMES_THE_WORK = 3.0  # of the plain step, which a budget that is exceeded in any case is not worth


@dataclasses.dataclass(frozen=True)
class Decision:
    """What a budget leads to for one pattern.

    Attributes:
      program: the plan as programs; a function that JAX differentiates to have the plan; None for the plain program.
      planned: bytes of the plan.
      compiled: temporary bytes of the compiled gradient step, None if it could not be read.
      cost: operations over those of the plain program.
    """

    program: Emitted | Version | None
    planned: int
    compiled: int | None
    cost: float


@dataclasses.dataclass(frozen=True)
class Shortage:
    """A budget that cannot be met.

    Attributes:
      least: the fewest bytes for which a plan was found.
      operation: which operation needs most of it.
      source: its line, if that is known, and the user's own where a framework runs it.
    """

    least: int
    operation: str
    source: str | None


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
      wants_text: read the compiled program, too.
    """
    try:
        found = compile_for(version.target, *version.of_lanes(function), version.shardings, is_fast=True)
    except Exception as error:  # what cannot be compiled alone can still be planned
        logger.info("the gradient step alone cannot be compiled: %s", error)
        return CompiledStep(None)
    if found.is_refused:  # for want of memory: it needs more than any budget
        return CompiledStep(max(found.total or 0, version.target.memory or 0))
    size = found.temporary
    size = None if size is None else -(-size // version.pattern.lanes.count)
    return CompiledStep(size, found.program.as_text() if wants_text else None)


class Planner:
    """Everything about one function: its graphs by pattern, and decisions by pattern and budget.

    Calls are inlined, so that the loops in them are seen, and so are checkpoints: a plan starts from all values.

    Args:
      closed: the closed jaxpr of the function.
      shardings: those of its inputs, None where they are not known or in the types.
      compiles: whether plans are compiled; otherwise they are trusted.
      meter: shows how far the work is.
      target: the devices; None for those where the inputs are.
    """

    def __init__(
        self,
        closed: Any,
        shardings: Sequence[Any] = (),
        compiles: bool = True,
        meter: Meter | None = None,
        target: Target | None = None,
    ) -> None:
        self._shardings, self.target = shardings, target_of(target, *shardings, *closed.in_avals)
        self.closed = inlined(closed)
        self._written = closed if any(_jax.is_remat(site.eqn) for site in walk(closed)) else None
        self._compiles, self._meter = compiles, meter
        self._versions: dict[Pattern, Versions] = {}
        self._known: dict[Pattern, Known] = {}
        self._candidates: dict[Pattern, Candidates] = {}

    def versions(self, pattern: Pattern) -> Versions:
        """The versions of the function."""
        if pattern not in self._versions:
            self._versions[pattern] = Versions(self.closed, pattern, self._written, self._shardings, self.target)
        return self._versions[pattern]

    def known(self, pattern: Pattern) -> Known:
        """What is known about the function from before."""
        if pattern not in self._known:
            step = self.versions(pattern).first.flat
            self._known[pattern] = known_of(step, self._written, (*self._shardings, pattern.lanes), self.target)
        return self._known[pattern]

    def plain_bytes(self, pattern: Pattern, budget: int | None = None) -> int | None:
        """Temporary bytes of the plain step; within a budget, the more of with the function's value and without.

        Where a budget is far below what the step takes without its calls, the step itself is not compiled.
        """
        version, known = self.versions(pattern).first, self.known(pattern)
        if not self._compiles:
            return version.solver.plain.bytes
        if budget is not None and not version.has_checkpoints:
            flat = self._read(version, known)
            if flat is not None and flat > _FAR * budget:
                return flat
        if known.plain is None and version.is_flat:
            known.plain = self._read(version, known)
        elif known.plain is None:
            self._begin("compiling the plain step")
            known.plain = compiled_step(version.as_outermost(version.plain_step), version).bytes
            known.write()
        if known.plain is None or budget is None or known.plain > budget:
            return known.plain
        if known.plain_alone is None:
            known.plain_alone = compiled_step(version.as_outermost(version.plain_step, False), version).bytes
            known.write()
        return max(known.plain, known.plain_alone or 0)

    def _read(self, version: Version, known: Known) -> int | None:
        """Compiles the plain step without calls and checkpoints, and reads which values exist; gives its bytes."""
        if known.held is None:
            self._begin("compiling the plain step")
            found = compiled_step(version.as_outermost(version.scoped_step), version, wants_text=True)
            held, known.flat = existing(found.text) if found.text else {}, found.bytes
            known.held = {number: own.of_one(version.pattern.lanes.count) for number, own in held.items()}
            known.write()
        return known.flat

    def candidates(self, pattern: Pattern) -> Candidates:
        """The programs among which budgets choose."""
        if pattern not in self._candidates:
            versions, known = self.versions(pattern), self.known(pattern)
            if self._compiles:
                self._read(versions.first, known)
            straight = versions.straight(known.held or {} if self._compiles else {})
            self._begin("planning")
            work = versions.first.joint.graph.cost
            self._candidates[pattern] = Candidates(
                straight, versions.by_steps, list(versions.opened()), work, known.rated
            )
        return self._candidates[pattern]

    def decide(self, pattern: Pattern, budget: int) -> Decision | Shortage:
        """The program for a budget, which all lanes share."""
        start, n = time.monotonic(), pattern.lanes.count
        try:
            found = self._decided(pattern, budget // n)
        finally:
            if self._meter is not None:
                self._meter.close()
        if (seconds := time.monotonic() - start) > _SLOW:
            logger.info("checkpoint: a plan for %s took %.1f seconds", format_bytes(budget), seconds)
        if isinstance(found, Shortage):
            return dataclasses.replace(found, least=n * found.least)
        compiled = None if found.compiled is None else n * found.compiled
        return dataclasses.replace(found, planned=n * found.planned, compiled=compiled)

    def _decided(self, pattern: Pattern, budget: int) -> Decision | Shortage:
        plain = self.plain_bytes(pattern, budget)
        as_planned = self.versions(pattern).first.solver.plain.bytes
        if plain is not None and plain <= budget:
            return Decision(None, as_planned, plain if self._compiles else None, 1.0)
        if not self._compiles:
            found = next((some for some in self.candidates(pattern).within(budget) if some.plan.bytes <= budget), None)
            return self._shortage(pattern, []) if found is None else _decision(found, None)
        known = self.known(pattern)
        if (record := known.answers.get(budget)) is not None and self._is_valid(pattern, record):
            return _decision(self._recalled(pattern, record), record)
        tried = list[tuple[Candidate, MeasuredPlan]]()
        for some in self._in_order(pattern, budget, tried):
            record = self._compiled(pattern, some, budget)
            if record.compiled is None:
                return _decision(some, record)
            if record.compiled <= budget:
                known.answers[budget] = record
                known.write()
                return _decision(some, record)
            tried.append((some, record))
        return self._excess(pattern, budget, plain, tried)

    def _in_order(
        self, pattern: Pattern, budget: int, tried: Sequence[tuple[Candidate, MeasuredPlan]]
    ) -> Iterator[Candidate]:
        """Those that are expected within a budget; then, if none of them is, those with the fewest bytes.

        What is there between the passes of a plan in any case is held against the best that was compiled.
        """
        seen, candidates = set[Any](), self.candidates(pattern)
        within = (some for some in candidates.within(budget) if self._is_hopeful(pattern, some, budget))
        for some in itertools.chain(within, self._least(pattern, budget)):
            least = min((record.compiled for _, record in tried if record.compiled is not None), default=None)
            if some.key not in seen and (least is None or some.at_best < least):
                seen.add(some.key)
                yield some

    def _is_hopeful(self, pattern: Pattern, some: Candidate, budget: int) -> bool:
        """Whether something may be within a budget as compiled: what is by hand may be although more is planned.

        What a compiler makes of them, one of them says.
        """
        if some.plan.bytes <= budget:
            return True
        finest = self.candidates(pattern).finest
        ratio = (self._measured(pattern, finest).with_value or 1) / max(finest.plan.bytes, 1)
        return min(ratio / _APART, 1.0) * some.plan.bytes <= budget

    def _least(self, pattern: Pattern, budget: int) -> Iterator[Candidate]:
        """Those with the fewest bytes: the least work first of what may be within a budget, then the fewest bytes."""
        least = self.candidates(pattern).least()
        yield from sorted((some for some in least if some.at_best <= budget), key=lambda some: some.order)
        yield from sorted((some for some in least if some.at_best > budget), key=lambda some: some.plan.bytes)

    def _excess(
        self, pattern: Pattern, budget: int, plain: int | None, tried: Sequence[tuple[Candidate, MeasuredPlan]]
    ) -> Decision | Shortage:
        """What is done where no candidate fits."""
        if not any(some.plan.bytes <= budget for some, _ in tried):
            return self._shortage(pattern, tried, plain)
        modest = [pair for pair in tried if pair[0].cost <= _TIMES_THE_WORK] or tried
        some, record = self._smallest(pattern, modest)
        if (sure := self._plain_within(pattern, plain, record.compiled)) is not None:
            return Decision(None, self.versions(pattern).first.solver.plain.bytes, sure, 1.0)
        return _decision(some, record)

    def _plain_within(self, pattern: Pattern, plain: int | None, size: int | None) -> int | None:
        """Bytes of the plain step, whose figure so far may be that without calls, if a plan takes no fewer."""
        if plain is None or size is None or plain > size:
            return None
        sure = self.plain_bytes(pattern, size)
        return sure if sure is not None and sure <= size else None

    def _smallest(
        self, pattern: Pattern, tried: Sequence[tuple[Candidate, MeasuredPlan]]
    ) -> tuple[Candidate, MeasuredPlan]:
        """That with the fewest bytes, with the value of the function and without."""
        left = [(record.compiled or 0, some.cost, i) for i, (some, record) in enumerate(tried)]
        found: tuple[tuple[int, float], Candidate, MeasuredPlan] | None = None
        for size, cost, i in sorted(left):
            if found is not None and (size, cost) >= found[0]:
                break
            record = self._compiled(pattern, tried[i][0], size)
            sure = record.compiled or 0, cost
            if found is None or sure < found[0]:
                found = sure, tried[i][0], record
        assert found is not None
        return found[1:]

    def _measured(self, pattern: Pattern, some: Candidate) -> MeasuredPlan:
        """A candidate with what its step takes with the value of the function, at least."""
        known = self.known(pattern)
        record = known.tried.get(some.key)
        if record is None:
            self._begin("compiling a plan")
            step, version = some.step
            size, plan = compiled_step(version.as_outermost(step), version).bytes, some.plan
            record = MeasuredPlan(some.version.recipe, plan.sequence, plan.checkpoints, plan.bytes, some.cost, size)
            known.add(record)
        return record

    def _compiled(self, pattern: Pattern, some: Candidate, budget: int) -> MeasuredPlan:
        """A candidate with its figures; near the budget, with the function's value and without.

        Compilers find room by rules of thumb: with the value or without, a value more may be there.
        """
        record = self._measured(pattern, some)
        # Where barriers are removed, the two may have nothing in common.
        room = max(some.version.joint.graph.sizes, default=0) if keeps_barriers() else budget
        size = record.compiled
        if record.alone is not None or size is None or not size <= budget < size + room:
            return record
        step, version = some.step
        alone = compiled_step(version.as_outermost(step, with_value=False), version).bytes
        record = dataclasses.replace(record, alone=alone or 0)
        self.known(pattern).add(record)
        return record

    def _begin(self, part: str) -> None:
        logger.debug("checkpoint: %s", part)
        if self._meter is not None:
            self._meter(part)

    def _recalled(self, pattern: Pattern, record: MeasuredPlan) -> Candidate:
        version = self.versions(pattern).made_by(record.recipe, self.known(pattern).held)
        plan = Plan(record.sequence, record.planned, record.cost, record.checkpoints)
        return Candidate(version, plan, record.cost)

    def _is_valid(self, pattern: Pattern, record: MeasuredPlan) -> bool:
        """Whether a plan, which may come from a file, is one of this function."""
        try:
            check(self._recalled(pattern, record).version.joint.graph, record.sequence)
        except (InvalidPlanError, IndexError, TypeError, ValueError):
            return False
        return True

    def _shortage(
        self, pattern: Pattern, tried: Sequence[tuple[Candidate, MeasuredPlan]], plain: int | None = None
    ) -> Shortage:
        """The fewest bytes that were found, which a budget of as much keeps: of a plan, or of the plain step."""
        if tried:
            some, record = self._smallest(pattern, tried)
            least = record.compiled or 0
            least = self._plain_within(pattern, plain, least) or least
        else:
            some = min(self.candidates(pattern).least(), key=lambda some: some.plan.bytes)
            least = some.plan.bytes
        graph, sequence = some.version.joint.graph, some.plan.sequence
        node = graph.nodes[sequence[int(profile(graph, sequence).argmax())]]
        return Shortage(least, node.eqns[-1].primitive.name, shown_source(node.eqns[-1]))


def _decision(some: Candidate, record: MeasuredPlan | None) -> Decision:
    return Decision(some.program, some.plan.bytes, record and record.compiled, some.cost)


def excess_message(asked: int | str, found: Decision, target: Target) -> str:
    """What is said where the compiled step needs more than the budget."""
    newer = "" if keeps_barriers() else " The CPU compiler of a newer JAX (0.11 at least) may need less."
    return (
        f"checkpoint: no plan fits {_shown(asked)} as compiled for {target}; the best takes "
        f"{found.compiled} bytes, which `policies.fit({found.compiled})` meets.{newer}"
    )


def shortage_message(asked: int | str, shortage: Shortage) -> str:
    """What a `BudgetError` says."""
    place = f" at {shortage.source}" if shortage.source else ""
    return (
        f"checkpoint: a budget of {_shown(asked)} cannot be met. The least for which a plan was found is "
        f"{shortage.least} bytes ({format_bytes(shortage.least, asked)}), which `policies.fit({shortage.least})` meets"
        f", and most of which `{shortage.operation}`{place} needs. Raise the budget, or make that operation smaller (a "
        "smaller batch, for example)."
    )


def _shown(asked: int | str) -> str:
    return asked if isinstance(asked, str) else format_bytes(asked)
