"""Bringing a plan into a budget: where too much is alive, a value is dropped and computed again before its next use.

The counterpart of `fill`. Which value goes is decided by what it costs to have it again over what it relieves: the
bytes above the budget, summed over the steps at which it would not be there.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from .graph import Graph
from .simulate import closure, lifetimes, profile

_TRIES = 3  # drops that are tried before giving up
_NEAR = 24  # drops that are looked at closely


@dataclasses.dataclass(frozen=True)
class _Drop:
    """Nodes to run before a step, so that a value need not be held up to there."""

    at: int
    nodes: tuple[int, ...]
    score: float


def lowered(graph: Graph, sequence: Sequence[int], budget: int, moves: int = 60) -> list[int] | None:
    """A plan within a budget made of one that is not; None if none is found with so many moves."""
    now = list(sequence)
    live = profile(graph, now)
    above = _above(live, budget)
    for _ in range(moves):
        if above == 0:
            return now
        found = None
        for drop in sorted(_drops(graph, now, live, budget), key=lambda d: (d.score, d.at, d.nodes))[:_TRIES]:
            after = [*now[: drop.at], *drop.nodes, *now[drop.at :]]
            other = profile(graph, after)
            if _above(other, budget) < above:
                found = after, other
                break
        if found is None:
            return None
        now, live = found
        above = _above(live, budget)
    return now if above == 0 else None


def _above(live: np.ndarray, budget: int) -> int:
    return int(np.maximum(live - budget, 0).sum())


def _drops(graph: Graph, sequence: list[int], live: np.ndarray, budget: int) -> Iterator[_Drop]:
    """The values that are alive and not used at the step with the most bytes, each with the ways to have it again."""
    t = int(live.argmax())
    uses: dict[int, list[int]] = {}
    for s, i in enumerate(sequence):
        for v in graph.nodes[i].inputs:
            uses.setdefault(v, []).append(s)
    lives = lifetimes(graph, sequence)
    here = {*graph.nodes[sequence[t]].inputs, *graph.nodes[sequence[t]].outputs}
    spanning = [
        (v, first)
        for v, first, last in lives
        if first < t < last and v not in here and graph.sizes[v] and graph.producer[v] not in graph.pinned
    ]
    high = np.maximum(live - budget, 0)
    spanning.sort(key=lambda some: (graph.nodes[graph.producer[some[0]]].cost / graph.sizes[some[0]], some))
    ends = _ends(lives)
    for v, first in spanning[:_NEAR]:
        before, at = first, len(sequence)
        k = bisect.bisect_right(uses[v], t)
        at = uses[v][k]
        if k and uses[v][k - 1] > first:
            before = uses[v][k - 1]
        seen: set[tuple[int, ...]] = set()
        for nodes in _ways(graph, lives, v, at):
            if nodes in seen or not nodes:
                continue
            seen.add(nodes)
            relief = _relief(graph, high, nodes, v, before, at, ends)
            if relief > 0:
                yield _Drop(at, nodes, (graph.cost_of(nodes) + 1e-3) / relief)


def _ways(graph: Graph, lives: list[tuple[int, int, int]], v: int, at: int) -> Iterator[tuple[int, ...]]:
    """Nodes that compute a value before a step: of what is held for longer, or of what is alive there."""
    yield (graph.producer[v],)
    alive = {u for u, first, last in lives if first < at <= last and u != v}
    alive |= {u for u, first, _ in lives if first < at and u in graph.free}
    yield tuple(closure(graph, [v], alive))


def _ends(lives: list[tuple[int, int, int]]) -> dict[int, list[tuple[int, int]]]:
    found: dict[int, list[tuple[int, int]]] = {}
    for v, first, last in lives:
        found.setdefault(v, []).append((first, last))
    return {v: sorted(some) for v, some in found.items()}


def _relief(
    graph: Graph,
    high: np.ndarray,
    nodes: tuple[int, ...],
    v: int,
    before: int,
    at: int,
    ends: dict[int, list[tuple[int, int]]],
) -> float:
    """Bytes above the budget that are not there any more, summed over steps."""
    change = np.zeros(len(high), np.int64)
    change[before + 1 : at] -= graph.sizes[v]
    made = {u for i in nodes for u in graph.nodes[i].outputs}
    for u in {u for i in nodes for u in graph.nodes[i].inputs} - made:
        # Inputs are held from their last life before the step.
        last = max((end for first, end in ends.get(u, ()) if first < at), default=None)
        if last is not None and last < at:
            change[last + 1 : at] += graph.sizes[u]
    return float((high - np.maximum(high + change, 0)).sum())
