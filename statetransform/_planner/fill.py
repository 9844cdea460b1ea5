"""Improving a plan: values are held longer, where memory is left, instead of being computed again.

Every run of a node but the first could be spared by holding what it computes since its last use. Those that spare the
most work for the memory and time that they take are taken first, as long as the bytes alive stay within the budget at
every step between.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .graph import Graph
from .simulate import profile, pruned


def filled(graph: Graph, sequence: Sequence[int], budget: int, rounds: int = 8) -> list[int]:
    """A plan that computes less again, within the same budget; the same plan if there is none."""
    now = list(sequence)
    for _ in range(rounds):
        spared = _spare(graph, now, budget)
        if not spared:
            break
        after = pruned(graph, [i for t, i in enumerate(now) if t not in spared])
        if int(profile(graph, after).max(initial=0)) > budget:
            after = _one_by_one(graph, now, sorted(spared), budget)
        if graph.cost_of(after) >= graph.cost_of(now) - 1e-9:
            break
        now = after
    return now


def _spare(graph: Graph, sequence: list[int], budget: int) -> set[int]:
    """The runs to leave out, chosen greedily."""
    live = profile(graph, sequence)
    n = len(sequence)
    latest: dict[int, int] = {}  # the last run of each node so far
    used: dict[int, int] = {}  # the last use of each value so far
    candidates: list[tuple[float, int, list[tuple[int, int]]]] = []
    for t, i in enumerate(sequence):
        node = graph.nodes[i]
        if i in latest:
            gaps = [(used.get(v, latest[i]), graph.sizes[v]) for v in node.outputs if graph.sizes[v]]
            rent = sum(size * (t - since) for since, size in gaps)
            candidates.append((node.cost / (rent + 1.0), t, gaps))
        latest[i] = t
        for v in node.outputs:
            used[v] = t
        for v in node.inputs:
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


def _one_by_one(graph: Graph, sequence: list[int], spared: list[int], budget: int) -> list[int]:
    """Leaves out as many of some runs as fit, from the halves of the list down."""
    taken: set[int] = set()
    best = list(sequence)
    queue = [spared]
    tries = 0
    while queue and tries < 24:
        part = queue.pop(0)
        tries += 1
        attempt = pruned(graph, [i for t, i in enumerate(sequence) if t not in taken and t not in part])
        if int(profile(graph, attempt).max(initial=0)) <= budget:
            taken.update(part)
            best = attempt
        elif len(part) > 1:
            half = len(part) // 2
            queue += [part[:half], part[half:]]
    return best
