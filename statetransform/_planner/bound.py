"""What is proved: fewer bytes, or less work within some bytes, no plan can do with.

* Every node that has to run needs its inputs and outputs at once.
* When the forward pass is over, no cotangent is there yet, and no more is held than fits. A node of the forward pass
  runs again unless what is held separates its outputs from all that the backward pass uses: the smallest such cut
  counts, among what is made of the node without another one that counts. A value in several cuts is shared.
* A chain of nodes that is reversed with few bytes runs many of them more than once: see `reversal`.

The memory of gradients that are not computed yet may hold what fits into it.
"""

from __future__ import annotations

import bisect
import dataclasses

from .flow import smallest_cut
from .graph import Graph, Node
from .reversal import Reversal
from .simulate import reused

_CHEAP = 0.02  # of the most expensive forward node: too little to count
_PARTS = 5040  # bytes are shared in so many parts


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
        self._choices = sorted(_choices(graph), key=lambda choice: -choice.cost / choice.bytes)
        self._reversal = Reversal(graph)

    def __call__(self, budget: int) -> float:
        """Those of plain differentiation, and what cannot be spared."""
        return self._graph.cost + max(self._at_the_turn(budget), self._reversal.again(budget))

    def _at_the_turn(self, budget: int) -> float:
        # The fractional knapsack: the most work per byte is held first, in the memory of gradients if it can be.
        sizes = [size for _, size in self._graph.buffers]
        rest, spare, largest = float(budget), float(sum(sizes)), max(sizes, default=0)
        again = 0.0
        for choice in self._choices:
            inside = min(choice.bytes, spare) if choice.smallest <= largest else 0.0
            outside = min(choice.bytes - inside, max(rest, 0.0))
            spare, rest = spare - inside, rest - outside
            again += choice.cost * (1.0 - (inside + outside) / choice.bytes)
        return again


def least_cost(graph: Graph, budget: int) -> float:
    """Operations that are necessary within a budget."""
    return LeastCost(graph)(budget)


@dataclasses.dataclass(frozen=True)
class _Choice:
    """A forward node that runs again unless some values are held at the turn.

    Attributes:
      cost: operations.
      bytes: the fewest that can spare it, each value shared among all nodes that it can help to spare.
      smallest: bytes of the smallest of these values.
    """

    cost: float
    bytes: float
    smallest: int


def _choices(graph: Graph) -> list[_Choice]:
    behind = {v for i in graph.needed if graph.nodes[i].is_backward for v in graph.nodes[i].inputs}
    users: dict[int, list[int]] = {}
    for i in graph.needed:
        if not graph.nodes[i].is_backward:
            for v in graph.nodes[i].inputs:
                users.setdefault(v, []).append(i)
    most = max((graph.nodes[i].cost for i in graph.primal), default=0.0)
    chosen = [i for i in sorted(graph.primal - graph.pinned) if graph.nodes[i].cost >= _CHEAP * most]
    regions = {i: _region(graph, i, users, frozenset(chosen)) for i in chosen}
    shared: dict[int, int] = {}
    for region in regions.values():
        for v in region:
            shared[v] = shared.get(v, 0) + 1
    parts = {v: 0 if v in graph.free else graph.sizes[v] * _PARTS // n for v, n in shared.items()}
    found = []
    for i, region in regions.items():
        size = smallest_cut(graph, graph.nodes[i].outputs, region & behind, region, parts) / _PARTS
        if size > 0:
            found.append(_Choice(graph.nodes[i].cost, size, min(graph.sizes[v] for v in region if parts[v])))
    return found


def _region(graph: Graph, source: int, users: dict[int, list[int]], chosen: frozenset[int]) -> set[int]:
    """The values that are made of those of a node without another node that counts."""
    found = set(graph.nodes[source].outputs)
    stack = list(found)
    while stack:
        for i in users.get(stack.pop(), ()):
            if i not in chosen:
                new = set(graph.nodes[i].outputs) - found
                found |= new
                stack.extend(new)
    return found
