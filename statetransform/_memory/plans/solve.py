"""Plans for one graph, as a curve: from plain differentiation down to the fewest bytes, each with more work.

The plain plan, and those that people write by hand, are brought within fewer and fewer bytes, step by step: what was
dropped for one step stays dropped for the next. At each step the room that is left is filled. The curve is the best of
what was found, whatever budget is asked for.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence

from .blocks import Row, backward_part
from .checkpoints import Checkpoints, Cuts, by_size, kept_by, plan_of
from .graph import Graph
from .rematerialize import filled, fit_to
from .simulate import peak, pruned

_STEP = 0.95  # bytes of one step of the curve over those of the step before
_FEWEST = 1 / 64  # of the bytes of the plain plan, where the curve ends
_LOSING = 6  # steps after which a way down that is never the best one rests, until the others end
_HALVINGS = 3  # between the last step that was reached and the next


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
    """Plans for one graph.

    Args:
      graph: the graph.
      cuts: the blocks that people put checkpoints around.
    """

    def __init__(self, graph: Graph, cuts: Sequence[Cuts] = ()) -> None:
        self.graph, self._cuts = graph, cuts
        self._rated: dict[tuple[int, ...], Plan] = {}
        # Without recomputation; what only the backward pass needs is computed when that needs it.
        forward, made = sorted(graph.primal), {v for i in graph.primal for v in graph.nodes[i].outputs}
        behind = [i for i, node in enumerate(graph.nodes) if node.is_backward]
        self.plain = self.rated([*forward, *backward_part(graph, behind, made)])

    def rated(self, sequence: Sequence[int]) -> Plan:
        """A sequence without what nothing needs, and its figures."""
        kept = tuple(sequence)
        if kept not in self._rated:
            kept = tuple(pruned(self.graph, kept))
        if kept not in self._rated:
            self._rated[kept] = Plan(kept, peak(self.graph, kept), self.graph.cost_of(kept))
        return self._rated[kept]

    @functools.cached_property
    def by_hand(self) -> list[Plan]:
        """The plans that people write by hand, those with the fewest bytes first."""
        graph, row, plans = self.graph, Row(self.graph), dict[Plan, Plan]()
        given = self._cuts or [(ends, ()) for ends in by_size(row)]
        for ends, blocks in given:
            cut = row.cut(ends)
            for policy, values in kept_by(graph).items():
                plan = self.rated(plan_of(graph, row, cut, values))
                plans.setdefault(plan, dataclasses.replace(plan, checkpoints=Checkpoints(blocks, policy)))
        return sorted(plans.values(), key=lambda plan: (plan.bytes, plan.cost))

    @functools.cached_property
    def curve(self) -> list[Plan]:
        """The plans, those with the most bytes and the least work first."""
        found = [self.plain]
        starts = [self.plain, *_front(self.by_hand)]
        self._ways = ways = [_Way(self, start) for start in starts]
        resting: list[_Way] = []
        size = self.plain.bytes
        while size > _FEWEST * self.plain.bytes:
            size = int(_STEP * size)
            plans = [(way, plan) for way in ways if (plan := way.within(size))]
            if not plans and resting:  # one that was never the best may lead farther
                ways, resting = resting, []
                plans = [(way, plan) for way in ways if (plan := way.within(size))]
            if not plans:
                found += self._last(self._ways, size)
                break
            best = min((plan for _, plan in plans), key=lambda plan: (plan.cost, plan.bytes))
            found.append(best)
            for way, plan in plans:
                way.lost = 0 if plan.cost <= best.cost else way.lost + (way.start.bytes > size)
            resting += [way for way in ways if not way.is_over and way.lost >= _LOSING]
            ways = [way for way in ways if not way.is_over and way not in resting]
        return _front([dataclasses.replace(plan, checkpoints=None) for plan in found])[::-1]

    @property
    def least(self) -> list[Plan]:
        """The plans with the fewest bytes, the least work first: what leaves room free may need less as compiled."""
        fewest, bare = self.curve[-1], [self.rated(way.now) for way in self._ways]
        size = min(plan.bytes for plan in bare)
        bare = sorted((plan for plan in bare if plan.bytes == size), key=lambda plan: plan.cost)
        return [fewest, *[dataclasses.replace(plan, checkpoints=None) for plan in (bare[0], bare[-1])]]

    def _last(self, ways: Sequence[_Way], low: int) -> Iterator[Plan]:
        """Plans between the fewest bytes that were reached and those that were not."""
        high = int(low / _STEP)
        for _ in range(_HALVINGS):
            middle = (low + high) // 2
            plans = [plan for way in ways if (plan := way.within(middle))]
            if plans:
                yield min(plans, key=lambda plan: (plan.cost, plan.bytes))
                high = middle
            else:
                low = middle


class _Way:
    """One way down: a plan that is brought within fewer and fewer bytes.

    Args:
      solver: rates plans.
      start: the plan to begin with.

    Attributes:
      now: its nodes, before the room that is left is filled.
      lost: steps since it was the best one.
      is_over: whether it ends here.
    """

    def __init__(self, solver: Solver, start: Plan) -> None:
        self._solver, self.start = solver, start
        self.now: Sequence[int] = start.sequence
        self._bytes = start.bytes
        self.lost, self.is_over = 0, False

    def within(self, size: int) -> Plan | None:
        """The plan within some bytes; None if there is none on this way."""
        graph = self._solver.graph
        if self._bytes > size:
            found = fit_to(graph, self.now, size)
            if found is None:
                self.is_over = True
                return None
            self.now, self._bytes = found, peak(graph, found)
        return self._solver.rated(filled(graph, self.now, size))


def _front(plans: Sequence[Plan]) -> list[Plan]:
    """The plans that no other one beats in both figures, those with the fewest bytes first."""
    found: list[Plan] = []
    for plan in sorted(plans, key=lambda plan: (plan.bytes, plan.cost)):
        if not found or plan.cost < found[-1].cost:
            found.append(plan)
    return found
