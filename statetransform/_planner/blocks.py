"""The forward pass cut into a chain of blocks, for solvers that treat it as one.

A cut is a place between two forward nodes. What crosses it, the values computed before and used behind, is all that
is needed to go on from there. Each backward node belongs to the block whose values it needs, so that the backward
pass goes through the blocks from the last to the first.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
from collections.abc import Sequence

import numpy as np

from .cuts import Recomputation
from .graph import Graph
from .simulate import closure, profile

_LEVELS = 8  # prices at which is asked what a block keeps


@dataclasses.dataclass(frozen=True)
class Level:
    """One choice of what a block keeps of its own values for its backward part.

    Attributes:
      kept: the values.
      again: the nodes that the backward part runs besides its own, each before the first that needs it.
      work: the nodes that the backward part runs, in order.
      forward: the nodes that a run of the block from what enters it has to run to have what is kept.
      bytes: of what is kept besides what enters the block.
      backward_peak: bytes alive in the backward part besides what enters the block.
      cost: of `work`.
    """

    kept: frozenset[int]
    work: tuple[int, ...]
    forward: tuple[int, ...]
    bytes: int
    backward_peak: int
    forward_peak: int
    cost: float
    forward_cost: float


class Blocks:
    """A chain of blocks.

    Args:
      graph: the graph.
      count: how many blocks there should be at most.
    """

    def __init__(self, graph: Graph, count: int) -> None:
        self.graph = graph
        self.primal = sorted(graph.primal)
        self._position = {i: p for p, i in enumerate(self.primal)}
        self._place_lazy()
        self._cuts(count)
        self._assign()

    def _place_lazy(self) -> None:
        """Forward nodes that only the backward pass needs stand behind the last value that they use."""
        graph = self.graph
        self._at: dict[int, int] = {}  # position of each forward value
        for i, node in enumerate(graph.nodes):
            if node.is_backward:
                continue
            where = self._position.get(i)
            if where is None:
                where = max((self._at[v] for v in node.inputs if v in self._at), default=-1)
            self._at.update(dict.fromkeys(node.outputs, where))

    @property
    def forward_values(self) -> dict[int, int]:
        """The values of the forward pass, each with the position of the node that computes it."""
        return self._at

    def _cuts(self, count: int) -> None:
        """Chooses the cuts: few bytes cross them, and between two of them lies about the same work."""
        graph, n = self.graph, len(self.primal)
        last_use = self._last_uses()
        change = [0] * (n + 1)
        weights = [0.0] * n
        for value, where in self._at.items():
            size = graph.sizes[value]
            if where < 0 or not size:
                continue
            weights[where] += size
            until = last_use.get(value, where)
            if until > where:
                change[where + 1] += size
                change[until + 1 if until < n else n] -= size
        crossing, now = [0] * (n + 1), 0
        for p in range(n + 1):
            now += change[p]
            crossing[p] = now
        self.cuts = _choose(crossing, weights, count)
        self.count = len(self.cuts) - 1

    def _last_uses(self) -> dict[int, int]:
        """The last position at which a forward value is used, by a forward node or a backward one of that position."""
        last: dict[int, int] = {}
        for i, node in enumerate(self.graph.nodes):
            if node.is_backward:
                continue
            where = self._position.get(i)
            if where is None:
                where = self._at[node.outputs[0]] if node.outputs else -1
            for value in node.inputs:
                last[value] = max(last.get(value, -1), where)
        position = self._backward_positions()
        for i, where in position.items():
            for value in self.graph.nodes[i].inputs:
                if value in self._at:
                    last[value] = max(last.get(value, -1), where)
        return last

    def _backward_positions(self) -> dict[int, int]:
        """Of each backward node the position of the latest forward value that it needs, never before its inputs'."""
        graph, end = self.graph, len(self.primal) - 1
        found: dict[int, int] = {}
        for i, node in enumerate(graph.nodes):
            if not node.is_backward:
                continue
            own = [self._at[v] for v in node.inputs if v in self._at and v not in graph.free]
            above = [found[graph.producer[v]] for v in node.inputs if v not in self._at]
            where = min(above, default=end)
            if own and max(own) >= 0:
                where = min(where, max(own))
            found[i] = where
        self._delay(found)
        return found

    def _delay(self, found: dict[int, int]) -> None:
        """Moves backward nodes that need no forward value to where they are used, if that holds nothing for longer."""
        graph = self.graph
        users: dict[int, list[int]] = {}
        for i in found:
            for v in graph.nodes[i].inputs:
                users.setdefault(v, []).append(i)
        for i in sorted(found, reverse=True):
            node = graph.nodes[i]
            using = [found[u] for v in node.outputs for u in users.get(v, ())]
            if not using or i in graph.pinned or any(v in self._at for v in node.inputs):
                continue
            where = max(using)
            longer = [v for v in node.inputs if not any(u != i and found[u] <= where for u in users[v])]
            if where < found[i] and self.size(longer) <= self.size(node.outputs):
                found[i] = where

    def _assign(self) -> None:
        graph = self.graph
        block_at = lambda where: min(max(bisect.bisect_right(self.cuts, where) - 1, 0), self.count - 1)
        self.nodes = [self.primal[a:b] for a, b in zip(self.cuts, self.cuts[1:], strict=False)]
        self.backward: list[list[int]] = [[] for _ in range(self.count)]
        for i, where in self._backward_positions().items():
            self.backward[block_at(where)].append(i)
        last = self._last_uses()
        self.crossing: list[frozenset[int]] = []
        for cut in self.cuts:
            inside = {v for v, where in self._at.items() if where < cut <= last.get(v, -1) and v not in graph.free}
            self.crossing.append(frozenset(v for v in inside if graph.sizes[v]))
        self._cotangents()

    def _cotangents(self) -> None:
        """What the backward part of each block gets from those behind it, and leaves to those before it."""
        graph = self.graph
        block_of = {i: b for b, some in enumerate(self.backward) for i in some}
        lowest: dict[int, int] = {}
        for i, b in block_of.items():
            for v in graph.nodes[i].inputs:
                if v not in self._at:
                    lowest[v] = min(lowest.get(v, b), b)
        self.entering: list[set[int]] = [set() for _ in range(self.count)]
        self.leaving: list[set[int]] = [set() for _ in range(self.count)]
        for v, low in lowest.items():
            high = block_of[graph.producer[v]]
            for b in range(low, high):
                self.entering[b].add(v)
            for b in range(low + 1, high + 1):
                self.leaving[b].add(v)

    @functools.cached_property
    def entering_bytes(self) -> list[int]:
        """Bytes of the cotangents that enter the backward part of each block."""
        return [self.size(values) for values in self.entering]

    @functools.cached_property
    def forward_cost(self) -> list[float]:
        """Operations of each block."""
        return [self.graph.cost_of(nodes) for nodes in self.nodes]

    def size(self, values: Sequence[int] | frozenset[int] | set[int]) -> int:
        """Bytes of some values."""
        return sum(self.graph.sizes[v] for v in values)

    @functools.cached_property
    def step_bytes(self) -> np.ndarray:
        """Bytes of what enters a block, by columns, and does not enter another one, by rows."""
        enters = np.zeros((self.count, len(self.graph.sizes)), np.int64)
        for k, values in enumerate(self.crossing[:-1]):
            enters[k, list(values)] = 1
        shared = enters * self.graph.bytes @ enters.T
        return np.triu(shared.diagonal() - shared)

    @functools.cached_property
    def running_bytes(self) -> np.ndarray:
        """Bytes alive while blocks from one up to another run forward and keep nothing, besides what enters them."""
        running = np.zeros((self.count, self.count), np.int64)
        # Each of them runs while what enters it is there.
        running[:, 1:] = np.triu(self.step_bytes + self.running_peak)[:, :-1]
        return np.maximum.accumulate(running, axis=1)

    @functools.cached_property
    def running_peak(self) -> list[int]:
        """Bytes alive while a block runs forward and keeps nothing, besides what enters it."""
        found = []
        for b, nodes in enumerate(self.nodes):
            end = self.crossing[b + 1] - self.crossing[b]
            found.append(self._peak(nodes, self._there(nodes, set()), set(), set(end)))
        return found

    def _there(self, nodes: Sequence[int], held: frozenset[int] | set[int]) -> set[int]:
        made = {v for i in nodes for v in self.graph.nodes[i].outputs}
        used = {v for i in nodes for v in self.graph.nodes[i].inputs}
        return {*held, *(used - made)}

    @functools.cached_property
    def levels(self) -> list[list[Level]]:
        """The choices of each block, those that keep most first."""
        known: dict[tuple[bytes, ...], list[frozenset[int]]] = {}  # layers are often equal
        return [self._levels_of(b, known) for b in range(self.count)]

    def _levels_of(self, b: int, known: dict[tuple[bytes, ...], list[frozenset[int]]]) -> list[Level]:
        graph, held = self.graph, self.crossing[b] | self.graph.free
        wanted = {v for i in self.backward[b] for v in graph.nodes[i].inputs if v in self._at and v not in held}
        found: dict[frozenset[int], Level] = {}
        ways = Recomputation(graph, wanted, held)
        if ways.shape not in known:
            known[ways.shape] = ways.frontier(_LEVELS)
        self._add(found, b, frozenset(wanted))
        for some in known[ways.shape]:
            self._add(found, b, frozenset(ways.values[k] for k in some))
        self._add(found, b, frozenset())
        return sorted(found.values(), key=lambda level: -level.bytes)

    def _add(self, found: dict[frozenset[int], Level], b: int, kept: frozenset[int]) -> None:
        if kept in found:
            return
        graph, entering = self.graph, self.crossing[b] | self.graph.free
        work = backward_part(graph, self.backward[b], entering | kept, self._at)
        new = kept - entering
        forward = closure(graph, new, entering)
        start = self._there(work, entering | kept | self.entering[b]) - self.crossing[b]
        # Kept values may die in the backward part; what enters is not counted.
        before = {v for v in start if v in kept or v in self.entering[b]}
        there = self._there(work, before)
        peak = self._peak(work, there, before, self.leaving[b])
        run = sorted({*self.nodes[b], *forward})
        end = (self.crossing[b + 1] | new) - entering
        running = self._peak(run, self._there(run, set()), set(), {v for v in end if graph.producer[v] in set(run)})
        found[kept] = Level(
            kept,
            tuple(work),
            tuple(forward),
            self.size(new),
            peak,
            running,
            graph.cost_of(work),
            graph.cost_of(run),
        )

    def _peak(self, nodes: Sequence[int], there: set[int], counted: set[int], end: set[int]) -> int:
        """Bytes alive, without those of values that are there and not counted."""
        made = {v for i in nodes for v in self.graph.nodes[i].outputs}
        stays = {v for v in end if v in made or v in there}
        unseen = there - counted - made
        top = profile(self.graph, nodes, start=there, end=stays, uncounted=unseen)
        return max(int(top.max(initial=0)), self.size(counted))


def backward_part(
    graph: Graph, nodes: Sequence[int], held: frozenset[int] | set[int], forward: dict[int, int]
) -> list[int]:
    """Backward nodes with what has to be computed for them: primal nodes first, the others just in time."""
    wanted = {v for i in nodes for v in graph.nodes[i].inputs if v in forward and v not in held}
    again = closure(graph, wanted, held)
    first = [i for i in again if i in graph.primal]
    lazy = {v: i for i in again if i not in graph.primal for v in graph.nodes[i].outputs}
    order, done = list(first), set(first)

    def add(i: int) -> None:
        stack = [(i, False)]
        while stack:
            j, is_ready = stack.pop()
            if is_ready:
                order.append(j)
            elif j not in done:
                done.add(j)
                stack.append((j, True))
                stack.extend((lazy[v], False) for v in graph.nodes[j].inputs if v in lazy)

    for i in nodes:
        for v in graph.nodes[i].inputs:
            if v in lazy:
                add(lazy[v])
        order.append(i)
    return order


def _choose(crossing: list[int], weights: list[float], count: int) -> list[int]:
    """Cuts at the fewest bytes in each of `count` stretches of equal weight, the ends included."""
    n = len(weights)
    if n <= 1 or count <= 1:
        return [0, n]
    total, cuts, bound, sofar, best = sum(weights) + n, [0], 0.0, 0.0, None
    share = total / count
    for p in range(1, n):
        sofar += weights[p - 1] + 1
        if best is None or crossing[p] < crossing[best]:
            best = p
        if sofar >= bound + share or p == n - 1:
            bound = sofar
            cuts.append(best)
            best = None
    return [*sorted(set(cuts)), n]
