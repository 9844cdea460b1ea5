"""The forward pass cut into blocks in a row, as the layers of a model are, each with its part of the backward pass.

A cut is a place between two forward nodes. What crosses it, the values computed before and used behind, is all that
is needed to go on from there. A backward node belongs to the block with the latest value that it needs, so that the
backward pass goes through the blocks from the last to the first.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import itertools
from collections.abc import Sequence

import numpy as np

from .graph import Graph
from .simulate import needed_nodes

_PRODUCTS = 0.05  # of the bytes: with less in products, elementwise work decides how large a block is
_PLACES = 256  # where blocks may end


@dataclasses.dataclass(frozen=True)
class PlanBlocks:
    """Blocks in a row.

    Attributes:
      nodes: the forward nodes of each block.
      backward: the backward nodes of each block.
      crossing: the values that cross each cut, both ends included.
    """

    nodes: list[list[int]]
    backward: list[list[int]]
    crossing: list[frozenset[int]]

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.nodes)


class Row:
    """The forward pass as a row of nodes, to be cut.

    Args:
      graph: the graph.

    Attributes:
      at: the position in the row of the node that computes each forward value.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._primal = sorted(graph.primal)
        self._position = {i: p for p, i in enumerate(self._primal)}
        self.at: dict[int, int] = {}
        for i, node in enumerate(graph.nodes):
            if not node.is_backward:
                self.at.update(dict.fromkeys(node.outputs, self._where(i)))
        self._behind = self._backward_positions()
        self._last = self._last_uses()
        self._crossing = self._crossing_bytes()

    def _where(self, i: int) -> int:
        """A forward node that only the backward pass needs is behind the last value that it uses."""
        if (where := self._position.get(i)) is not None:
            return where
        return max((self.at[v] for v in self._graph.nodes[i].inputs), default=-1)

    def _backward_positions(self) -> dict[int, int]:
        """Of each backward node the position of the latest forward value that it needs, never before its inputs'."""
        graph, end = self._graph, len(self._primal) - 1
        found: dict[int, int] = {}
        for i, node in enumerate(graph.nodes):
            if not node.is_backward:
                continue
            own = [self.at[v] for v in node.inputs if v in self.at and v not in graph.free]
            above = [found[graph.producer[v]] for v in node.inputs if v not in self.at]
            where = min(above, default=end)
            found[i] = min(where, max(own)) if own and max(own) >= 0 else where
        self._delay(found)
        return found

    def _delay(self, found: dict[int, int]) -> None:
        """Moves backward nodes that need no forward value to where they are used, if that holds nothing for longer."""
        graph = self._graph
        size = lambda values: sum(graph.sizes[v] for v in values)
        users: dict[int, list[int]] = {}
        for i in found:
            for v in graph.nodes[i].inputs:
                users.setdefault(v, []).append(i)
        for i in sorted(found, reverse=True):
            node = graph.nodes[i]
            using = [found[u] for v in node.outputs for u in users.get(v, ())]
            if not using or i in graph.pinned or any(v in self.at for v in node.inputs):
                continue
            where = max(using)
            longer = [v for v in node.inputs if not any(u != i and found[u] <= where for u in users[v])]
            if where < found[i] and size(longer) <= size(node.outputs):
                found[i] = where

    def _last_uses(self) -> dict[int, int]:
        """The last position at which each forward value is used, by a forward node or a backward one."""
        last: dict[int, int] = {}
        for i, node in enumerate(self._graph.nodes):
            where = self._behind[i] if node.is_backward else self._where(i)
            for v in node.inputs:
                if v in self.at:
                    last[v] = max(last.get(v, -1), where)
        return last

    def _crossing_bytes(self) -> list[int]:
        """Bytes that cross each place between two nodes, both ends included."""
        n = len(self._primal)
        change = [0] * (n + 2)
        for v, where in self.at.items():
            if where >= 0 and (until := self._last.get(v, where)) > where:
                change[where + 1] += self._graph.sizes[v]
                change[min(until + 1, n)] -= self._graph.sizes[v]
        found, now = [], 0
        for p in range(n + 1):
            now += change[p]
            found.append(now)
        return found

    @functools.cached_property
    def _made(self) -> np.ndarray:
        """Bytes computed before each place: those of products, if these are not next to nothing, otherwise all."""
        nodes = [self._graph.nodes[i] for i in self._primal]
        every = np.array([sum(self._graph.sizes[v] for v in n.outputs if v not in self._graph.free) for n in nodes])
        products = np.where([n.is_product for n in nodes], every, 0)
        return np.append(0, np.cumsum(products if products.sum() > _PRODUCTS * every.sum() else every))

    @functools.cached_property
    def _places(self) -> list[int]:
        """Where a block may end: between two products where the fewest bytes cross, as late as possible."""
        group = self._made if len(set(self._made)) <= _PLACES else self._made * _PLACES // max(self._made[-1], 1)
        best: dict[int, int] = {}
        for p in range(1, len(self._primal)):
            known = best.setdefault(int(group[p]), p)
            if self._crossing[p] <= self._crossing[known]:
                best[int(group[p])] = p
        return [0, *best.values(), len(self._primal)]

    @functools.cached_property
    def _shared(self) -> np.ndarray:
        """Bytes of the values that cross both of two places."""
        places, n = self._places, len(self._places)
        found = np.zeros((n, n), np.int64)
        for v, where in self.at.items():
            first, last = bisect.bisect_right(places, max(where, 0)), bisect.bisect_right(places, self._last.get(v, -1))
            if first < last and v not in self._graph.free:
                found[first, last - 1] += self._graph.sizes[v]
        return found.cumsum(0)[:, ::-1].cumsum(1)[:, ::-1]  # from `first` on, and up to `last`

    def ends(self, most: float) -> list[int]:
        """The ends of blocks none of which computes more than so many bytes: those where the fewest bytes are held."""
        places, shared = self._places, self._shared
        made = self._made[places]
        held, before = np.zeros(len(places)), np.zeros(len(places), np.int64)
        for p in range(1, len(places)):
            q = np.arange(min(int(np.searchsorted(made, made[p] - most)), p - 1), p)
            more = held[q] + shared[p, p] - shared[q, p]
            before[p] = q[np.argmin(more)]
            held[p] = more.min()
        found, p = list[int](), int(before[-1])
        while p:
            found.append(places[p])
            p = int(before[p])
        return found[::-1]

    def narrowest(self, start: int) -> int:
        """The place behind another one where the fewest bytes cross: between the last layer and the loss."""
        places = range(start + 1, len(self._primal))
        return min(places, key=lambda p: (self._crossing[p], p), default=start)

    @property
    def computed(self) -> int:
        """The bytes that blocks are measured by."""
        return int(self._made[-1])

    def cut(self, places: Sequence[int]) -> PlanBlocks:
        """Blocks between some places."""
        cuts = [0, *places, len(self._primal)]
        count, graph = len(cuts) - 1, self._graph
        backward: list[list[int]] = [[] for _ in range(count)]
        for i, where in self._behind.items():
            backward[min(max(bisect.bisect_right(cuts, where) - 1, 0), count - 1)].append(i)
        crossing: list[set[int]] = [set() for _ in cuts]
        for v, where in self.at.items():
            if graph.sizes[v] and v not in graph.free:
                first = bisect.bisect_right(cuts, where)
                for k in range(first, bisect.bisect_right(cuts, self._last.get(v, -1))):
                    crossing[k].add(v)
        nodes = [self._primal[a:b] for a, b in itertools.pairwise(cuts)]
        return PlanBlocks(nodes, backward, list(map(frozenset, crossing)))


def backward_part(graph: Graph, nodes: Sequence[int], held: frozenset[int] | set[int]) -> list[int]:
    """Backward nodes with what has to be computed for them: primal nodes first, the others just in time."""
    used = lambda some: [v for i in some for v in graph.nodes[i].inputs if v in graph.forward]
    order = [i for i in needed_nodes(graph, used(nodes), held) if i in graph.primal]
    there = held.union(*(graph.nodes[i].outputs for i in order))
    for i in nodes:
        again = needed_nodes(graph, used([i]), there)
        there = there.union(*(graph.nodes[j].outputs for j in again)) if again else there
        order += [*again, i]
    return order
