"""The portfolio: several solvers, one judge."""

from __future__ import annotations

import dataclasses

from . import exact
from .blocks import Blocks, backward_part
from .chain import Chain
from .fill import filled
from .graph import Graph
from .simulate import peak, pruned
from .tidy import tidied


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
        self._blocks: dict[int, Blocks] = {}
        self._found: dict[int, Plan | None] = {}
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

    def rated(self, sequence: list[int] | tuple[int, ...]) -> Plan:
        """A sequence without what nothing needs, and its figures."""
        kept = pruned(self.graph, sequence)
        better = tidied(self.graph, kept)
        size, other = peak(self.graph, kept), peak(self.graph, better)
        if other < size:
            kept, size = better, other
        return Plan(tuple(kept), size, self.graph.cost_of(kept))

    def _counts(self) -> list[int]:
        n = len(self.graph.primal)
        most = max(1, min(n, 32 if n < 400 else 40))
        return sorted({most, min(max(2, n // 8), most)})

    def _chain(self, count: int) -> Blocks:
        if count not in self._blocks:
            self._blocks[count] = Blocks(self.graph, count)
        return self._blocks[count]

    def plan(self, budget: int) -> Plan | None:
        """The cheapest plan found within a budget, None if there is none."""
        if self.plain.bytes <= budget:
            return self.plain
        if budget not in self._found:
            plans = [plan for count in self._counts() for plan in self._by_chain(count, budget)]
            if len(self.graph.nodes) <= exact.LARGEST and (found := exact.best(self.graph, budget)) is not None:
                plans.append(self.rated(found[1]))
            self._found[budget] = min(plans, key=lambda plan: (plan.cost, plan.bytes), default=None)
        return self._found[budget]

    def _by_chain(self, count: int, budget: int) -> list[Plan]:
        blocks = self._chain(count)
        target, found = float(budget), []
        for _ in range(4):
            sequence = Chain(blocks, int(target)).sequence()
            if sequence is None:
                # The chain counts some bytes twice: what it cannot do may be possible all the same.
                if found or target > 1.6 * budget:
                    break
                target *= 1.15
                continue
            plan = self.rated(sequence)
            if plan.bytes <= budget:
                found.append(self.rated(filled(self.graph, plan.sequence, budget)))
                if plan.bytes > 0.9 * budget or target > budget:
                    break
                target = min(target * budget / max(plan.bytes, 1), 1.5 * target)
            else:
                target = min(target * budget / plan.bytes, 0.97 * target)
        return found

    def least(self) -> Plan:
        """The plan with the fewest bytes that is found."""
        best = self.plain
        low = 0
        for _ in range(7):
            middle = (low + best.bytes) // 2
            plan = self.plan(middle)
            if plan is None:
                low = middle
            else:
                best = plan
            if best.bytes - low <= 0.02 * best.bytes:
                break
        return best
