"""The portfolio: several solvers, one judge."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Iterator, Sequence

from . import bound, exact
from .blocks import Blocks, backward_part
from .chain import Chain, unit_for
from .evict import lowered
from .fill import filled
from .graph import Graph
from .hand import written_by_hand
from .improve import improved
from .simulate import peak, pruned
from .tidy import tidied

_GRID = 1.15  # between the budgets of plans that others are made of
_CHEAP = 1.003  # of the plain work: too little to look for less
_ATTEMPTS = 20  # to make a plan better
_HALVINGS = 5  # of the search for the least bytes


@dataclasses.dataclass(frozen=True)
class Plan:
    """A sequence of nodes with its two figures.

    Attributes:
      sequence: the nodes in the order in which they run.
      bytes: the most that are alive at once.
      cost: operations.
    """

    sequence: tuple[int, ...]
    bytes: int
    cost: float


class Solver:
    """Plans for one graph and any budget; what does not depend on the budget is computed once.

    Args:
      graph: the graph.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._rated: dict[tuple[int, ...], Plan] = {}
        self._blocks: dict[int, Blocks] = {}
        self._drafts: dict[int, Plan | None] = {}
        self._improved: dict[int, Plan] = {}
        self._dropped: dict[tuple[tuple[int, ...], int], Plan | None] = {}
        self._chains: dict[int, Chain] = {}
        self.plain = min(self._plain(), key=lambda plan: plan.bytes)

    def _plain(self) -> list[Plan]:
        """Plans without recomputation: what only the backward pass needs is computed at once, or when it is needed."""
        graph = self.graph
        forward = [i for i in range(len(graph.nodes)) if i in graph.primal]
        behind = [i for i, node in enumerate(graph.nodes) if node.is_backward]
        values = {v: 0 for i, node in enumerate(graph.nodes) if not node.is_backward for v in node.outputs}
        made = {v for i in forward for v in graph.nodes[i].outputs}
        late = [*forward, *backward_part(graph, behind, made, values)]
        return [self.rated(graph.plain), self.rated(late)]

    def rated(self, sequence: Sequence[int]) -> Plan:
        """A sequence without what nothing needs, and its figures."""
        kept = tuple(pruned(self.graph, sequence))
        if kept not in self._rated:
            better = tuple(tidied(self.graph, kept))
            sizes = {some: peak(self.graph, some) for some in (kept, better)}
            best = min(sizes, key=sizes.__getitem__)
            self._rated[kept] = self._rated[best] = Plan(best, sizes[best], self.graph.cost_of(best))
        return self._rated[kept]

    @property
    def _count(self) -> int:
        """How many blocks the dynamic program has at most."""
        n = len(self.graph.primal)
        return max(1, min(n, 32 if n < 400 else 40))

    def _chain(self, count: int) -> Blocks:
        if count not in self._blocks:
            self._blocks[count] = Blocks(self.graph, count)
        return self._blocks[count]

    @functools.cached_property
    def by_hand(self) -> list[Plan]:
        """The plans that people write by hand, those with the fewest bytes first."""
        plans = map(self.rated, written_by_hand(self.graph, self._chain, self._count))
        return sorted(dict.fromkeys(plans), key=lambda plan: (plan.bytes, plan.cost))

    @functools.cached_property
    def necessary(self) -> int:
        """Fewer bytes are proved to be impossible."""
        return bound.least_bytes(self.graph)[0]

    def plan(self, budget: int) -> Plan | None:
        """The cheapest plan found within a budget, None if there is none."""
        draft = self.draft(budget)
        if draft is None or draft.cost <= _CHEAP * self.graph.cost:
            return draft
        if budget not in self._improved:
            better = self.rated(improved(self.graph, draft.sequence, budget, _ATTEMPTS))
            self._improved[budget] = _cheapest([draft, better], budget) or draft
        return self._improved[budget]

    def draft(self, budget: int) -> Plan | None:
        """The cheapest plan found within a budget before it is improved by force, None if there is none."""
        if self.plain.bytes <= budget:
            return self.plain
        if budget < self.necessary:
            return None
        if budget not in self._drafts:
            plans = [*self._by_chain(budget), *self._by_hand(budget), *self._by_dropping(budget, self._seeds(budget))]
            if len(self.graph.nodes) <= exact.LARGEST and (found := exact.best(self.graph, budget)) is not None:
                plans.append(self.rated(found[1]))
            if not plans and self.least.bytes <= budget:
                plans.append(self._better(self.least.sequence, budget))
            self._drafts[budget] = _cheapest(plans, budget)
        return self._drafts[budget]

    def near(self, plan: Plan, budget: int) -> Plan | None:
        """A plan within a budget made of the best one for a budget that is hardly larger or smaller, in less time."""
        plans = [*self._by_hand(budget), *self._by_dropping(budget, [plan, self.plain])]
        if plan.bytes <= budget:
            plans.append(self._better(plan.sequence, budget))
        return _cheapest(plans, budget)

    def _by_hand(self, budget: int) -> list[Plan]:
        """The cheapest of the plans by hand that fit, and what becomes of it with the memory that is left."""
        best = _cheapest(self.by_hand, budget)
        return [] if best is None else [best, self._better(best.sequence, budget)]

    def _by_chain(self, budget: int) -> list[Plan]:
        target = float(budget)
        for _ in range(3):
            plan = self._chained(int(target))
            if plan is None:
                # The chain counts some bytes twice: what it cannot do may be possible all the same.
                if target > 1.4 * budget:
                    break
                target *= 1.25
            elif plan.bytes <= budget:
                return [self._better(plan.sequence, budget)]
            else:
                target = min(target * budget / plan.bytes, 0.97 * target)
        return []

    def _chained(self, target: int) -> Plan | None:
        """What the dynamic program finds for so many bytes, no matter what the bytes are in the end."""
        unit = unit_for(target)
        if unit not in self._chains:
            self._chains[unit] = Chain(self._chain(self._count), unit)
        sequence = self._chains[unit].sequence(target)
        return None if sequence is None else self.rated(sequence)

    def _by_dropping(self, budget: int, seeds: Iterable[Plan]) -> list[Plan]:
        """Plans for larger budgets, brought into this one."""
        larger = dict.fromkeys(seed.sequence for seed in seeds if seed.bytes > budget)
        return [plan for sequence in larger if (plan := self._lowered(sequence, budget)) is not None]

    def _lowered(self, sequence: tuple[int, ...], budget: int) -> Plan | None:
        key = sequence, budget
        if key not in self._dropped:
            found = lowered(self.graph, sequence, budget)
            self._dropped[key] = None if found is None else self._better(found, budget)
        return self._dropped[key]

    def _seeds(self, budget: int) -> Iterator[Plan]:
        """The plain plan, and one for a larger budget; from a grid, so that budgets have it in common."""
        yield self.plain
        k = math.ceil(math.log(self.plain.bytes / max(budget, 1)) / math.log(_GRID)) - 3
        if k > 0 and (found := self._chained(int(self.plain.bytes / _GRID**k))) is not None:
            yield found

    def _better(self, sequence: Sequence[int], budget: int) -> Plan:
        """A plan within the budget with less work than one that is."""
        return self.rated(filled(self.graph, self.rated(sequence).sequence, budget))

    @functools.cached_property
    def least(self) -> Plan:
        """The plan with the fewest bytes that is found."""
        best = min([self.plain, *self.by_hand], key=lambda plan: (plan.bytes, plan.cost))
        low = self.necessary - 1
        for _ in range(_HALVINGS):
            if best.bytes - low <= 0.02 * best.bytes:
                break
            middle = (low + best.bytes) // 2
            found = self._squeezed(best, middle)
            low, best = (middle, best) if found is None else (low, found)
        return best

    def _squeezed(self, plan: Plan, budget: int) -> Plan | None:
        """A plan within a budget made of a larger one, or by the dynamic program."""
        sequence = lowered(self.graph, plan.sequence, budget)
        if sequence is not None:
            return self.rated(sequence)
        found = self._chained(budget)
        if found is not None and found.bytes > budget:
            sequence = lowered(self.graph, found.sequence, budget)
            found = None if sequence is None else self.rated(sequence)
        return found


def _cheapest(plans: list[Plan], budget: int) -> Plan | None:
    fitting = [plan for plan in plans if plan.bytes <= budget]
    return min(fitting, key=lambda plan: (plan.cost, plan.bytes), default=None)
