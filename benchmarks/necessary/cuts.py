"""What to hold at a price per byte, and what to compute again: a minimum cut, which is the best choice at that price.

Some values are wanted later. Each value that is wanted is held, for its bytes, or the node that computes it runs
again, for its operations, and what the node uses is wanted, too. No order and no peaks are seen here: this is for
choosing what blocks keep, and for bounds.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Iterable
from typing import Any

import numpy as np

from statetransform._planner.graph import Graph

from .flow import ENDLESS, Network

_MOST = 1_000_000_000  # of all costs together, which are integers here: flows of these are exact


@dataclasses.dataclass(frozen=True)
class Cut:
    """The best choice at some prices.

    Attributes:
      held: the values, by their positions in `Recomputation.values`.
      total: what is paid at least: for bytes, and operations.
    """

    held: frozenset[int]
    total: float


class Recomputation:
    """All ways to have some values later.

    Args:
      graph: the graph.
      wanted: the values.
      given: values that are held by somebody else, among them those of effects.
    """

    def __init__(self, graph: Graph, wanted: Iterable[int], given: Collection[int]) -> None:
        self._graph = graph
        first = sorted(v for v in wanted if v not in given)
        self.values: list[int] = list(first)
        self.nodes: list[int] = []
        seen, found = set(first), set[int]()
        edges: list[tuple[int, int]] = []  # from nodes to what they use
        for v in self.values:  # grows
            i = graph.producer[v]
            if i in found:
                continue
            found.add(i)
            self.nodes.append(i)
            for u in graph.inputs.lists[i]:
                if u not in given:
                    edges.append((i, u))
                    if u not in seen:
                        seen.add(u)
                        self.values.append(u)
        self._link(len(first), edges)

    def _link(self, n_wanted: int, edges: list[tuple[int, int]]) -> None:
        graph, n = self._graph, len(self.values)
        # Vertices: the source, the sink, the values, the nodes.
        value = {v: 2 + k for k, v in enumerate(self.values)}
        node = {i: 2 + n + k for k, i in enumerate(self.nodes)}
        self._priced = [(value[v], node[graph.producer[v]]) for v in self.values]
        paid = [(i, 1) for i in node.values()]
        free = [(0, value[v]) for v in self.values[:n_wanted]] + [(node[i], value[u]) for i, u in edges]
        self._edges = [*self._priced, *paid, *free]
        self._network = Network(2 + n + len(node), self._edges)
        self.sizes = np.array([graph.sizes[v] for v in self.values], float)
        # What is not part of the forward pass is computed once, no matter when.
        self.costs = np.array([graph.nodes[i].cost if i in graph.primal else 0.0 for i in self.nodes], float)

    @functools.cached_property
    def shape(self) -> tuple[Any, ...]:
        """Equal for equal problems about different values."""
        return tuple(self._edges), *self.sizes.tolist(), *self.costs.tolist()

    def cut(self, prices: np.ndarray) -> Cut:
        """The best choice at a price for each value."""
        scale = _MOST / max(float(self.costs.sum()), 1e-9)
        paid = np.floor(np.concatenate([prices, self.costs]) * scale).astype(np.int64).tolist()
        capacities = paid + [ENDLESS] * (len(self._edges) - len(paid))
        total, inside = self._network.cut(capacities)
        held = [k for k, (value, node) in enumerate(self._priced) if value in inside and node not in inside]
        return Cut(frozenset(held), total / scale)

    def frontier(self, most: int) -> list[frozenset[int]]:
        """What to hold, by position, for prices from low to high."""
        if not self.costs.any() or not self.sizes.any():
            return []
        cuts: dict[float, Cut] = {}

        def at(price: float) -> tuple[float, float]:
            cuts[price] = self.cut(price * self.sizes)
            return cuts[price].total, float(self.sizes[list(cuts[price].held)].sum())

        middle = self.costs.sum() / self.sizes.sum()
        return [cuts[price].held for price in along(1e-3 * middle, 1e3 * middle, at, most)]


def along(start: float, stop: float, at: Callable[[float], tuple[float, float]], most: int) -> list[float]:
    """The prices, between two, at which a concave function that is made of lines is worth knowing.

    Args:
      start, stop: the prices.
      at: the value and the slope of the function.
      most: how often the function is evaluated at most.
    """
    known = {price: at(price) for price in (start, stop)}
    queue = [(start, stop)]
    while queue and len(known) < most:
        low, high = queue.pop(0)
        (a, slope_a), (b, slope_b) = known[low], known[high]
        if slope_a - slope_b <= 1e-9 * max(abs(slope_a), 1.0):
            continue
        # Where the lines through both ends meet.
        middle = (b - a + slope_a * low - slope_b * high) / (slope_a - slope_b)
        if not low * (1 + 1e-6) < middle < high * (1 - 1e-6):
            continue
        known[middle] = at(middle)
        queue += [(low, middle), (middle, high)]
    return sorted(known)
