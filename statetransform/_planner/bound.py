"""What is proved: fewer bytes, or less work within some bytes, no plan can do with.

* Every node that has to run needs its inputs and outputs at once.
* When the forward pass is over, no cotangent is there yet. Of the forward values that the backward pass uses, no more
  can be held than fit; every other one whose node has run in the forward pass has run in vain, and runs again.
"""

from __future__ import annotations

from .graph import Graph
from .simulate import reused


def least_bytes(graph: Graph) -> tuple[int, int | None]:
    """Bytes that are necessary, and the node that needs them."""
    best, which = 0, None
    for i in sorted(graph.needed):
        node = graph.nodes[i]
        need = sum(graph.sizes[v] for v in {*node.inputs, *node.outputs})
        if node.inplace:
            need -= reused(graph, node, node.inputs)
        if need > best:
            best, which = need, i
    return best, which


def least_cost(graph: Graph, budget: int) -> float:
    """Operations that are necessary within a budget: those of plain differentiation, and what cannot be spared."""
    choices = _choices(graph)
    # The fractional knapsack: the most work per byte is held first.
    rest, again = float(budget), 0.0
    for cost, size in sorted(choices, key=lambda c: -c[0] / max(c[1], 1e-9)):
        share = 1.0 if size <= rest else max(rest, 0.0) / size
        rest -= size * share
        again += cost * (1.0 - share)
    return graph.cost + again


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
