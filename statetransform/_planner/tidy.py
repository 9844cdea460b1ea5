"""Putting the backward part of a plan in a better order: what frees memory runs as soon as it can.

Gradients of weights are the case in point: they take an activation and a cotangent out of memory and put nothing in.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from .graph import Graph
from .simulate import split_of


def tidied(graph: Graph, sequence: Sequence[int]) -> list[int]:
    """The same runs, with those that leave no more bytes than they found moved forward, in the backward part."""
    split = split_of(graph, sequence)
    before, behind = list(sequence[:split]), list(sequence[split:])
    runs = _Runs(graph, before, behind)
    order: list[int] = []
    position = 0
    while len(order) < len(behind):
        t = runs.good()
        if t is None:
            while runs.is_done[position]:
                position += 1
            t = position if position in runs.ready else min(runs.ready)
        runs.do(t)
        order.append(behind[t])
    return [*before, *order]


class _Runs:
    """The runs of the backward part, and which of them can be next.

    Attributes:
      ready: those that wait for no other.
      is_done: of each run.
    """

    def __init__(self, graph: Graph, before: Sequence[int], behind: Sequence[int]) -> None:
        n = len(behind)
        self.is_done = [False] * n
        self._waiting = [0] * n
        self._followers: list[list[int]] = [[] for _ in range(n)]
        self._lives: list[list[int]] = [[] for _ in range(n)]  # those that each run uses
        self._users: list[list[int]] = []  # of each life
        self._sizes: list[int] = []
        self._link(graph, before, behind)
        self._left = list(map(len, self._users))
        # What is freed by a run if it is next, without what it takes.
        self._gain = [-sum(graph.sizes[v] for v in graph.outputs.lists[i]) for i in behind]
        self._is_backward = [graph.nodes[i].is_backward for i in behind]
        for life, left in enumerate(self._left):
            if left == 1:
                self._gain[self._users[life][0]] += self._sizes[life]
        self.ready = {t for t, count in enumerate(self._waiting) if count == 0}
        self._good = [t for t in sorted(self.ready) if self._is_good(t)]

    def _link(self, graph: Graph, before: Sequence[int], behind: Sequence[int]) -> None:
        """Finds what each run waits for, and the runs that use each life of a value."""
        inputs, outputs = graph.inputs.lists, graph.outputs.lists
        born: dict[int, int] = {v: -1 for i in before for v in outputs[i]}
        life_of: dict[int, int] = {}  # the present life of each value
        for t, i in enumerate(behind):
            needs = set[int]()
            for v in inputs[i]:
                if (since := born.get(v, -1)) >= 0:
                    needs.add(since)
                if (life := life_of.get(v)) is None:
                    life = life_of[v] = len(self._users)
                    self._users.append([])
                    self._sizes.append(graph.sizes[v])
                if not self._users[life] or self._users[life][-1] != t:
                    self._users[life].append(t)
                    self._lives[t].append(life)
            for v in outputs[i]:
                if v in born:  # computed again: only when nobody needs the life before
                    if (life := life_of.pop(v, None)) is not None:
                        needs.update(self._users[life])
                    if born[v] >= 0:
                        needs.add(born[v])
                born[v] = t
            needs.discard(t)
            self._waiting[t] = len(needs)
            for s in needs:
                self._followers[s].append(t)

    def _is_good(self, t: int) -> bool:
        return self._is_backward[t] and self._gain[t] >= 0

    def good(self) -> int | None:
        """The first run that is ready and leaves no more bytes than it finds."""
        return heapq.heappop(self._good) if self._good else None

    def do(self, t: int) -> None:
        """What becomes of the others when a run is next."""
        self.ready.discard(t)
        self.is_done[t] = True
        for life in self._lives[t]:
            self._left[life] -= 1
            if self._left[life] == 1:
                last = next(s for s in self._users[life] if not self.is_done[s])
                was_good = self._is_good(last)
                self._gain[last] += self._sizes[life]
                if last in self.ready and not was_good and self._is_good(last):
                    heapq.heappush(self._good, last)
        for s in self._followers[t]:
            self._waiting[s] -= 1
            if not self._waiting[s]:
                self.ready.add(s)
                if self._is_good(s):
                    heapq.heappush(self._good, s)
