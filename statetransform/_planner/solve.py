"""The portfolio: several solvers, one judge."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence

from . import exact
from .blocks import Blocks, backward_part
from .chain import Chain
from .evict import lowered
from .fill import filled
from .graph import Graph
from .simulate import peak, pruned
from .tidy import tidied

# Between the budgets of plans that others are made of.
_GRID, _STEP = 1.15, 1.3
_SMALL = 150  # nodes of a graph for which more is tried


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
        self._chains: dict[tuple[int, int], Plan | None] = {}
        self._lowered: dict[int, Plan | None] = {}
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
            plans += self._by_dropping(budget)
            if len(self.graph.nodes) <= exact.LARGEST and (found := exact.best(self.graph, budget)) is not None:
                plans.append(self.rated(found[1]))
            self._found[budget] = min(plans, key=lambda plan: (plan.cost, plan.bytes), default=None)
        return self._found[budget]

    def _by_chain(self, count: int, budget: int) -> list[Plan]:
        target, found = float(budget), []
        for _ in range(4):
            plan = self._chained(count, int(target))
            if plan is None:
                # The chain counts some bytes twice: what it cannot do may be possible all the same.
                if found or target > 1.6 * budget:
                    break
                target *= 1.15
                continue
            if plan.bytes <= budget:
                found.append(self._better(plan.sequence, budget))
                if plan.bytes > 0.9 * budget or target > budget:
                    break
                target = min(target * budget / max(plan.bytes, 1), 1.5 * target)
            else:
                target = min(target * budget / plan.bytes, 0.97 * target)
        return found

    def _chained(self, count: int, target: int) -> Plan | None:
        """What the dynamic program finds for so many blocks and bytes, and no matter what the bytes are in the end."""
        if (count, target) not in self._chains:
            sequence = Chain(self._chain(count), target).sequence()
            self._chains[count, target] = None if sequence is None else self.rated(sequence)
        return self._chains[count, target]

    def _by_dropping(self, budget: int) -> list[Plan]:
        """Plans for larger budgets, brought into this one."""
        found, seen = [], set()
        for seed in self._seeds(budget):
            if seed.bytes <= budget or seed.sequence in seen:
                continue
            seen.add(seed.sequence)
            sequence = lowered(self.graph, seed.sequence, budget)
            if sequence is not None:
                found.append(self._better(sequence, budget))
        return found

    def _seeds(self, budget: int) -> Iterator[Plan]:
        """The plain plan, and some for larger budgets; from grids, so that budgets have them in common."""
        yield self.plain
        steps = math.log(self.plain.bytes / max(budget, 1))
        many = len(self.graph.nodes) < _SMALL
        for back in (1, 2, 3, 4) if many else (1, 2):
            if (found := self._gradual(math.ceil(steps / math.log(_STEP)) - back)) is not None:
                yield found
        for back in (1, 2, 4, 6, 8) if many else (1, 2, 4):
            k = math.ceil(steps / math.log(_GRID)) - back
            if k > 0 and (found := self._chained(self._counts()[-1], int(self.plain.bytes / _GRID**k))) is not None:
                yield found

    def _gradual(self, k: int) -> Plan | None:
        """The plain plan, brought into smaller and smaller budgets; None where that goes no further."""
        if k <= 0:
            return None
        if k not in self._lowered:
            before, budget = self._gradual(k - 1) or self.plain, int(self.plain.bytes / _STEP**k)
            sequence = before.sequence if before.bytes <= budget else lowered(self.graph, before.sequence, budget)
            self._lowered[k] = None if sequence is None else self._better(sequence, budget)
        return self._lowered[k]

    def _better(self, sequence: Sequence[int], budget: int) -> Plan:
        """A plan within the budget with less work than one that is."""
        return self.rated(filled(self.graph, self.rated(sequence).sequence, budget))

    def least(self) -> Plan:
        """The plan with the fewest bytes that is found."""
        best = self.plain
        low = 0
        for _ in range(5):
            middle = (low + best.bytes) // 2
            plan = self.plan(middle)
            if plan is None:
                low = middle
            else:
                best = plan
            if best.bytes - low <= 0.02 * best.bytes:
                break
        return best
