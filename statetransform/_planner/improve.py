"""Improving a plan by force: what is expensive to compute again is held all the same, and others go instead.

`fill` holds what there is room for, and stops where the room is taken by values that are cheaper to have again. Here
the most expensive runs are spared one after the other, whatever that takes; the plan is brought back into its budget
without dropping the same values, and kept if it is cheaper than before.
"""

from __future__ import annotations

from collections.abc import Sequence

from .evict import lowered
from .fill import filled
from .graph import Graph
from .simulate import pruned

_MOST = 4.0  # times what is spared: more work on top does not become less than before
_MOVES = 24  # drops that make room for one value


def improved(graph: Graph, sequence: Sequence[int], budget: int, attempts: int) -> list[int]:
    """A plan with less work within the same budget, after so many attempts; the same plan if there is none."""
    now = list(sequence)
    cost = graph.cost_of(now)
    tried: set[int] = set()
    for _ in range(attempts):
        t = _dearest(graph, now, tried)
        if t is None:
            break
        tried.add(now[t])
        held = frozenset(graph.nodes[now[t]].outputs)
        spared = pruned(graph, [*now[:t], *now[t + 1 :]])
        after = lowered(graph, spared, budget, _MOVES, held, _MOST * (cost - graph.cost_of(spared)))
        if after is None:
            continue
        after = filled(graph, pruned(graph, after), budget, 2)
        if graph.cost_of(after) < cost - 1e-9:
            now, cost = after, graph.cost_of(after)
    return now


def _dearest(graph: Graph, sequence: Sequence[int], tried: set[int]) -> int | None:
    """The run of the most expensive node that has run before and has not been tried."""
    seen: set[int] = set()
    best, most = None, 0.0
    for t, i in enumerate(sequence):
        if i in seen and i not in tried and graph.nodes[i].cost > most:
            best, most = t, graph.nodes[i].cost
        seen.add(i)
    return best
