"""From a budget to a program: plans, compiles, reads the bytes, and plans again.

At most three compilations for each pattern of differentiation: of the plain gradient step, of the plan, and of a plan
with what operations need inside taken into account, or else of the step that was chosen together with the function's
value, where one more array would be too much.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax

from .._core import jaxcompat
from .._jaxpr.rewrite import inlined
from .._jaxpr.sizes import format_bytes
from .._jaxpr.sources import shown_source
from .._jaxpr.walk import walk
from . import devices
from .emit import Emitted, whole
from .joint import THRIFTY, Pattern
from .loops import scans_in
from .simulate import profile
from .solve import Plan
from .versions import Version, Versions

logger = logging.getLogger("statetransform")

# Of the CPU's compiler: the same temporaries and operations in half the time.
_FAST = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}

_LITTLE_WORK = 1.02  # of the plain work: a graph that repeats some of it hardly leads to less
_CHEAP = 1.06  # the same for one that repeats much
# How much more than the compiler the simulator has to see in the plain program to trust the compiler's fusion.
_FUSES = 1.1
_LITTLE = 0.02  # of the budget: an excess below is taken for one of this size, since compilers have buffers as a whole
_ATTEMPTS = 2  # compilations before a budget is given up
_FAR = 1.25  # times the planned bytes
_NEAR = 1.25  # how far apart budgets may be for the plan of one to lead to that of the other
_MARGINS = (1.75, 1.2, 1.0)  # of what was missing, to take off a plan: the compiler saves less than that
_OF_LOOPS = 1.05  # the same where compilers need besides what they need for the schedule at hand


@dataclasses.dataclass(frozen=True)
class Decision:
    """What a budget leads to for one pattern.

    Attributes:
      emitted: the plan as programs; None for the plain program.
      planned: bytes of the plan.
      compiled: temporary bytes of the compiled gradient step, None if it could not be read.
      cost: operations over those of the plain program.
    """

    emitted: Emitted | None
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


def temporary_bytes(function: Callable[..., Any], version: Version) -> int | None:
    """Temporary bytes of a compiled step of a version on one device; None where the backend does not say."""
    try:
        lowered = devices.lowered(function, version.avals, version.shardings)
    except Exception as error:  # what cannot be compiled alone can still be planned
        logger.info("the gradient step alone cannot be compiled: %s", error)
        return None
    options: dict[str, Any] | None = _FAST if jax.default_backend() == "cpu" else None
    try:
        compiled = lowered.compile(compiler_options=options)
        found = compiled.memory_analysis()
        return None if found is None else int(found.temp_size_in_bytes)
    except Exception as error:
        logger.info("the compiler does not say how many bytes the gradient step needs: %s", error)
        return None


class Planner:
    """Everything about one function: its graphs by pattern, and decisions by pattern and budget.

    Calls are inlined, so that the loops in them are seen, and so are checkpoints: a plan starts from all values.

    Args:
      closed: the closed jaxpr of the function.
      shardings: those of its inputs, None where they are not known or in the types.
    """

    def __init__(self, closed: Any, shardings: Sequence[Any] = ()) -> None:
        self._shardings = shardings
        self.closed = inlined(closed)
        self._written = closed if any(jaxcompat.is_remat(site.eqn) for site in walk(closed)) else None
        self._versions: dict[Pattern, Versions] = {}
        self._plain: dict[Pattern, int | None] = {}
        self._compilations = 0  # for this decision

    def versions(self, pattern: Pattern) -> Versions:
        """The function in its various forms."""
        if pattern not in self._versions:
            self._versions[pattern] = Versions(self.closed, pattern, self._written, self._shardings)
        return self._versions[pattern]

    def plain_bytes(self, pattern: Pattern) -> int | None:
        """Temporary bytes of the plain gradient step."""
        if pattern not in self._plain:
            version = self.versions(pattern).first
            self._plain[pattern] = self._bytes_of(version, version.plain_step)
        return self._plain[pattern]

    def plain_for(self, pattern: Pattern, budget: int) -> int | None:
        """The same, with the value of the function, too, if that makes the difference."""
        self._compilations = 0
        size = self.plain_bytes(pattern)
        return size if size is None else self._at_worst(pattern, self.versions(pattern).first.plain_step, size, budget)

    def plan(self, pattern: Pattern, budget: int) -> tuple[Version, Plan] | None:
        """The cheapest plan found, over all versions."""
        versions = self.versions(pattern)
        first, exact = versions.first, versions.exact
        draft = exact.solver.draft(budget)
        if draft is not None and self._is_little(draft, first):
            return exact, exact.solver.plan(budget) or draft
        offers: list[tuple[Version, Plan]] = []
        for version in (first, *versions.opened(budget)):
            self._offer(offers, version, budget)
        least = min((plan.cost for _, plan in offers), default=math.inf)
        if least > _CHEAP * first.joint.work and (thrifty := versions.fused(THRIFTY)) is not None:
            self._offer(offers, thrifty, budget)
        offers += [(exact, draft)] if draft is not None and not offers else []
        return min(offers, key=lambda offer: (offer[1].cost, offer[1].bytes), default=None)

    def _offer(self, offers: list[tuple[Version, Plan]], version: Version, budget: int) -> None:
        """Adds the plan of a version to those of others, improved at some expense, if it begins with less work."""
        least = min((plan.cost for _, plan in offers), default=math.inf)
        draft = version.solver.draft(budget) if version.joint.graph.cost < least else None
        begun = [some.cost for other, _ in offers if (some := other.solver.draft(budget)) is not None]
        if draft is not None and draft.cost < min(begun, default=math.inf):
            offers.append((version, version.solver.plan(budget) or draft))

    def _is_little(self, plan: Plan, first: Version) -> bool:
        return plan.cost <= _LITTLE_WORK * first.joint.work

    def least(self, pattern: Pattern) -> tuple[Version, Plan]:
        """The plan with the fewest bytes that is found."""
        versions = self.versions(pattern).thriftiest()
        return min(((version, version.solver.least) for version in versions), key=lambda offer: offer[1].bytes)

    def decide(self, pattern: Pattern, budget: int) -> Decision | Shortage:
        """The program for a budget."""
        plain, first = self.plain_for(pattern, budget), self.versions(pattern).first
        if plain is not None and plain <= budget:
            return Decision(None, first.solver.plain.bytes, plain, 1.0)
        found = self._planned(pattern, budget, plain)
        if isinstance(found, Shortage) or found.emitted is None or found.compiled is None:
            return found
        step = whole(found.emitted, first.joint.n_inputs)
        return dataclasses.replace(found, compiled=self._at_worst(pattern, step, found.compiled, budget))

    def _at_worst(self, pattern: Pattern, step: Callable[..., list[Any]], size: int, budget: int) -> int:
        """The bytes of a step that fits without the value of the function, with it, too, if one more could be too much.

        Compilers find room for intermediates by rules of thumb: with the value, one of them has a place of its own
        at times.
        """
        first = self.versions(pattern).first
        if not size <= budget < size + max(first.joint.graph.sizes, default=0) or self._compilations > _ATTEMPTS:
            return size
        return max(size, self._bytes_of(first, step, with_value=True) or 0)

    def _bytes_of(self, version: Version, step: Callable[..., list[Any]], with_value: bool = False) -> int | None:
        self._compilations += 1
        return temporary_bytes(version.as_outermost(step, with_value), version)

    def _planned(self, pattern: Pattern, budget: int, plain: int | None) -> Decision | Shortage:
        first = self.versions(pattern).first
        # Where the compiler needs more for the plain program than the simulator sees, it will for a plan, too.
        ratio = 1.0 if not plain else min(first.solver.plain.bytes / plain, 1.0)
        target = int(budget * max(ratio, 0.85))
        offer = self.plan(pattern, target)
        if offer is None:
            target = budget
            offer = self.plan(pattern, budget)
        if offer is None and (least := self.least(pattern))[1].bytes <= budget:
            offer = least  # of another way to run the loops than those for this budget
        if offer is None:
            return self._by_hand(pattern, plain, budget) or self._shortage(pattern)
        if plain is None and offer[0] in (first, self.versions(pattern).exact) and offer[1] == offer[0].solver.plain:
            return Decision(None, offer[1].bytes, None, 1.0)
        best = self._compiled(*offer)
        second = self._second(pattern, budget, target, offer, best, self._loose(first, plain, budget, best))
        return best if second is None else min(best, self._compiled(*second), key=lambda d: _rank(d, budget))

    def _second(
        self,
        pattern: Pattern,
        budget: int,
        target: int,
        offer: tuple[Version, Plan],
        found: Decision,
        loose: Plan | None,
    ) -> tuple[Version, Plan, bool] | None:
        """What to compile when a plan has been compiled, and whether with few barriers: what may take less work."""
        again = self._again(pattern, budget, target, offer, found)
        # A compiler that needs much more fuses across barriers, and holds what it fuses with.
        is_far = found.compiled is not None and found.compiled > max(_FAR * offer[1].bytes, budget)
        if loose is not None and (again is None or loose.cost <= again[1].cost):
            return self.versions(pattern).first, loose, True
        if again is not None and (again[0] is not offer[0] or again[1].sequence != offer[1].sequence):
            return *again, is_far
        exceeds = found.compiled is not None and found.compiled > budget
        return (*offer, True) if exceeds else None

    def _loose(self, first: Version, plain: int | None, budget: int, found: Decision) -> Plan | None:
        """A plan as by hand that promises more than the one found, where the compiler fuses more than is seen.

        A plan with a barrier at each run forbids that, so what is fused in the plain program takes memory in it.
        """
        seen = first.solver.plain.bytes
        if not plain or found.compiled is None or seen < _FUSES * plain:
            return None
        fitting = [plan for plan in first.solver.by_hand if plan.bytes * plain <= budget * seen]
        best = min(fitting, key=lambda plan: (plan.cost, plan.bytes), default=None)
        if best is None or (found.compiled <= budget and found.cost * first.joint.work <= best.cost):
            return None
        return best

    def _by_hand(self, pattern: Pattern, plain: int | None, budget: int) -> Decision | None:
        """When no plan is found: one as by hand may fit all the same, as compiled."""
        first = self.versions(pattern).first
        if plain is None:
            return None
        for plan in sorted(first.solver.by_hand[:_ATTEMPTS], key=lambda plan: plan.cost):
            found = self._compiled(first, plan, True)
            if found.compiled is not None and found.compiled <= budget:
                return found
        return None

    def _again(
        self, pattern: Pattern, budget: int, target: int, offer: tuple[Version, Plan], found: Decision
    ) -> tuple[Version, Plan] | None:
        """Another plan, when the compiler says that there is too little memory, or more than was thought."""
        if found.compiled is None:
            return None
        plan = offer[1]
        if found.compiled > budget:
            over = max(found.compiled - budget, int(_LITTLE * budget))
            offers = (self._near(pattern, offer, max(int(plan.bytes - margin * over), 1)) for margin in _MARGINS)
            return self._alike(pattern, offer, over) or next(filter(None, offers), None) or self._less(pattern, plan)
        room = min(budget, int(plan.bytes * budget / max(found.compiled, 1) * 0.98))
        return self._near(pattern, offer, room) if found.cost > 1.0 + 1e-9 and room > 1.02 * target else None

    def _less(self, pattern: Pattern, plan: Plan) -> tuple[Version, Plan] | None:
        """The plan with the fewest bytes that is found, if it has fewer than another one."""
        least = self.least(pattern)
        return least if least[1].bytes < plan.bytes else None

    def _alike(self, pattern: Pattern, offer: tuple[Version, Plan], over: int) -> tuple[Version, Plan] | None:
        """A plan of the same nodes with a schedule for its loops that saves what is missing, and hardly more."""
        size = int(offer[1].bytes - _OF_LOOPS * over)
        found = self.plan(pattern, size) if scans_in(self.closed) and size > 0 else None
        is_alike = found is not None and len(found[0].joint.graph.nodes) == len(offer[0].joint.graph.nodes)
        return found if is_alike else None

    def _near(self, pattern: Pattern, offer: tuple[Version, Plan], budget: int) -> tuple[Version, Plan] | None:
        """A plan for another budget, from the one at hand if it is near; loops are opened anew for each budget."""
        version, plan = offer
        is_near = plan.bytes <= _NEAR * budget and budget <= _NEAR * plan.bytes
        found = version.solver.near(plan, budget) if is_near and not scans_in(self.closed) else None
        if found is not None and version is self.versions(pattern).exact and not self._is_little(found, version):
            found = None
        return self.plan(pattern, budget) if found is None else (version, found)

    def _compiled(self, version: Version, plan: Plan, is_loose: bool = False) -> Decision:
        first = self.versions(version.pattern).first
        emitted = Emitted(version.joint, plan.sequence, is_loose)
        size = self._bytes_of(version, whole(emitted, version.joint.n_inputs))
        return Decision(emitted, plan.bytes, size, plan.cost / max(first.joint.work, 1e-9))

    def _shortage(self, pattern: Pattern) -> Shortage:
        version, plan = self.least(pattern)
        graph = version.joint.graph
        node = graph.nodes[plan.sequence[int(profile(graph, plan.sequence).argmax())]]
        return Shortage(plan.bytes, node.eqns[-1].primitive.name, shown_source(node.eqns[-1]))


def _rank(decision: Decision, budget: int) -> tuple[bool, float]:
    size = decision.planned if decision.compiled is None else decision.compiled
    return size > budget, float(size) if size > budget else decision.cost


def shortage_message(budget: int, shortage: Shortage) -> str:
    """What a `BudgetError` says."""
    place = f" at {shortage.source}" if shortage.source else ""
    return (
        f"checkpoint: a budget of {format_bytes(budget)} cannot be met. The least for which a plan was found is "
        f"{shortage.least} bytes ({format_bytes(shortage.least)}), most of which `{shortage.operation}`{place} needs. "
        "Raise the budget, or make that operation smaller (a smaller batch, for example)."
    )
