"""What is proved: fewer bytes, or less work within some bytes, no plan can do with.

* Every node that has to run needs its inputs and outputs at once.
* When the forward pass is over, no cotangent is there yet, and no more is held than fits. What the backward pass uses
  is held there, or computed again. For any price of a byte, the least that can be paid for bytes and operations is a
  minimum cut; the operations are at least that, without the price of all bytes that there are.
* A chain of nodes that is reversed with few bytes runs many of them more than once: see `reversal`.

The memory of gradients that are not computed yet may hold what fits into it.
"""

from __future__ import annotations

import bisect
from collections.abc import Collection

import numpy as np

from statetransform._planner.graph import Graph
from statetransform._planner.simulate import reused

from .cuts import Recomputation, along
from .reversal import Reversal

_PRICES = 14  # of a byte, for which a cut is computed
_SHARES = (0.0, 0.5, 1.0)  # of this price, for bytes in the memory of gradients


def least_bytes(graph: Graph, loops: Collection[int] = ()) -> tuple[int, int | None]:
    """Bytes that are necessary, and the node that needs them.

    Args:
      graph: the graph.
      loops: nodes that can be run in other ways, with other residuals from those in the forward pass to those in the
        backward pass. However they are run, they read their other inputs, and write what is no residual.
    """
    best, which = 0, None
    above, unknown = _above(graph, loops), _made_by(graph, loops)
    for i in sorted(graph.needed):
        node = graph.nodes[i]
        has_residuals = i in loops and not node.is_backward
        sizes = [graph.sizes[v] for v in {*(set(node.inputs) - unknown), *(() if has_residuals else node.outputs)}]
        need = sum(sizes) - _elsewhere(graph, i, sizes, above[i])
        if node.inplace and not has_residuals:
            need -= reused(graph, node, node.inputs)
        if need > best:
            best, which = need, i
    return best, which


def _made_by(graph: Graph, nodes: Collection[int]) -> frozenset[int]:
    return frozenset(v for i in nodes for v in graph.nodes[i].outputs)


def _above(graph: Graph, loops: Collection[int]) -> list[int]:
    """The nodes that each node depends on, as bits, without what loops depend on."""
    found: list[int] = []
    for i, node in enumerate(graph.nodes):
        bits = 0
        for v in node.inputs if i not in loops else ():
            j = graph.producer[v]
            bits |= found[j] | 1 << j
        found.append(bits)
    return found


def _elsewhere(graph: Graph, i: int, sizes: list[int], above: int) -> int:
    """Bytes of values that may be in the memory of results and gradients when a node runs for the first time."""
    node = graph.nodes[i]

    def is_free(v: int) -> bool:
        if graph.producer[v] == i:  # what dies there may leave its place to the output
            return v in node.inplace
        return not (above >> graph.producer[v] & 1 or (node.is_backward and v in graph.results))

    room = sorted(size for v, size in graph.buffers if is_free(v))
    found = 0
    for size in sorted(sizes, reverse=True):
        k = bisect.bisect_left(room, size)
        if k < len(room):
            room.pop(k)
            found += size
    return found


class LeastCost:
    """Operations that are necessary within a budget, for any budget.

    Args:
      graph: the graph.
      loops: nodes that can be run in other ways. What is proved is about the work of the others.
    """

    def __init__(self, graph: Graph, loops: Collection[int] = ()) -> None:
        self._graph = graph
        self._lines = _lines_at_the_turn(graph, frozenset(loops))
        self._reversal = None if loops else Reversal(graph)

    def __call__(self, budget: int) -> float:
        """Those of plain differentiation, and what cannot be spared."""
        at_the_turn = max((total - price * budget for total, price in self._lines), default=0.0)
        reversing = self._reversal.again(budget) if self._reversal else 0.0
        return self._graph.cost + max(at_the_turn, reversing, 0.0)


def least_cost(graph: Graph, budget: int) -> float:
    """Operations that are necessary within a budget."""
    return LeastCost(graph)(budget)


def _lines_at_the_turn(graph: Graph, loops: frozenset[int]) -> list[tuple[float, float]]:
    """What is paid at least for bytes and operations together, and the price of a byte, for some prices."""
    behind = [graph.nodes[i] for i in graph.needed - loops if graph.nodes[i].is_backward]
    used = {v for node in behind for v in node.inputs if not graph.nodes[graph.producer[v]].is_backward}
    ways = Recomputation(graph, used, graph.free | _made_by(graph, loops))
    if not ways.costs.any() or not ways.sizes.any():
        return []
    rooms = sorted((size for v, size in graph.buffers if v not in graph.results), reverse=True)
    largest, room = max(rooms, default=0), _room(rooms, ways.sizes.tolist())
    middle = float(ways.costs.sum() / ways.sizes.sum())
    lines = []
    for share in _SHARES if room else (1.0,):
        weights = np.where(ways.sizes <= largest, share, 1.0) * ways.sizes

        def at(price: float, weights: np.ndarray = weights, share: float = share) -> tuple[float, float]:
            cut = ways.cut(price * weights)
            lines.append((cut.total - price * share * room, price))
            return cut.total, float(weights[list(cut.held)].sum())

        along(1e-3 * middle, 1e3 * middle, at, _PRICES)
    return lines


def _room(rooms: list[int], sizes: list[float]) -> float:
    """The most bytes of some values that are in some buffers, one value in each, the largest buffer first."""
    found, k = 0.0, 0
    for size in sorted(sizes, reverse=True):
        # The largest value goes into the largest buffer: if it fits into none, it is nowhere else.
        if k < len(rooms) and size <= rooms[k]:
            found, k = found + size, k + 1
    return found
