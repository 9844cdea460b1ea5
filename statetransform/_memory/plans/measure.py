"""From a budget to a program, in three steps.

1. *Plain.* The plain gradient step is compiled, unless it is planned far above the budget and has products or loops,
   whose results compilers do not fuse. If it fits, it is the program.
2. *Candidates.* They are the cheapest plan found for the budget, and the forms that people write by hand. The one with
   the least work of those that may fit is compiled, then the next, until none promises to be better than the best. What
   the compiler needs corrects what is expected of the others: a plan makes place for a smaller one. What is near the
   budget is also compiled without the value of the function, as `grad` runs it.
3. *Confirm.* The best one is the program: the cheapest that fits, else the one with the fewest bytes of those that do
   not multiply the work. On the CPU, one that does not fit is compiled again with the usual options of the compiler.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ... import _jax
from ..programs.rewrite import inlined
from ..programs.sizes import format_bytes, nbytes
from ..programs.sources import shown_source
from ..programs.walk import walk
from ..targets import Target, compile_for, target_of
from .barriers import keeps_barriers
from .checkpoints import by_source
from .emit import Emitted, whole
from .joint import Pattern
from .loops import scans_in
from .meter import Meter
from .plan_cache import Known, MeasuredPlan, known_of
from .simulate import InvalidPlanError, check, profile
from .solve import Plan
from .versions import Version, Versions

logger = logging.getLogger("statetransform")

_SLOW = 2.0  # seconds, from which on the work is logged
_CHEAP = 1.06  # times the plain work: a plan that costs less is not made larger
_LEAST_RATIO = 0.85  # of planned to compiled bytes of the plain step, by which a first plan is made smaller
_USUAL_RATIO = 0.985  # where that is not compiled, by plans of language models; not where barriers are removed
_COMPILATIONS = 6  # of candidates: a form by hand for each of three policies, a plan, and two corrections
_MARGIN = 1.1  # times what is missing, to be on the safe side; less for loops, as the schedule saves what it says
_OF_LOOPS = 1.05
_ROOM = 0.02  # of the budget, which schedules of loops leave: what is not near it is compiled once
_FAR = 1.75  # times the budget: with so many planned bytes, the plain step is not compiled. 1.6 was seen to fit
_PRODUCTS = 0.05  # of all values: where fewer are from products and loops, compilers may fuse the whole function
_LITTLE = 0.02  # of the budget: an excess below is taken for one of this size, since compilers have buffers as a whole
_NEXT_TO = 1.02  # the fewest bytes: the last of them cost much, where loops have no room for carries
_WASTE = 0.85  # of the budget: a plan that compiles to less, and is not cheap, is made larger once
_NOT_FUSED = ("dot_general", "conv_general_dilated", "scan", "while")
# What checkpoints around layers may compile to, of what is expected; with convolutions, 0.6 was seen.
_FUSED = {False: 0.9, True: 0.6}
_AT_BEST = 0.5  # the least that was seen, of what is planned for elementwise layers
_RIVAL = 0.995  # times the work of what was found: less makes another candidate worth a compilation
_BY_HAND = 0.99  # of its work counts for a form by hand: it compiles faster, and is never worse in both figures then

Offer = tuple[Version, Plan]


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


def temporary_bytes(function: Callable[..., Any], version: Version, is_fast: bool = True) -> int | None:
    """Temporary bytes of a compiled step on one device, for one lane of `vmap`; None where the backend does not say.

    Args:
      function: the step.
      version: the form of the function.
      is_fast: compile in less time than usual, if the backend can.
    """
    try:
        found = compile_for(version.target, *version.of_lanes(function), version.shardings, is_fast=is_fast)
    except Exception as error:  # what cannot be compiled alone can still be planned
        logger.info("the gradient step alone cannot be compiled: %s", error)
        return None
    # A program that the compiler refuses for want of memory needs more than any budget.
    size = max(found.total or 0, version.target.memory or 0) if found.is_refused else found.temporary
    return None if size is None else -(-size // version.pattern.lanes.count)


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

    def versions(self, pattern: Pattern) -> Versions:
        """The function in its various forms."""
        if pattern not in self._versions:
            self._versions[pattern] = Versions(self.closed, pattern, self._written, self._shardings, self.target)
        return self._versions[pattern]

    def known(self, pattern: Pattern) -> Known:
        """What is known about the function from before."""
        if pattern not in self._known:
            self._known[pattern] = known_of(
                self.versions(pattern).first.flat, self._written, (*self._shardings, pattern.lanes), self.target
            )
        return self._known[pattern]

    def plain_bytes(self, pattern: Pattern, budget: int | None = None) -> int | None:
        """Temporary bytes of the plain gradient step."""
        version = self.versions(pattern).first
        if not self._compiles:
            return version.solver.plain.bytes
        known = self.known(pattern)
        if known.plain is None:
            self._begin("compiling the plain step")
            known.plain = self._bytes_of(version, version.plain_step)
            known.write()
        if known.plain is None or budget is None:
            return known.plain
        if not (self._fuses and known.plain <= budget) and not self._is_near(version, known.plain, budget):
            return known.plain
        if known.plain_alone is None:
            known.plain_alone = self._bytes_of(version, version.plain_step, with_value=False)
        return max(known.plain, known.plain_alone or 0)

    def plan(self, pattern: Pattern, budget: int, others: Mapping[str, int] = MappingProxyType({})) -> Offer | None:
        """The cheapest plan found, over all forms of the function, for a budget. Some kinds have another one."""
        versions = self.versions(pattern)
        room = lambda version: others.get(version.kind, budget)
        best = self._offer(None, versions.first, room)
        for version in versions.opened(others.get("opened", budget)):
            best = self._offer(best, version, room)
        return best

    def _offer(self, best: Offer | None, version: Version, room: Callable[[Version], int]) -> Offer | None:
        """The plan of one form, if it has less work than the best one so far."""
        if best is not None and version.joint.graph.cost >= best[1].cost:
            return best
        found = version.solver.plan(room(version))
        return best if found is None or (best and found.cost >= best[1].cost) else (version, found)

    def least(self, pattern: Pattern, budget: float = math.inf) -> Offer:
        """The cheapest plan found with next to the fewest bytes; not above a budget, if that can be."""
        offers = [(version, version.solver.least) for version in self.versions(pattern).thriftiest()]
        version, fewest = min(offers, key=lambda offer: offer[1].bytes)
        room = int(max(fewest.bytes, min(_NEXT_TO * fewest.bytes, budget)))
        return self._offer(self.plan(pattern, room), version, lambda _: room) or (version, fewest)

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
        first = self.versions(pattern).first
        known = self.known(pattern) if self._compiles else Known(None)
        is_far = self._written is None and first.solver.plain.bytes > _FAR * budget and not self._fuses
        plain = known.plain if is_far else self.plain_bytes(pattern, budget)
        if plain is not None and plain <= budget:
            return Decision(None, first.solver.plain.bytes, plain if self._compiles else None, 1.0)
        if (record := known.answers.get(budget)) is not None and self._is_valid(pattern, record):
            return self._recalled(pattern, record)
        self._begin("planning")
        before = self._before(pattern) if self._compiles else []
        offer, size = self._first_offer(pattern, budget, plain, before)
        if not self._compiles:
            return self._shortage(pattern) if offer is None else self._trusted(pattern, offer)
        known.add(tried := list(self._tried(pattern, budget, size, plain, offer, before)))
        if before and not any(record.fits(budget) for record in [*tried, *before]):
            # What is known of other budgets may lead astray: once more as if this were the first one.
            plain = None if is_far else plain
            offer, size = self._first_offer(pattern, budget, plain, [])
            known.add(tried := [*tried, *self._tried(pattern, budget, size, plain, offer, [])])
        compiled = [*tried, *before]
        if offer is None and not any(record.fits(budget) for record in compiled):
            if is_far and (plain := self.plain_bytes(pattern, budget)) is not None and plain <= budget:
                return Decision(None, first.solver.plain.bytes, plain, 1.0)
            return self._shortage(pattern, compiled)
        best = min(compiled, key=lambda record: record.rank(budget))
        answer = self._confirmed(pattern, best, budget)
        if not answer.fits(budget) and plain is not None and plain <= (answer.compiled or 0):
            return Decision(None, first.solver.plain.bytes, plain, 1.0)
        known.answers[budget] = answer
        known.add([answer])
        return self._recalled(pattern, answer)

    def _first_offer(
        self, pattern: Pattern, budget: int, plain: int | None, before: Sequence[MeasuredPlan]
    ) -> tuple[Offer | None, int]:
        """The first plan to compile, by what is known of others, and the bytes that it may have as planned."""
        top = self.versions(pattern).first.solver.plain.bytes
        usual = _USUAL_RATIO if keeps_barriers() else 1.0
        size = int(budget * max(min(top / plain, 1.0) if plain else usual, _LEAST_RATIO))
        rooms = {"opened": int((1 - _ROOM) * size), **self._rooms_known(pattern, budget, before)}
        offer = self.plan(pattern, size, rooms) or self.plan(pattern, budget)
        if offer is None and (least := self.least(pattern, budget))[1].bytes <= budget:
            offer = least  # of another way to run the loops than those for this budget
        return offer, size if offer is None or offer[1].bytes <= size else budget

    def _tried(
        self,
        pattern: Pattern,
        budget: int,
        size: int,
        plain: int | None,
        planned: Offer | None,
        before: Sequence[MeasuredPlan],
    ) -> Iterator[MeasuredPlan]:
        """Candidates as they compile: always the cheapest that may fit, while it would be better than the best."""
        first = self.versions(pattern).first
        has_convolutions = any(e.primitive.name == "conv_general_dilated" for e in _jax.opened(first.flat).eqns)
        expected = plain / max(first.solver.plain.bytes, 1) if plain else 1.0  # compiled bytes of a planned one
        work = lambda some: some.cost * (1.0 if some.checkpoints is None else _BY_HAND)
        known, layers = {record.key for record in before}, by_source(first.closed)
        forms = [plan for plan in first.solver.by_hand if plan.checkpoints and _key((first, plan)) not in known]
        kind = lambda some: (some.checkpoints.policy, some.checkpoints.blocks in layers)
        usual = lambda plan: expected * (_FUSED[has_convolutions] if kind(plan)[1] else 1.0)
        scales = {
            kind(some): some.compiled / max(some.planned, 1) for some in before if some.checkpoints if some.compiled
        }
        rooms: dict[str, int] = {}  # what plans of a kind may have, by what they compile to
        best = min(before, key=lambda record: record.rank(budget), default=None)
        figures = lambda offer: (offer[0].recipe, offer[1].bytes, offer[1].cost, offer[1].checkpoints is None)
        done = set[Any]()  # a form with the same figures compiles to the same
        for _ in range(_COMPILATIONS):
            offers = [(int(plan.bytes * scales.get(kind(plan), usual(plan))), (first, plan)) for plan in forms]
            if planned is not None:
                offers.append((min(planned[1].bytes, budget), planned))
            offers = [(most, offer) for most, offer in offers if figures(offer) not in done]
            if best is not None and best.fits(budget):
                limit = _RIVAL * work(best) * first.joint.graph.cost
                offers = [(most, offer) for most, offer in offers if most <= budget and work(offer[1]) < limit]
            elif best is not None:
                hoped = lambda plan: plan.bytes * scales.get(kind(plan), _AT_BEST)
                offers = [some for some in offers if some[1] is planned or hoped(some[1][1]) < (best.compiled or 0)]
            if not offers:
                return
            rank = lambda some: (some[0] > budget, work(some[1][1]) if some[0] <= budget else some[0])
            offer = min(offers, key=rank)[1]
            done.add(figures(offer))
            yield (found := self._compiled(pattern, *offer, budget))
            if found.compiled is None:
                return
            expected = expected if plain else found.compiled / max(found.planned, 1)
            best = min(filter(None, [best, found]), key=lambda record: record.rank(budget))
            if found.checkpoints is not None:
                scales[kind(found)] = found.compiled / max(found.planned, 1)
            if planned is None or figures(planned) in done:
                planned = self._corrected(pattern, budget, size, offer, found, rooms)

    def _before(self, pattern: Pattern) -> list[MeasuredPlan]:
        """What was compiled for other budgets."""
        return [record for record in self.known(pattern).tried if self._is_valid(pattern, record)]

    def _rooms_known(self, pattern: Pattern, budget: int, before: Sequence[MeasuredPlan]) -> dict[str, int]:
        """What plans of a kind may have, by what the compiler needed besides for the one nearest to the budget."""
        plans = [record for record in before if record.checkpoints is None]
        rooms = dict[str, int]()
        for record in sorted(plans, key=lambda record: -abs(record.planned - budget)):
            over = int(self._margin * ((record.compiled or 0) - record.planned))
            rooms[self.versions(pattern).made_by(record.recipe).kind] = budget - max(over, 0)
        return rooms

    @functools.cached_property
    def _fuses(self) -> bool:
        """Whether compilers may fuse most of the function, so that planned bytes say little about compiled ones."""
        sites = list(walk(self.closed))
        size = lambda some: sum(nbytes(var.aval) for site in some for var in site.eqn.outvars)
        return size(s for s in sites if s.primitive in _NOT_FUSED) < _PRODUCTS * size(sites)

    @property
    def _margin(self) -> float:
        return _OF_LOOPS if scans_in(self.closed) else _MARGIN

    def _corrected(
        self,
        pattern: Pattern,
        budget: int,
        size: int,
        offer: Offer,
        found: MeasuredPlan,
        rooms: dict[str, int],
    ) -> Offer | None:
        """A smaller plan where the compiler needs more than there is, a larger one where it needs much less.

        What it needs besides is known for plans of the same kind only: another one may be larger.
        """
        assert found.compiled is not None
        kind = offer[0].kind
        if found.fits(budget):
            is_waste = found.compiled < _WASTE * budget and found.cost > _CHEAP
            rooms[kind] = min(int(found.planned * 0.98 * budget / max(found.compiled, 1)), budget)
            return self.plan(pattern, size, rooms) if is_waste else None
        over = max(found.compiled - budget, int(_LITTLE * budget))
        for part in (self._margin, 1.0):
            rooms[kind] = int(found.planned - part * over)
            if (smaller := self.plan(pattern, size, rooms)) is not None:
                return smaller
        least = self.least(pattern, offer[1].bytes - 1)
        return least if least[1].bytes < offer[1].bytes else None

    def _compiled(self, pattern: Pattern, version: Version, plan: Plan, budget: int) -> MeasuredPlan:
        """A plan with its figures."""
        self._begin("compiling a plan")
        cost = plan.cost / max(self.versions(pattern).first.joint.graph.cost, 1e-9)
        found = MeasuredPlan(version.recipe, plan.sequence, plan.checkpoints, plan.bytes, None, cost)
        if (known := next((some for some in self.known(pattern).tried if some.key == found.key), None)) is not None:
            return self._both(pattern, known, budget)
        step, version = self._step_of(pattern, found)
        return self._both(pattern, dataclasses.replace(found, compiled=self._bytes_of(version, step)), budget)

    def _both(self, pattern: Pattern, found: MeasuredPlan, budget: int) -> MeasuredPlan:
        """With the larger figure of both forms, with the function's value and without, where it is near the budget.

        Where loops take the place of barriers the two may differ by much more than one value.
        """
        size = found.compiled
        if found.is_sure or size is None or size > budget:
            return found
        if keeps_barriers() and not self._is_near(self.versions(pattern).made_by(found.recipe), size, budget):
            return found
        step, version = self._step_of(pattern, found)
        alone = self._bytes_of(version, step, with_value=False)
        return dataclasses.replace(found, compiled=max(size, alone or 0), is_sure=True)

    def _confirmed(self, pattern: Pattern, found: MeasuredPlan, budget: int) -> MeasuredPlan:
        """With the larger figure of both forms where it is near the budget, and the usual compiler's above it."""
        found = self._both(pattern, found, budget)
        (step, version), size = self._step_of(pattern, found), found.compiled
        if size is None:
            return found
        if size > budget and self.target.platform == "cpu":
            usual = [temporary_bytes(version.as_outermost(step, w), version, False) for w in (True, False)]
            size = size if None in usual else max(s for s in usual if s is not None)
        return dataclasses.replace(found, compiled=size)

    def _is_near(self, version: Version, size: int, budget: int) -> bool:
        """Whether a step that fits does so by less than one value, or next to nothing where most is in loops.

        Compilers find room by rules of thumb: with the value of the function or without, a value more may be too much.
        The stacks of loops are the same in both.
        """
        value = _ROOM * budget / 2 if scans_in(self.closed) else max(version.joint.graph.sizes, default=0)
        return size <= budget < size + value

    def _begin(self, part: str) -> None:
        logger.debug("checkpoint: %s", part)
        if self._meter is not None:
            self._meter(part)

    def _bytes_of(self, version: Version, step: Callable[..., list[Any]], with_value: bool = True) -> int | None:
        return temporary_bytes(version.as_outermost(step, with_value), version)

    def _program(self, pattern: Pattern, record: MeasuredPlan) -> Emitted | Version:
        version = self.versions(pattern).made_by(record.recipe)
        if record.checkpoints is not None and version.takes_checkpoints:
            return version.checkpointed(record.checkpoints)
        if version.is_by_steps and record.sequence == version.solver.plain.sequence:
            return version  # nothing is recomputed besides: the program that people write
        return Emitted(version.joint, record.sequence)

    def _step_of(self, pattern: Pattern, record: MeasuredPlan) -> tuple[Callable[..., list[Any]], Version]:
        program = self._program(pattern, record)
        if isinstance(program, Version):
            return program.plain_step, program
        version = self.versions(pattern).made_by(record.recipe)
        return whole(program, version.joint.n_inputs), version

    def _is_valid(self, pattern: Pattern, record: MeasuredPlan) -> bool:
        """Whether a plan, which may come from a file, is one of this function."""
        try:
            check(self.versions(pattern).made_by(record.recipe).joint.graph, record.sequence)
        except (InvalidPlanError, IndexError, TypeError, ValueError):
            return False
        return True

    def _recalled(self, pattern: Pattern, record: MeasuredPlan) -> Decision:
        return Decision(self._program(pattern, record), record.planned, record.compiled, record.cost)

    def _trusted(self, pattern: Pattern, offer: Offer) -> Decision:
        version, plan = offer
        cost = plan.cost / max(self.versions(pattern).first.joint.graph.cost, 1e-9)
        return Decision(Emitted(version.joint, plan.sequence), plan.bytes, None, cost)

    def _shortage(self, pattern: Pattern, tried: Sequence[MeasuredPlan] = ()) -> Shortage:
        """What the thriftiest plan needs: as compiled, if that is known, so that a budget of as much can be kept."""
        version, plan = self.least(pattern, 0)  # with the fewest bytes, whatever they cost
        least, sequence = plan.bytes, plan.sequence
        sizes = [record.compiled for record in tried if record.compiled is not None]
        if sizes:
            best = next(record for record in tried if record.compiled == min(sizes))
            best = self._both(pattern, best, min(sizes))
            self.known(pattern).add([best, *tried])
            least, sequence, version = best.compiled or 0, best.sequence, self.versions(pattern).made_by(best.recipe)
        graph = version.joint.graph
        node = graph.nodes[sequence[int(profile(graph, sequence).argmax())]]
        return Shortage(least, node.eqns[-1].primitive.name, shown_source(node.eqns[-1]))


def _key(offer: Offer) -> tuple[Any, ...]:
    """What a plan is known by, as `MeasuredPlan.key`."""
    return offer[0].recipe, offer[1].sequence, offer[1].checkpoints


def excess_message(budget: int, found: Decision, target: Target) -> str:
    """What is said where the compiled step needs more than the budget."""
    assert found.compiled is not None
    newer = "" if keeps_barriers() else " The CPU compiler of a newer JAX (0.11 at least) may need less."
    return (
        f"checkpoint: the plan for a budget of {format_bytes(budget)} has {found.planned} bytes "
        f"({format_bytes(found.planned)}), but compiled for {target} the gradient step takes "
        f"{found.compiled} bytes ({format_bytes(found.compiled)}), the fewest of all plans that were tried and do not "
        "multiply the work. "
        f"A budget of {found.compiled} bytes can be kept.{newer}"
    )


def shortage_message(budget: int, shortage: Shortage) -> str:
    """What a `BudgetError` says."""
    place = f" at {shortage.source}" if shortage.source else ""
    return (
        f"checkpoint: a budget of {format_bytes(budget)} cannot be met. The least for which a plan was found is "
        f"{shortage.least} bytes ({format_bytes(shortage.least)}), most of which `{shortage.operation}`{place} needs. "
        "Raise the budget, or make that operation smaller (a smaller batch, for example)."
    )
