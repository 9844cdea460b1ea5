"""Plans for one graph, as a curve: from plain differentiation down to the fewest bytes, each with more work.

The plain plan, and those that people write by hand, are brought within fewer and fewer bytes, step by step: what was
dropped for one step stays dropped for the next. At each step the room that is left is filled. The curve is the best of
what was found, whatever budget is asked for. It is followed as far as somebody asks.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from .blocks import Row, backward_part
from .checkpoints import Checkpoints, Cuts, by_size, kept_by, plan_of
from .graph import Graph
from .rematerialize import filled, fit_to
from .simulate import peak, pruned

_STEP = 0.95  # bytes of one step of the curve over those of the step before
_FEWEST = 1 / 64  # of the bytes of the plain plan, where the curve ends
_LOSING = 6  # steps after which a way down that is never the best one rests, until the others end
_HALVINGS = 3  # between the last step that was reached and the next
# Plans that are known before one of a curve is given out, which none of them beats. In ResNet-50, a U-Net and an LSTM
# what beats another one is one or two behind it.
_AHEAD = 4

T = TypeVar("T")


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
                plan = self.rated(plan_of(graph, cut, values))
                plans.setdefault(plan, dataclasses.replace(plan, checkpoints=Checkpoints(blocks, policy)))
        return sorted(plans.values(), key=lambda plan: (plan.bytes, plan.cost))


class Curve:
    """The plans for one graph, those with the most bytes first, as far as they were asked for.

    It holds numbers alone, so that it can be kept without the graph.

    Args:
      solver: of the graph.
    """

    def __init__(self, solver: Solver) -> None:
        self._found, self._size, self._is_over = [solver.plain], solver.plain.bytes, False
        starts = [solver.plain, *_front(solver.by_hand)]
        self._all = [_Way(start) for start in starts]
        self._ways, self._resting = self._all, list[_Way]()
        self._lock = threading.Lock()

    def plans(self, solver: Solver) -> Iterator[Plan]:
        """The plans, found as they are asked for."""
        for i in itertools.count():
            with self._lock:
                while len(self._found) <= i and not self._is_over:
                    self._step(solver)
            if i == len(self._found):
                return
            yield self._found[i]

    def least(self, solver: Solver) -> list[Plan]:
        """The plans with the fewest bytes, the least work first: what leaves room free may need less as compiled."""
        fewest, bare = _front(list(self.plans(solver)))[0], [solver.rated(way.now) for way in self._all]
        size = min(plan.bytes for plan in bare)
        bare = sorted((plan for plan in bare if plan.bytes == size), key=lambda plan: plan.cost)
        return [dataclasses.replace(plan, checkpoints=None) for plan in (fewest, bare[0], bare[-1])]

    def _step(self, solver: Solver) -> None:
        """Follows all ways a step further."""
        size = int(_STEP * self._size)
        if self._size <= _FEWEST * solver.plain.bytes:
            self._is_over = True
            return
        within = lambda: [(way, plan) for way in self._ways if (plan := way.within(size, solver))]
        plans = within()
        ends = _front([way.end for way in self._ways if way.end is not None])
        if not plans and self._resting:  # one that was never the best may lead farther
            self._ways, self._resting = self._resting, []
            plans = within()
        if not plans:
            ends = sorted([*ends, *self._last(size, solver)], key=lambda plan: plan.bytes)
            self._is_over = True  # not before: whoever stops the search finds the rest at the next call
        best = min((plan for _, plan in plans), key=lambda plan: (plan.cost, plan.bytes), default=None)
        self._found += [dataclasses.replace(plan, checkpoints=None) for plan in (*reversed(ends), best) if plan]
        if best is None:
            return
        self._size = size
        for way, plan in plans:
            way.lost = 0 if plan.cost <= best.cost else way.lost + (way.start.bytes > size)
        going = [way for way in self._ways if not way.is_over]
        self._resting += [way for way in going if way.lost >= _LOSING]
        self._ways = [way for way in going if way.lost < _LOSING]

    def _last(self, low: int, solver: Solver) -> Iterator[Plan]:
        """Plans between the fewest bytes that were reached and those that were not."""
        high = int(low / _STEP)
        for _ in range(_HALVINGS):
            middle = (low + high) // 2
            plans = [plan for way in self._all if (plan := way.within(middle, solver))]
            if plans:
                yield min(plans, key=lambda plan: (plan.cost, plan.bytes))
                high = middle
            else:
                low = middle


class _Way:
    """One way down: a plan that is brought within fewer and fewer bytes.

    Args:
      start: the plan to begin with.

    Attributes:
      now: its nodes, before the room that is left is filled.
      lost: steps since it was the best one.
      is_over: whether it ends here.
      end: the plan that came nearest to where it did not lead; None if it did not come farther.
    """

    def __init__(self, start: Plan) -> None:
        self.start = start
        self.now: Sequence[int] = start.sequence
        self._bytes = start.bytes
        self.lost, self.is_over = 0, False
        self.end: Plan | None = None

    def within(self, size: int, solver: Solver) -> Plan | None:
        """The plan within some bytes; None if there is none on this way."""
        graph = solver.graph
        if self._bytes > size:
            found, fits = fit_to(graph, self.now, size)
            reached = peak(graph, found)
            if not fits:
                self.is_over = True
                self.end = solver.rated(filled(graph, found, reached)) if reached < self._bytes else None
                return None
            self.now, self._bytes = found, reached
        return solver.rated(filled(graph, self.now, size))


def unbeaten(found: Iterable[T], figures: Callable[[T], tuple[int, float]]) -> Iterator[T]:
    """Those that none of the next few beats in both figures, each with fewer bytes and more work than the one before.

    Args:
      found: plans, about in this order.
      figures: bytes and work of one.
    """
    found, ahead, last = iter(found), collections.deque[T](), (math.inf, -math.inf)
    while True:
        ahead.extend(itertools.islice(found, _AHEAD + 1 - len(ahead)))
        if not ahead:
            return
        size, work = figures(some := ahead.popleft())
        is_beaten = any(less <= size and more <= work for less, more in map(figures, ahead))
        if size < last[0] and work > last[1] and not is_beaten:
            last = size, work
            yield some


def _front(plans: Sequence[Plan]) -> list[Plan]:
    """The plans that no other one beats in both figures, those with the fewest bytes first."""
    found: list[Plan] = []
    for plan in sorted(plans, key=lambda plan: (plan.bytes, plan.cost)):
        if not found or plan.cost < found[-1].cost:
            found.append(plan)
    return found
