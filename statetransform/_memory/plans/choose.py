"""From a budget to a program.

1. *Plain.* The plain gradient step is compiled for the target. If it fits, it is the program. Its text says which
   values exist once the compiler has fused it.
2. *Candidates.* Those that are expected within the budget are compiled, the least work first, until one fits. What
   JAX differentiates is also compiled without the value of the function, as `grad` runs it, if it is near the budget.
3. *Nothing fits.* Those with the fewest bytes are compiled, and all by hand that may fit. If one does, it is the
   program. Otherwise the budget is refused, or exceeded with a warning where it holds in the plan.

A `Planner` does this for one gradient step and any budget. `Measured` asks the compiler and remembers what it said.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import logging
import time
from collections.abc import Iterator, Sequence
from typing import Any

from ... import _jax
from ..programs.rewrite import inlined
from ..programs.sizes import format_bytes
from ..programs.sources import shown_source
from ..programs.walk import walk
from ..targets import Target, target_of
from .barriers import keeps_barriers
from .candidates import Candidate, Candidates
from .constants import NONE, Constants
from .emit import Emitted
from .gradient import Pattern
from .measured import Measured
from .meter import Meter
from .plan_cache import Known, MeasuredPlan, known_of
from .simulate import InvalidPlanError, check, profile
from .solve import Plan
from .versions import Version, Versions

logger = logging.getLogger("statetransform")

_SLOW = 2.0  # seconds, from which on the work is logged
# Of what is planned, what checkpoints by hand around products compile to at least, or plans take less for their work.
# In the U-Net of `benchmarks/model_programs.py`, one around everything that keeps products takes 0.65 on an H100.
_BY_HAND = 0.6
_TIMES_THE_WORK = 3.0  # of the plain step, which a budget that is exceeded in any case is not worth


@dataclasses.dataclass(frozen=True)
class Decision:
    """What a budget leads to for one pattern.

    Attributes:
      program: the plan as programs; a function that JAX differentiates to have the plan; None for the plain program.
      planned: bytes of the plan.
      compiled: temporary bytes of the compiled gradient step, None if it could not be read.
      over_plain: operations over those of the plain program.
    """

    program: Emitted | Version | None
    planned: int
    compiled: int | None
    over_plain: float


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


class Planners:
    """The planners of a function, one for each pattern of what is differentiated.

    Calls are inlined, so that the loops in them are seen, and so are checkpoints: a plan starts from all values.

    Args:
      closed: the closed jaxpr of the function.
      shardings: those of its inputs, None where they are not known or in the types.
      compiles: whether plans are compiled; otherwise they are trusted.
      meter: shows how far the work is.
      target: the devices; None for those where the inputs are.
      constants: inputs that are constants of the program around.
    """

    def __init__(
        self,
        closed: Any,
        shardings: Sequence[Any] = (),
        compiles: bool = True,
        meter: Meter | None = None,
        target: Target | None = None,
        constants: Constants = NONE,
    ) -> None:
        self._constants = constants
        self._shardings, self.target = shardings, target_of(target, *shardings, *closed.in_avals)
        self._closed = inlined(closed)
        self._written = closed if any(_jax.is_remat(site.eqn) for site in walk(closed)) else None
        self._compiles, self._meter = compiles, meter
        self._found: dict[Pattern, Planner] = {}

    @property
    def plain(self) -> Any:
        """The closed jaxpr of the plain program, as it was compiled: with calls inlined, unless it has checkpoints."""
        return self._written or self._closed

    def of(self, pattern: Pattern) -> Planner:
        """The planner for a pattern."""
        if pattern not in self._found:
            versions = Versions(self._closed, pattern, self._written, self._shardings, self.target, self._constants)
            around = *self._shardings, pattern.lanes, self._constants.digest()
            known = known_of(versions.first.flat, self._written, around, self.target)
            self._found[pattern] = Planner(versions, known, self._compiles, self._meter)
        return self._found[pattern]


class Planner:
    """Chooses the program of one gradient step for any budget: `decide` goes through the three phases above.

    Args:
      versions: those of the function.
      known: what was found about the step before.
      compiles: whether plans are compiled; otherwise they are trusted.
      meter: shows how far the work is.
    """

    def __init__(self, versions: Versions, known: Known, compiles: bool, meter: Meter | None) -> None:
        self.versions, self._known, self._compiles, self._meter = versions, known, compiles, meter
        self._measured = Measured(versions.first, known, meter)

    def decide(self, budget: int) -> Decision | Shortage:
        """The program for a budget, which all lanes share."""
        start, n = time.monotonic(), self.versions.first.pattern.lanes.count
        try:
            found = self._decided(budget // n)
        finally:
            if self._meter is not None:
                self._meter.close()
        if (seconds := time.monotonic() - start) > _SLOW:
            logger.info("checkpoint: a plan for %s took %.1f seconds", format_bytes(budget), seconds)
        if isinstance(found, Shortage):
            return dataclasses.replace(found, least=n * found.least)
        compiled = None if found.compiled is None else n * found.compiled
        return dataclasses.replace(found, planned=n * found.planned, compiled=compiled)

    def _decided(self, budget: int) -> Decision | Shortage:
        plain = self.plain_bytes(budget)  # 1.
        if plain is not None and plain <= budget:
            return self._plain(plain if self._compiles else None)
        if not self._compiles:
            found = next((some for some in self.candidates.within(budget) if some.plan.bytes <= budget), None)
            return self._shortage([]) if found is None else _decision(found, None)
        if (record := self._known.answers.get(budget)) is not None and self._is_valid(record):
            return _decision(self._recalled(record), record)
        tried = list[tuple[Candidate, MeasuredPlan]]()
        for some in self._in_order(budget, tried):  # 2., and the first half of 3.
            record = self._measured.within(some, budget)
            if record.compiled is None:
                return _decision(some, record)
            if record.compiled <= budget:
                self._known.answers[budget] = record
                self._known.write()
                return _decision(some, record)
            tried.append((some, record))
        return self._excess(budget, plain, tried)

    def plain_bytes(self, budget: int | None = None) -> int | None:
        """Bytes of the plain step: as compiled (`Measured.plain`), or as planned where nothing is compiled."""
        return self._measured.plain(budget) if self._compiles else self.versions.first.solver.plain.bytes

    @functools.cached_property
    def candidates(self) -> Candidates:
        """The programs among which budgets choose."""
        versions = self.versions
        straight = versions.straight(self._measured.held() if self._compiles else {})
        self._measured.begin("planning")
        work = versions.first.joint.graph.cost
        return Candidates(straight, versions.by_steps, list(versions.opened()), work, self._known)

    def _in_order(self, budget: int, tried: Sequence[tuple[Candidate, MeasuredPlan]]) -> Iterator[Candidate]:
        """Those that are expected within a budget; then, if none of them is, those with the fewest bytes.

        What is there between the passes of a plan in any case is held against the best that was compiled.
        """
        seen = set[Any]()
        within = (some for some in self.candidates.within(budget) if _is_hopeful(some, budget))
        for some in itertools.chain(within, self._least(budget)):
            least = min((record.compiled for _, record in tried if record.compiled is not None), default=None)
            if some.key not in seen and (least is None or some.at_best < least):
                seen.add(some.key)
                yield some

    def _least(self, budget: int) -> Iterator[Candidate]:
        """Those with the fewest bytes, and all by hand: the least work first of what may be within a budget at best.

        Behind these, with the fewest bytes first, those that are not.
        """
        least = self.candidates.least()
        possible = [some for some in (*least, *self.candidates.by_hand()) if some.at_best <= budget]
        yield from sorted(possible, key=lambda some: some.order)
        yield from sorted((some for some in least if some.at_best > budget), key=lambda some: some.plan.bytes)

    def _excess(
        self, budget: int, plain: int | None, tried: Sequence[tuple[Candidate, MeasuredPlan]]
    ) -> Decision | Shortage:
        """What is done where no candidate fits."""
        if not any(some.plan.bytes <= budget for some, _ in tried):
            return self._shortage(tried, plain)
        modest = [pair for pair in tried if pair[0].over_plain <= _TIMES_THE_WORK] or tried
        some, record = self._smallest(modest)
        if (sure := self._plain_within(plain, record.compiled)) is not None:
            return self._plain(sure)
        return _decision(some, record)

    def _plain_within(self, plain: int | None, size: int | None) -> int | None:
        """Bytes of the plain step, whose figure so far may be that without calls, if a plan takes no fewer."""
        if plain is None or size is None or plain > size:
            return None
        sure = self.plain_bytes(size)
        return sure if sure is not None and sure <= size else None

    def _smallest(self, tried: Sequence[tuple[Candidate, MeasuredPlan]]) -> tuple[Candidate, MeasuredPlan]:
        """That with the fewest bytes, with the value of the function and without."""
        left = [(record.compiled or 0, some.over_plain, i) for i, (some, record) in enumerate(tried)]
        found: tuple[tuple[int, float], Candidate, MeasuredPlan] | None = None
        for size, work, i in sorted(left):
            if found is not None and (size, work) >= found[0]:
                break
            record = self._measured.within(tried[i][0], size)
            sure = record.compiled or 0, work
            if found is None or sure < found[0]:
                found = sure, tried[i][0], record
        assert found is not None
        return found[1:]

    def _plain(self, compiled: int | None) -> Decision:
        """The plain program, as it compiles."""
        return Decision(None, self.versions.first.solver.plain.bytes, compiled, 1.0)

    def _recalled(self, record: MeasuredPlan) -> Candidate:
        """The candidate that was the answer before."""
        version = self.versions.made_by(record.recipe, self._known.held)
        cost = version.joint.graph.cost_of(record.sequence)  # that of the record is over the plain step's
        plan = Plan(record.sequence, record.planned, cost, record.checkpoints)
        return Candidate(version, plan, record.over_plain)

    def _is_valid(self, record: MeasuredPlan) -> bool:
        """Whether a plan, which may come from a file, is one of this function."""
        try:
            check(self._recalled(record).version.joint.graph, record.sequence)
        except (InvalidPlanError, IndexError, TypeError, ValueError):
            return False
        return True

    def _shortage(self, tried: Sequence[tuple[Candidate, MeasuredPlan]], plain: int | None = None) -> Shortage:
        """The fewest bytes that were found, which a budget of as much keeps: of a plan, or of the plain step."""
        if tried:
            some, record = self._smallest(tried)
            least = record.compiled or 0
            least = self._plain_within(plain, least) or least
        else:
            some = min(self.candidates.least(), key=lambda some: some.plan.bytes)
            least = some.plan.bytes
        graph, sequence = some.version.joint.graph, some.plan.sequence
        node = graph.nodes[sequence[int(profile(graph, sequence).argmax())]]
        return Shortage(least, node.eqns[-1].primitive.name, shown_source(node.eqns[-1]))


def _is_hopeful(some: Candidate, budget: int) -> bool:
    """Whether something may be within a budget as compiled: what is by hand may be although more is planned.

    Without products, all that a checkpoint computes again may be fused: N bodies on the CPU take a third.
    """
    if some.plan.checkpoints is None:
        return some.plan.bytes <= budget
    has_products = any(node.is_product for node in some.version.joint.graph.nodes)
    return not has_products or _BY_HAND * some.plan.bytes <= budget


def _decision(some: Candidate, record: MeasuredPlan | None) -> Decision:
    return Decision(some.program, some.plan.bytes, record and record.compiled, some.over_plain)


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
