"""Putting the backward part of a plan in a better order: what frees memory runs as soon as it can.

Gradients of weights are the case in point: they take an activation and a cotangent out of memory and put nothing in.
"""

from __future__ import annotations

from collections.abc import Sequence

from .graph import Graph
from .simulate import split_of


def tidied(graph: Graph, sequence: Sequence[int]) -> list[int]:
    """The same runs, with those that leave no more bytes than they found moved forward, in the backward part."""
    split = split_of(graph, sequence)
    before, behind = list(sequence[:split]), list(sequence[split:])
    needs, frees = _dependencies(graph, sequence, split)
    waiting = [len(some) for some in needs]
    users: list[list[int]] = [[] for _ in behind]
    for t, some in enumerate(needs):
        for s in some:
            users[s].append(t)
    uses = {life: len(some) for life, some in frees.items()}
    of_run: list[list[tuple[int, int]]] = [[] for _ in behind]
    for life, some in frees.items():
        for t in some:
            of_run[t].append(life)
    ready = {t for t, n in enumerate(waiting) if n == 0}
    done, order, position = [False] * len(behind), [], 0

    def gain(t: int) -> int:
        made = sum(graph.sizes[v] for v in graph.nodes[behind[t]].outputs)
        return sum(graph.sizes[v] for v, born in of_run[t] if uses[v, born] == 1) - made

    while len(order) < len(behind):
        good = [t for t in ready if graph.nodes[behind[t]].is_backward and gain(t) >= 0]
        if good:
            t = min(good)
        else:
            while done[position]:
                position += 1
            t = position if position in ready else min(ready)
        ready.discard(t)
        done[t] = True
        order.append(behind[t])
        for life in of_run[t]:
            uses[life] -= 1
        for u in users[t]:
            waiting[u] -= 1
            if not waiting[u]:
                ready.add(u)
    return [*before, *order]


def _dependencies(
    graph: Graph, sequence: Sequence[int], split: int
) -> tuple[list[set[int]], dict[tuple[int, int], set[int]]]:
    """For each run behind the split those that it waits for, and the runs that use each life of a value."""
    needs: list[set[int]] = []
    frees: dict[tuple[int, int], set[int]] = {}
    born: dict[int, int] = {}
    for t, i in enumerate(sequence):
        if t < split:
            born.update(dict.fromkeys(graph.nodes[i].outputs, -1))
            continue
        here, some = t - split, set()
        for v in graph.nodes[i].inputs:
            if born.get(v, -1) >= 0:
                some.add(born[v])
            frees.setdefault((v, born.get(v, -1)), set()).add(here)
        for v in graph.nodes[i].outputs:
            if v in born:  # computed again: only when nobody needs the life before
                some |= frees.get((v, born[v]), set())
                if born[v] >= 0:
                    some.add(born[v])
            born[v] = here
        some.discard(here)
        needs.append(some)
    return needs, frees
