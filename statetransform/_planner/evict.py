"""Bringing a plan into a budget: where too much is alive, a value is dropped and computed again before its next use.

The counterpart of `fill`. Which value goes is decided by what it costs to have it again over what it relieves: the
bytes above the budget, summed over the steps at which it would not be there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from .graph import Graph
from .lives import Lives
from .simulate import bytes_alive

_TRIES = 12  # drops that are tried before giving up
_NEAR = 24  # drops that are looked at closely


@dataclasses.dataclass(frozen=True)
class _Drop:
    """Nodes to run before a step, so that a value need not be held up to there."""

    at: int
    nodes: tuple[int, ...]
    score: float


def lowered(
    graph: Graph, sequence: Sequence[int], budget: int, moves: int = 150, held: frozenset[int] = frozenset()
) -> list[int] | None:
    """A plan within a budget made of one that is not; None if none is found with so many moves.

    Args:
      graph: the graph.
      sequence: the plan.
      budget: bytes.
      moves: how many values are dropped at most.
      held: values that are not dropped.
    """
    now = list(sequence)
    lives = Lives(graph, now)
    live = bytes_alive(lives)
    above = _above(live, budget)
    for _ in range(moves):
        if above == 0:
            return now
        found = None
        for drop in sorted(_drops(lives, live, budget, held), key=lambda d: (d.score, d.at, d.nodes))[:_TRIES]:
            after = [*now[: drop.at], *drop.nodes, *now[drop.at :]]
            others = Lives(graph, after)
            other = bytes_alive(others)
            if _above(other, budget) < above:
                found = after, others, other
                break
        if found is None:
            return None
        now, lives, live = found
        above = _above(live, budget)
    return now if above == 0 else None


def _above(live: np.ndarray, budget: int) -> int:
    return int(np.maximum(live - budget, 0).sum())


def _drops(lives: Lives, live: np.ndarray, budget: int, held: frozenset[int]) -> Iterator[_Drop]:
    """The values that are alive and not used at the step with the most bytes, each with the ways to have it again."""
    graph, t = lives.graph, int(live.argmax())
    node = graph.nodes[int(lives.steps[t])]
    here = {*node.inputs, *node.outputs, *held}
    alive = np.flatnonzero((lives.firsts < t) & (t < lives.lasts) & lives.is_counted)
    rows = zip(lives.values[alive].tolist(), lives.firsts[alive].tolist(), strict=True)
    spanning = [(v, first) for v, first in rows if v not in here and graph.producer[v] not in graph.pinned]
    high = np.maximum(live - budget, 0)
    spanning.sort(key=lambda some: (graph.nodes[graph.producer[some[0]]].cost / graph.sizes[some[0]], some))
    for v, first in spanning[:_NEAR]:
        before, at = lives.uses_around(v, t)
        if at is None:
            continue
        before = first if before is None else max(before, first)
        simple = (graph.producer[v],)
        seen = [simple] if (whole := _again(lives, v, at)) == simple else [simple, whole]
        for nodes in seen:
            relief = _relief(lives, high, nodes, v, before, at)
            if relief > 0:
                yield _Drop(at, nodes, (graph.cost_of(nodes) + 1e-3) / relief)


def _again(lives: Lives, v: int, at: int) -> tuple[int, ...]:
    """The nodes that compute a value before a step, of what is alive there."""
    graph, found, seen, stack = lives.graph, set(), {v}, [v]
    while stack:
        i = graph.producer[stack.pop()]
        found.add(i)
        for u in graph.inputs.lists[i]:
            if u in seen:
                continue
            seen.add(u)
            last = lives.last_before(u, at)
            if last is None or not (last >= at or u in graph.free):
                stack.append(u)
    return tuple(sorted(found))


def _relief(lives: Lives, high: np.ndarray, nodes: tuple[int, ...], v: int, before: int, at: int) -> float:
    """Bytes above the budget that are not there any more, summed over steps."""
    graph = lives.graph
    made = {u for i in nodes for u in graph.outputs.lists[i]}
    longer = []
    for u in {u for i in nodes for u in graph.inputs.lists[i]} - made:
        # Inputs are held from their last life before the step.
        last = lives.last_before(u, at)
        if last is not None and last < at and graph.sizes[u]:
            longer.append((last + 1, graph.sizes[u]))
    if not longer:
        return float(np.minimum(high[before + 1 : at], graph.sizes[v]).sum())
    low = min(before + 1, *[start for start, _ in longer])
    change = np.zeros(at - low, np.int64)
    change[before + 1 - low :] -= graph.sizes[v]
    for start, size in longer:
        change[start - low :] += size
    some = high[low:at]
    return float((some - np.maximum(some + change, 0)).sum())
