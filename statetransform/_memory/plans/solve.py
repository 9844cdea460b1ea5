"""Plans for one graph: those that people write by hand, brought into a budget and improved; one judge for all."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

from .blocks import Row, backward_part
from .checkpoints import Checkpoints, Form, by_size, kept_by, plan_of
from .graph import Graph
from .rematerialize import filled, lowered
from .simulate import peak, pruned

_HALVINGS = 6  # of the search for the least bytes
_STARTS = 3  # plans by hand that are brought into a budget
_ALIKE = 1.0005  # times the work of another one: plans that differ by less lead to the same


@dataclasses.dataclass(frozen=True)
class Plan:
    """A sequence of nodes with its two figures.

    Attributes:
      sequence: the nodes in the order in which they run.
      bytes: the most that are alive at once.
      cost: operations.
      checkpoints: those that people write by hand to have this plan, if it is such a one.
    """

    sequence: tuple[int, ...]
    bytes: int
    cost: float
    checkpoints: Checkpoints | None = None


class Solver:
    """Plans for one graph and any budget; what does not depend on the budget is computed once.

    Args:
      graph: the graph.
      forms: the blocks that people put checkpoints around: their ends among the forward nodes, and their equations.
    """

    def __init__(self, graph: Graph, forms: Sequence[Form] = ()) -> None:
        self.graph, self._forms = graph, forms
        self._rated: dict[tuple[int, ...], Plan] = {}
        self._plans: dict[int, Plan | None] = {}
        # Without recomputation; what only the backward pass needs is computed when that needs it.
        forward, made = sorted(graph.primal), {v for i in graph.primal for v in graph.nodes[i].outputs}
        behind = [i for i, node in enumerate(graph.nodes) if node.is_backward]
        self.plain = self.rated([*forward, *backward_part(graph, behind, made)])

    def rated(self, sequence: Sequence[int]) -> Plan:
        """A sequence without what nothing needs, and its figures."""
        kept = tuple(pruned(self.graph, sequence))
        if kept not in self._rated:
            self._rated[kept] = Plan(kept, peak(self.graph, kept), self.graph.cost_of(kept))
        return self._rated[kept]

    @functools.cached_property
    def by_hand(self) -> list[Plan]:
        """The plans that people write by hand, those with the fewest bytes first."""
        graph, row, plans = self.graph, Row(self.graph), dict[Plan, Plan]()
        given = self._forms or [(ends, ()) for ends in by_size(row)]
        for ends, blocks in given:
            cut = row.cut(ends)
            for policy, values in kept_by(graph).items():
                plan = self.rated(plan_of(graph, row, cut, values))
                plans.setdefault(plan, dataclasses.replace(plan, checkpoints=Checkpoints(blocks, policy)))
        return sorted(plans.values(), key=lambda plan: (plan.bytes, plan.cost))

    def plan(self, budget: int) -> Plan | None:
        """The cheapest plan found within a budget, None if there is none."""
        if self.plain.bytes <= budget:
            return self.plain
        if budget not in self._plans:
            within = _cheapest(self.by_hand, budget) or self.least
            starts = [within.sequence, *[lowered(self.graph, plan.sequence, budget) for plan in self._above(budget)]]
            graph, found = self.graph, [self.rated(sequence) for sequence in starts if sequence is not None]
            plans = [self.rated(filled(graph, plan.sequence, budget)) for plan in found]  # with less work
            self._plans[budget] = _cheapest([within, *plans], budget)
        return self._plans[budget]

    def _above(self, budget: int) -> list[Plan]:
        """Plans that do not fit: without recomputation, and by hand those with the least work, and the fewest bytes."""
        found: list[Plan] = []
        for plan in sorted(self.by_hand, key=lambda plan: (plan.cost, plan.bytes)):
            if plan.bytes > budget and not (found and plan.cost <= _ALIKE * found[-1].cost):
                found.append(plan)
        thrifty = [plan for plan in self.by_hand[:1] if plan.bytes > budget]
        return [self.plain, *found[:_STARTS], *thrifty]

    @functools.cached_property
    def least(self) -> Plan:
        """The plan with the fewest bytes that is found."""
        best = min([self.plain, *self.by_hand], key=lambda plan: (plan.bytes, plan.cost))
        low = 0
        for _ in range(_HALVINGS):
            if best.bytes - low <= 0.02 * best.bytes:
                break
            middle = (low + best.bytes) // 2
            sequence = lowered(self.graph, best.sequence, middle)
            low, best = (middle, best) if sequence is None else (low, self.rated(sequence))
        return best


def _cheapest(plans: list[Plan], budget: int) -> Plan | None:
    fitting = [plan for plan in plans if plan.bytes <= budget]
    return min(fitting, key=lambda plan: (plan.cost, plan.bytes), default=None)
