"""Bringing a plan into a budget, and making the most of it.

`fit_to` drops values where too much is alive, and computes them again before their next use. Which value goes is
decided by what it costs to have it again over what it relieves: the bytes above the budget, summed over the steps at
which it would not be there.

`filled` does the opposite where memory is left. Every run of a node but the first could be spared by holding what it
computes since its last use. Those that spare the most work for the memory and time that they take are taken first, as
long as the bytes alive stay within the budget at every step between.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from .graph import Graph
from .liveness import Lives
from .simulate import bytes_alive, profile, pruned

_MOST = 150  # values that are dropped
_TRIES = 12  # drops that are tried before giving up
_NEAR = 16  # drops that are looked at closely


@dataclasses.dataclass(frozen=True)
class _Drop:
    """Nodes to run before a step, so that a value need not be held up to there."""

    at: int
    nodes: tuple[int, ...]
    score: float


def fit_to(graph: Graph, sequence: Sequence[int], budget: int) -> tuple[list[int], bool]:
    """A plan within a budget made of one that is not, or as near to it as drops lead; and whether it is within."""
    now = list(sequence)
    lives = Lives(graph, now)
    live = bytes_alive(lives)
    above = _above(live, budget)
    for _ in range(_MOST):
        if above == 0:
            break
        found = None
        for drop in sorted(_drops(lives, live, budget), key=lambda d: (d.score, d.at, d.nodes))[:_TRIES]:
            after = [*now[: drop.at], *drop.nodes, *now[drop.at :]]
            others = Lives(graph, after)
            other = bytes_alive(others)
            if _above(other, budget) < above:
                found = after, others, other
                break
        if found is None:
            break
        now, lives, live = found
        above = _above(live, budget)
    return now, above == 0


def _above(live: np.ndarray, budget: int) -> int:
    return int(np.maximum(live - budget, 0).sum())


def _drops(lives: Lives, live: np.ndarray, budget: int) -> list[_Drop]:
    """The values that are alive and not used at the step with the most bytes, each with the ways to have it again."""
    graph, t = lives.graph, int(live.argmax())
    node = graph.nodes[int(lives.steps[t])]
    here = {*node.inputs, *node.outputs}
    alive = np.flatnonzero((lives.firsts < t) & (t < lives.lasts) & lives.is_counted)
    rows = zip(lives.values[alive].tolist(), lives.firsts[alive].tolist(), strict=True)
    spanning = [(v, first) for v, first in rows if v not in here and graph.producer[v] not in graph.pinned]
    spanning.sort(key=lambda some: (graph.price[some[0]], some))
    ways: list[tuple[int, tuple[int, ...]]] = []
    changes = _Changes()
    for v, first in spanning[:_NEAR]:
        before, at = lives.uses_around(v, t)
        if at is None:
            continue
        before = first if before is None else max(before, first)
        for nodes, longer in _ways(lives, v, at):
            changes.add(before + 1, at, graph.sizes[v], longer)
            ways.append((at, nodes))
    reliefs = changes.reliefs(np.maximum(live - budget, 0))
    rows = zip(ways, reliefs, strict=True)
    return [_Drop(at, nodes, (graph.cost_of(nodes) + 1e-3) / relief) for (at, nodes), relief in rows if relief > 0]


def _ways(lives: Lives, v: int, at: int) -> Iterator[tuple[tuple[int, ...], list[tuple[int, int]]]]:
    """Nodes that compute a value before a step, and what would have to be held for them: from where on, and its bytes.

    Its node alone, with all inputs held; and that with all nodes for what is not there.
    """
    graph, found, seen, stack = lives.graph, set[int](), {v}, [v]
    alone: list[tuple[int, int]] = []
    whole: list[tuple[int, int]] = []
    while stack:
        i = graph.producer[stack.pop()]
        found.add(i)
        for u in graph.inputs.lists[i]:
            if u in seen:
                continue
            seen.add(u)
            last = lives.last_before(u, at)
            if last is not None and last >= at:
                continue
            is_free = u in graph.free
            if last is not None and graph.sizes[u]:
                alone += [(last + 1, graph.sizes[u])] if len(found) == 1 else []
                whole += [(last + 1, graph.sizes[u])] if is_free else []
            if not is_free:
                stack.append(u)
    yield (graph.producer[v],), alone
    if len(found) > 1:
        yield tuple(sorted(found)), whole


class _Changes:
    """What becomes of the bytes alive with each of some drops."""

    def __init__(self) -> None:
        self._count = 0
        self._drops: list[int] = []
        self._steps: list[int] = []
        self._bytes: list[int] = []

    def add(self, first: int, at: int, size: int, longer: list[tuple[int, int]]) -> None:
        """A drop: of a value from one step up to another, up to which others are held longer."""
        marks = [(first, -size), *longer, (at, size - sum(more for _, more in longer))]
        self._drops += [self._count] * len(marks)
        self._steps += [step for step, _ in marks]
        self._bytes += [more for _, more in marks]
        self._count += 1

    def reliefs(self, high: np.ndarray) -> list[float]:
        """Bytes above the budget that are not there any more, summed over steps, for each drop."""
        if not self._count:
            return []
        low, end = min(self._steps), max(self._steps)
        width = end - low + 1
        where = np.array(self._drops) * width + np.array(self._steps) - low
        left = np.bincount(where, self._bytes, self._count * width).reshape(self._count, width)[:, :-1].cumsum(1)
        left += high[low:end]
        np.maximum(left, 0, out=left)
        return (high[low:end].sum() - left.sum(1)).tolist()


def filled(graph: Graph, sequence: Sequence[int], budget: int, rounds: int = 8) -> list[int]:
    """A plan that computes less again, within the same budget; the same plan if there is none."""
    now, live = list(sequence), profile(graph, sequence)
    for _ in range(rounds):
        spared = _spare(graph, now, live, budget)
        if not spared:
            break
        after = pruned(graph, [i for t, i in enumerate(now) if t not in spared])
        alive = profile(graph, after)
        if alive.max(initial=0) > budget or graph.cost_of(after) >= graph.cost_of(now) - 1e-9:
            break
        now, live = after, alive
    return now


def _spare(graph: Graph, sequence: list[int], live: np.ndarray, budget: int) -> set[int]:
    """The runs to leave out, chosen greedily."""
    n, live, sizes, inputs, outputs = len(sequence), live.copy(), graph.sizes, graph.inputs.lists, graph.outputs.lists
    done = set[int]()
    used = [0] * len(sizes)  # the last use of each value so far, or when it was computed
    candidates: list[tuple[float, int, list[tuple[int, int]]]] = []
    for t, i in enumerate(sequence):
        if i in done:
            gaps = [(used[v], sizes[v]) for v in outputs[i] if sizes[v]]
            rent = sum([size * (t - since) for since, size in gaps])
            candidates.append((graph.nodes[i].cost / (rent + 1.0), t, gaps))
        done.add(i)
        for v in outputs[i]:
            used[v] = t
        for v in inputs[i]:
            used[v] = t
    found: set[int] = set()
    for _, t, gaps in sorted(candidates, key=lambda c: (-c[0], c[1])):
        rise = np.zeros(n, np.int64) if len(gaps) > 1 else None
        if rise is not None:
            for since, size in gaps:
                rise[since + 1 : t] += size
            fits = bool((live + rise <= budget)[rise > 0].all())
        else:
            fits = all(int(live[since + 1 : t].max(initial=0)) + size <= budget for since, size in gaps)
        if not fits:
            continue
        found.add(t)
        for since, size in gaps:
            live[since + 1 : t] += size
    return found
