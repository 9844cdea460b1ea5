"""What is proved: fewer bytes, or less work within some bytes, no plan can do with.

* Every node that has to run needs its inputs and outputs at once.
* When the forward pass is over, no cotangent is there yet. Of the forward values that the backward pass uses, no more
  can be held than fit; every other one whose node has run in the forward pass has run in vain, and runs again.
* A chain of nodes that is reversed with few bytes runs many of them more than once: see `reversal`.

The memory of gradients that are not computed yet may hold what fits into it.
"""

from __future__ import annotations

import bisect

from .graph import Graph, Node
from .reversal import Reversal
from .simulate import reused


def least_bytes(graph: Graph) -> tuple[int, int | None]:
    """Bytes that are necessary, and the node that needs them."""
    best, which = 0, None
    for i in sorted(graph.needed):
        node = graph.nodes[i]
        sizes = [graph.sizes[v] for v in {*node.inputs, *node.outputs}]
        need = sum(sizes) - _elsewhere(graph, node, sizes)
        if node.inplace:
            need -= reused(graph, node, node.inputs)
        if need > best:
            best, which = need, i
    return best, which


def _elsewhere(graph: Graph, node: Node, sizes: list[int]) -> int:
    """Bytes of values that may be in the memory of results and gradients when a node runs."""
    room = sorted(size for v, size in graph.buffers if not (node.is_backward and v in graph.results))
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
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._choices = sorted(_choices(graph), key=lambda c: -c[0] / max(c[1], 1e-9))
        self._reversal = Reversal(graph)

    def __call__(self, budget: int) -> float:
        """Those of plain differentiation, and what cannot be spared."""
        return self._graph.cost + max(self._at_the_turn(budget), self._reversal.again(budget))

    def _at_the_turn(self, budget: int) -> float:
        # The fractional knapsack: the most work per byte is held first, in the memory of gradients if it can be.
        sizes = [size for _, size in self._graph.buffers]
        rest, spare, largest = float(budget), float(sum(sizes)), max(sizes, default=0)
        again = 0.0
        for cost, size in self._choices:
            inside = min(size, spare) if size <= largest else 0.0
            outside = min(size - inside, max(rest, 0.0))
            spare, rest = spare - inside, rest - outside
            again += cost * (1.0 - (inside + outside) / size)
        return again


def least_cost(graph: Graph, budget: int) -> float:
    """Operations that are necessary within a budget."""
    return LeastCost(graph)(budget)


def _choices(graph: Graph) -> list[tuple[float, float]]:
    """For each forward node that the backward pass needs: its work, and the fewest bytes that can spare it."""
    used_behind: set[int] = set()
    lazy_of: dict[int, set[int]] = {}
    for i in graph.needed:
        node = graph.nodes[i]
        if node.is_backward:
            used_behind.update(node.inputs)
    for i in reversed(range(len(graph.nodes))):
        node = graph.nodes[i]
        if node.is_backward or i in graph.primal or i not in graph.needed:
            continue
        # What is only there for the backward pass may be held instead of what it is made of.
        for v in node.inputs:
            lazy_of.setdefault(v, set()).update(node.outputs)
            for u in node.outputs:
                lazy_of[v] |= lazy_of.get(u, set())
    found = []
    for i in graph.primal:
        node = graph.nodes[i]
        if i in graph.pinned:
            continue
        size = 0.0
        needed = False
        for v in node.outputs:
            instead = lazy_of.get(v, set())
            if v in used_behind or instead & used_behind:
                needed = True
                sizes = [graph.sizes[v], *[graph.sizes[u] for u in instead]]
                # One of several values may be held: the smallest counts.
                size = max(size, 0.0) + float(min(sizes))
        if needed and size > 0:
            found.append((node.cost, size))
    return found
