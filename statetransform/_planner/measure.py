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

from .._core.errors import BudgetError
from .._jaxpr.sizes import format_bytes
from . import bound
from .cost import LOOPS
from .emit import Emitted, whole
from .graph import Graph
from .joint import THRIFTY, Pattern
from .loops import Opened, scans_in, with_budget, with_least, with_steps
from .solve import Plan
from .versions import Version

logger = logging.getLogger("statetransform")

# Of the CPU's compiler: the same temporaries and operations in half the time.
_FAST = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}

_ENDLESS = 1 << 62  # bytes with which a loop is not opened
_OPENED = 6  # versions with loops opened for one budget
_CHEAP = 1.06  # of the plain work: a graph that repeats cheap work hardly leads to less
# How much more than the compiler the simulator has to see in the plain program to trust the compiler's fusion.
_FUSES = 1.1
_LITTLE = 0.02  # of the budget: an excess below is taken for one of this size, since compilers have buffers as a whole
_ATTEMPTS = 2  # compilations before a budget is given up
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
      necessary: the fewest that are proved to be necessary.
      operation: which operation needs these.
      source: where it stands, if that is known.
    """

    least: int
    necessary: int
    operation: str
    source: str | None


def temporary_bytes(function: Callable[..., Any], avals: list[Any]) -> int | None:
    """Temporary bytes of a compiled function; None where the backend does not say."""
    try:
        lowered = jax.jit(function, keep_unused=True).lower(*avals)
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

    Args:
      closed: the closed jaxpr of the function.
    """

    def __init__(self, closed: Any) -> None:
        self.closed = closed
        self._versions: dict[Pattern, list[Version]] = {}
        self._plain: dict[Pattern, int | None] = {}
        self._thrifty: dict[Pattern, Version | None] = {}
        self._opened_for: dict[tuple[Pattern, int], Opened | None] = {}
        self._tried: dict[Pattern, list[tuple[int, int]]] = {}
        self._compilations = 0  # for this decision

    def versions(self, pattern: Pattern) -> list[Version]:
        """The function with its loops opened to various degrees, the plain one first."""
        if pattern not in self._versions:
            first = Version(self.closed, pattern)
            self._versions[pattern] = [first]
        return self._versions[pattern]

    def plain_bytes(self, pattern: Pattern) -> int | None:
        """Temporary bytes of the plain gradient step."""
        if pattern not in self._plain:
            version = self.versions(pattern)[0]
            self._plain[pattern] = self._bytes_of(version, version.plain_step)
        return self._plain[pattern]

    def plain_for(self, pattern: Pattern, budget: int) -> int | None:
        """The same, with the value of the function, too, if that makes the difference."""
        self._compilations = 0
        size = self.plain_bytes(pattern)
        return size if size is None else self._at_worst(pattern, self.versions(pattern)[0].plain_step, size, budget)

    def plan(self, pattern: Pattern, budget: int) -> tuple[Version, Plan] | None:
        """The cheapest plan found, over all versions."""
        first = self.versions(pattern)[0]
        offers = [(first, plan)] if (plan := first.solver.plan(budget)) is not None else []
        others = self._opened(pattern, budget)
        is_cheap = bool(offers) and offers[0][1].cost <= _CHEAP * first.joint.graph.cost
        if not is_cheap and (thrifty := self.thrifty(pattern)) is not None:
            others.append(thrifty)
        for version in others:
            least = min((offer[1].cost for offer in offers), default=math.inf)
            draft = version.solver.draft(budget) if version.joint.graph.cost < least else None
            # Plans are improved at some expense: not those that begin with more work than others.
            begun = [some.cost for offer in offers if (some := offer[0].solver.draft(budget)) is not None]
            if draft is not None and draft.cost < min(begun, default=math.inf):
                offers.append((version, version.solver.plan(budget) or draft))
        return min(offers, key=lambda offer: (offer[1].cost, offer[1].bytes), default=None)

    def thrifty(self, pattern: Pattern) -> Version | None:
        """The function with more of its cheap values computed where they are used; None if there are none."""
        if pattern not in self._thrifty:
            first = self.versions(pattern)[0]
            version = Version(first.closed, pattern, "thrifty", THRIFTY, first)
            is_other = len(version.joint.graph.nodes) < len(first.joint.graph.nodes)
            self._thrifty[pattern] = version if is_other else None
        return self._thrifty[pattern]

    def _opened(self, pattern: Pattern, budget: int) -> list[Version]:
        """Versions with the loops opened such that they have what the rest leaves of a budget."""
        first, n = self.versions(pattern)[0], len(scans_in(self.closed))
        if not n or first.solver.plain.bytes <= budget:
            return []
        products = self._version(pattern, with_steps(self.closed, True))
        found = {products.key: products}
        for _ in range(_OPENED):
            opened = self._opened_to(pattern, _for_loops(self._known(pattern), budget) // n)
            if opened is None or str(opened.key) in found:
                break
            version = self._version(pattern, opened)
            found[version.key] = version
            self._known(pattern).append((opened.bytes, version.solver.plain.bytes))
        if all(version.solver.plain.bytes > budget for version in found.values()):
            steps = self._version(pattern, with_steps(self.closed))
            found[steps.key] = steps
        return list(found.values())

    def _known(self, pattern: Pattern) -> list[tuple[int, int]]:
        """Bytes for the loops, and bytes of all, as far as known; those of the plain function to begin with."""
        if pattern not in self._tried:
            plain = with_budget(self.closed, _ENDLESS, pattern.inputs)
            self._tried[pattern] = [(plain.bytes, self.versions(pattern)[0].solver.plain.bytes)]
        return self._tried[pattern]

    def _opened_to(self, pattern: Pattern, size: int) -> Opened | None:
        """The function with so many bytes for each loop; None if one of them cannot do with that."""
        key = pattern, size
        if key not in self._opened_for:
            try:
                self._opened_for[key] = with_budget(self.closed, size, pattern.inputs) if size > 0 else None
            except BudgetError:
                self._opened_for[key] = None
        return self._opened_for[key]

    def _version(self, pattern: Pattern, opened: Opened) -> Version:
        known = next((v for v in self.versions(pattern) if v.key == str(opened.key)), None)
        if known is None:
            known = Version(opened.jaxpr, pattern, str(opened.key))
            self.versions(pattern).append(known)
        return known

    def least(self, pattern: Pattern) -> tuple[Version, Plan]:
        """The plan with the fewest bytes that is found."""
        others = [self.thrifty(pattern)]
        if scans_in(self.closed):
            others += [
                self._version(pattern, with_least(self.closed, pattern.inputs)),
                self._version(pattern, with_steps(self.closed)),
            ]
        versions = [self.versions(pattern)[0], *filter(None, others)]
        return min(((version, version.solver.least) for version in versions), key=lambda offer: offer[1].bytes)

    def necessary(self, pattern: Pattern) -> tuple[int, str, str | None]:
        """The fewest bytes that are proved to be necessary, the operation that needs them, and its source."""
        from .._jaxpr.sources import source_of

        graph = (self.thrifty(pattern) or self.versions(pattern)[0]).joint.graph
        size, node = bound.least_bytes(graph, self._loops(graph))
        if node is None:
            return 0, "nothing", None
        eqn = graph.nodes[node].eqns[-1]
        source = source_of(eqn)
        return size, eqn.primitive.name, None if source is None else str(source)

    def least_cost(self, pattern: Pattern) -> bound.LeastCost:
        """The operations that are proved to be necessary, for any budget."""
        graph = self.versions(pattern)[0].joint.graph
        return bound.LeastCost(graph, self._loops(graph))

    def _loops(self, graph: Graph) -> list[int]:
        """The nodes that can be run in other ways, if loops are opened."""
        return [i for i, node in enumerate(graph.nodes) if _has_loop(node)] if scans_in(self.closed) else []

    def decide(self, pattern: Pattern, budget: int) -> Decision | Shortage:
        """The program for a budget."""
        plain, first = self.plain_for(pattern, budget), self.versions(pattern)[0]
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
        first = self.versions(pattern)[0]
        if not size <= budget < size + max(first.joint.graph.sizes, default=0) or self._compilations > _ATTEMPTS:
            return size
        return max(size, self._bytes_of(first, step, with_value=True) or 0)

    def _bytes_of(self, version: Version, step: Callable[..., list[Any]], with_value: bool = False) -> int | None:
        self._compilations += 1
        return temporary_bytes(version.as_outermost(step, with_value), version.avals)

    def _planned(self, pattern: Pattern, budget: int, plain: int | None) -> Decision | Shortage:
        first = self.versions(pattern)[0]
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
        if plain is None and offer[0] is first and offer[1] == first.solver.plain:
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
        if loose is not None and (again is None or loose.cost <= again[1].cost):
            return self.versions(pattern)[0], loose, True
        if again is not None and (again[0] is not offer[0] or again[1].sequence != offer[1].sequence):
            return *again, False
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
        if best is None or (found.compiled <= budget and found.cost * first.joint.graph.cost <= best.cost):
            return None
        return best

    def _by_hand(self, pattern: Pattern, plain: int | None, budget: int) -> Decision | None:
        """When no plan is found: one as by hand may fit all the same, as compiled."""
        first = self.versions(pattern)[0]
        if plain is None or self.necessary(pattern)[0] > budget:
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
        return self.plan(pattern, budget) if found is None else (version, found)

    def _compiled(self, version: Version, plan: Plan, is_loose: bool = False) -> Decision:
        first = self.versions(version.pattern)[0]
        emitted = Emitted(version.joint, plan.sequence, is_loose)
        size = self._bytes_of(version, whole(emitted, version.joint.n_inputs))
        return Decision(emitted, plan.bytes, size, plan.cost / max(first.joint.graph.cost, 1e-9))

    def _shortage(self, pattern: Pattern) -> Shortage:
        _, plan = self.least(pattern)
        size, operation, source = self.necessary(pattern)
        return Shortage(plan.bytes, min(size, plan.bytes), operation, source)


def _rank(decision: Decision, budget: int) -> tuple[bool, float]:
    size = decision.planned if decision.compiled is None else decision.compiled
    return size > budget, float(size) if size > budget else decision.cost


def _for_loops(tried: Sequence[tuple[int, int]], budget: int) -> int:
    """How many bytes loops may have for all to have a budget, by what was tried: on a line through the nearest two."""
    ordered = sorted(tried, key=lambda sizes: abs(sizes[1] - budget))
    loops, all_of_it = ordered[0]
    slope = 1.0
    if len(ordered) > 1 and ordered[1][1] != all_of_it:
        slope = (ordered[1][0] - loops) / (ordered[1][1] - all_of_it)
    size = int(loops + slope * (budget - all_of_it))
    too_large = [some for some, most in tried if most > budget]
    return min(size, min(too_large, default=size + 1) - 1)


def _has_loop(node: Any) -> bool:
    return any(eqn.primitive.name in LOOPS for eqn in node.eqns)


def shortage_message(budget: int, shortage: Shortage) -> str:
    """What a `BudgetError` says."""
    place = f" at {shortage.source}" if shortage.source else ""
    return (
        f"checkpoint: a budget of {format_bytes(budget)} cannot be met. The least for which a plan was found is "
        f"{shortage.least} bytes ({format_bytes(shortage.least)}); at least {shortage.necessary} bytes "
        f"({format_bytes(shortage.necessary)}) are necessary, for `{shortage.operation}`{place}. "
        "Raise the budget, or make that operation smaller (a smaller batch, for example)."
    )
