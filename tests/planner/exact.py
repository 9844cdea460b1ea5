"""The best plan of a tiny graph, by search over all states.

A state is which values are held and which nodes have run. Only for graphs of some ten nodes, and to check the others.
"""

from __future__ import annotations

import heapq
import itertools

from statetransform._planner.graph import Graph

LARGEST = 10


def best(graph: Graph, budget: int, most: int = 60_000) -> tuple[float, list[int]] | None:
    """The least work within a budget and a plan that does it; None if there is none, or after too many states.

    Buffers that an operation could take over from its inputs are not counted as such.
    """
    results = _mask(graph.results)
    goal = results | _mask(graph.gradients)
    first = (0, 0)
    costs: dict[tuple[int, int], float] = {first: 0.0}
    came: dict[tuple[int, int], tuple[tuple[int, int], int | None]] = {}
    order = itertools.count()
    queue: list[tuple[float, int, tuple[int, int]]] = [(0.0, next(order), first)]
    inputs = [_mask(node.inputs) for node in graph.nodes]
    outputs = [_mask(node.outputs) for node in graph.nodes]
    free = _mask(graph.free)
    while queue:
        cost, _, state = heapq.heappop(queue)
        if cost > costs[state]:
            continue
        alive, seen = state
        if seen & goal == goal:
            return cost, _path(came, state)
        if len(costs) > most:
            return None
        moves: list[tuple[float, tuple[int, int], int | None]] = []
        for i, node in enumerate(graph.nodes):
            if inputs[i] & ~alive or not outputs[i] & ~alive or (node.is_backward and results & ~seen):
                continue
            if i in graph.pinned and outputs[i] & seen:
                continue
            now = alive | outputs[i]
            if _size(graph, now) + node.scratch <= budget:
                moves.append((node.cost, (now, seen | outputs[i]), i))
        moves += [(0.0, (alive & ~(1 << v), seen), None) for v in _bits(alive & ~free)]
        for extra, after, node in moves:
            if cost + extra < costs.get(after, float("inf")) - 1e-12:
                costs[after] = cost + extra
                came[after] = state, node
                heapq.heappush(queue, (cost + extra, next(order), after))
    return None


def _mask(values: frozenset[int] | tuple[int, ...]) -> int:
    return sum(1 << v for v in set(values))


def _bits(mask: int) -> list[int]:
    return [v for v in range(mask.bit_length()) if mask >> v & 1]


def _size(graph: Graph, mask: int) -> int:
    return sum(graph.sizes[v] for v in _bits(mask))


def _path(came: dict, state: tuple[int, int]) -> list[int]:
    found = []
    while state in came:
        state, node = came[state]
        if node is not None:
            found.append(node)
    return found[::-1]
