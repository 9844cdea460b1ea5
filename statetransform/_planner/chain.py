"""The best persistent schedule of a chain of blocks within some bytes, by dynamic programming.

`best[i][j][m]` is the least work to run blocks `i` to `j` forward and then backward, when what enters block `i` is held
by somebody else and `m` units of memory are left. Either block `i` keeps something of its own and the rest follows, or
the blocks up to some `k` run without keeping anything, and come again when the rest is done. Segments of any
length, with or without products kept, halving, and the schedules of loops are all special cases.

References:
  Beaumont, Eyraud-Dubois, Herrmann, Joly and Shilova, *Optimal checkpointing for heterogeneous chains*, 2019: the
  dynamic program, with two choices for a block where there are several here.
"""

from __future__ import annotations

import math

import numpy as np

from .blocks import Blocks, Level, backward_part
from .graph import Graph
from .simulate import closure

_UNITS = 192  # into how many units the budget is divided


class Chain:
    """The dynamic program for one budget.

    Args:
      blocks: the chain.
      budget: bytes.
    """

    def __init__(self, blocks: Blocks, budget: int) -> None:
        self._blocks, self._budget = blocks, budget
        self._unit = max(budget / _UNITS, 1e-9)
        n = blocks.count
        self._best: list[list[np.ndarray | None]] = [[None] * n for _ in range(n)]
        self._choice: list[list[np.ndarray | None]] = [[None] * n for _ in range(n)]
        self._total = np.concatenate([[0.0], np.cumsum(blocks.forward_cost)])
        self._levels = blocks.levels
        self._fill()

    def _units(self, size: int) -> int:
        return math.ceil(size / self._unit - 1e-9)

    def _fill(self) -> None:
        n, blocks = self._blocks.count, self._blocks
        step = [[self._units(blocks.step_bytes(i, k)) if k > i else 0 for k in range(n)] for i in range(n)]
        running = [[0] * n for _ in range(n)]
        for i in range(n):
            most = 0
            for k in range(i + 1, n):
                # Block k - 1 runs while what enters it is there.
                extra = blocks.step_bytes(i, k - 1) if k - 1 > i else 0
                most = max(most, extra + blocks.running_peak[k - 1])
                running[i][k] = most
        for length in range(n):
            for i in range(n - length):
                self._cell(i, i + length, step, running)

    def _cell(self, i: int, j: int, step: list[list[int]], running: list[list[int]]) -> None:
        blocks, size = self._blocks, _UNITS + 1
        best = np.full(size, np.inf)
        choice = np.zeros(size, np.int32)
        cotangents = blocks.entering_bytes[j] if j < blocks.count - 1 else 0

        def offer(cost: np.ndarray, which: int) -> None:
            better = cost < best
            best[better] = cost[better]
            choice[better] = which

        for number, level in enumerate(self._levels[i]):
            need = max(level.backward_peak, level.forward_peak + cotangents)
            if i == j:
                cost = np.full(size, level.cost + level.forward_cost)
            else:
                cost = (
                    level.cost
                    + level.forward_cost
                    + _shifted(self._at(i + 1, j), self._units(level.bytes) + step[i][i + 1])
                )
            cost[: self._units(need)] = np.inf
            offer(cost, -1 - number)
        for k in range(i + 1, j + 1):
            first = self._at(i, k - 1)
            cost = self._total[k] - self._total[i] + _shifted(self._at(k, j), step[i][k]) + first
            cost[: self._units(running[i][k] + cotangents)] = np.inf
            offer(cost, k)
        self._best[i][j], self._choice[i][j] = best, choice

    def _at(self, i: int, j: int) -> np.ndarray:
        found = self._best[i][j]
        assert found is not None
        return found

    @property
    def cost(self) -> float:
        """The least work; infinite where nothing fits."""
        return float(self._at(0, self._blocks.count - 1)[_UNITS])

    def sequence(self) -> list[int] | None:
        """The plan, None where nothing fits."""
        if not math.isfinite(self.cost):
            return None
        writer = _Writer(self._blocks)
        stack: list[tuple] = [("solve", 0, self._blocks.count - 1, _UNITS)]
        while stack:
            what, *rest = stack.pop()
            if what == "solve":
                stack.extend(reversed(self._unfold(writer, *rest)))
            elif what == "backward":
                writer.backward(rest[0])
            elif what == "run":
                writer.run(*rest)
            else:
                writer.release(rest[0])
        return writer.sequence

    def _unfold(self, writer: _Writer, i: int, j: int, m: int) -> list[tuple]:
        found = self._choice[i][j]
        assert found is not None
        which = int(found[m])
        blocks = self._blocks
        if which < 0:
            level: Level = self._levels[i][-1 - which]
            if i == j:
                return [("run", i, i + 1, level.kept), ("backward", i), ("release", level.kept)]
            enters = blocks.crossing[i + 1]
            left = m - self._units(level.bytes) - self._units(blocks.step_bytes(i, i + 1))
            return [
                ("run", i, i + 1, level.kept | enters),
                ("solve", i + 1, j, left),
                ("release", enters),
                ("backward", i),
                ("release", level.kept),
            ]
        enters = blocks.crossing[which]
        left = m - self._units(blocks.step_bytes(i, which))
        return [
            ("run", i, which, enters),
            ("solve", which, j, left),
            ("release", enters),
            ("solve", i, which - 1, m),
        ]


def _shifted(values: np.ndarray, by: int) -> np.ndarray:
    """The values for `by` units less."""
    out = np.full_like(values, np.inf)
    if by < len(values):
        out[by:] = values[: len(values) - by]
    return out


class _Writer:
    """Writes a sequence of nodes, knowing which values are held."""

    def __init__(self, blocks: Blocks) -> None:
        self._blocks = blocks
        self._graph: Graph = blocks.graph
        self._holders: dict[int, int] = {}
        self._reached = 0
        self.sequence: list[int] = []

    @property
    def _held(self) -> set[int]:
        return {v for v, n in self._holders.items() if n} | self._graph.free

    def run(self, i: int, k: int, kept: frozenset[int]) -> None:
        """Blocks from `i` up to `k`, to have some values, which are held from now on."""
        blocks = self._blocks
        nodes: set[int] = set()
        if self._reached < k:  # the forward pass proper runs everything once
            for b in range(max(i, self._reached), k):
                nodes.update(blocks.nodes[b])
        made = {v for n in nodes for v in self._graph.nodes[n].outputs}
        nodes.update(
            closure(self._graph, [v for v in kept if v not in made], self._held | made)
            if nodes
            else closure(self._graph, kept, self._held)
        )
        if nodes:
            missing = {v for n in nodes for v in self._graph.nodes[n].inputs if v not in made}
            nodes.update(closure(self._graph, missing, self._held))
        self._reached = max(self._reached, k)
        self.sequence += sorted(nodes)
        for v in kept:
            self._holders[v] = self._holders.get(v, 0) + 1

    def backward(self, b: int) -> None:
        """The backward part of a block."""
        blocks = self._blocks
        self.sequence += backward_part(self._graph, blocks.backward[b], self._held, blocks.forward_values)

    def release(self, kept: frozenset[int]) -> None:
        """Some values are held no more."""
        for v in kept:
            self._holders[v] -= 1
