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
from typing import Any

import numpy as np

from .blocks import Blocks, Level, backward_part
from .graph import Graph
from .simulate import closure

_UNITS = 256  # of memory at most; a budget has at least half as many
# Infinite for fewer units than needed, by what is needed and what is there.
_IMPOSSIBLE_BELOW = np.where(np.arange(_UNITS) < np.arange(_UNITS + 1)[:, None], np.inf, 0.0)


def unit_for(budget: int) -> int:
    """Bytes of a unit for a budget: a power of two, as sizes often are, which similar budgets have in common."""
    return 1 << max(budget.bit_length() - (_UNITS - 1).bit_length(), 0)


class Chain:
    """The dynamic program for all budgets of less than so many units.

    Args:
      blocks: the chain.
      unit: bytes.
    """

    def __init__(self, blocks: Blocks, unit: int) -> None:
        self._blocks, self._unit = blocks, unit
        n = blocks.count
        # Behind as many impossible units, so that memory that is not there needs no case of its own.
        padded = np.full((n, n, 2 * _UNITS), np.inf)
        self._best = padded[:, :, _UNITS:]
        self._less = np.lib.stride_tricks.sliding_window_view(padded, _UNITS, axis=-1)[:, :, ::-1]
        self._choice = np.zeros((n, n, _UNITS), np.int32)
        self._total = np.concatenate([[0.0], np.cumsum(blocks.forward_cost)])
        self._levels = blocks.levels
        self._fill()

    def _units(self, size: Any) -> Any:
        return -(-size // self._unit)

    def _fill(self) -> None:
        n, blocks = self._blocks.count, self._blocks
        tables = _Tables(self._levels, np.array([*blocks.entering_bytes[:-1], 0]))
        self._step = self._units(blocks.step_bytes)
        self._running = self._units(blocks.running_bytes[:, :, None] + tables.cotangents)
        kept_bytes = self._units(tables.bytes)
        for length in range(n):
            i = np.arange(n - length)
            j = i + length
            kept = self._keeping(i, j, kept_bytes[i], tables)
            rest = self._coming_again(i, j)
            offers = np.concatenate([kept, rest], axis=1)
            which = offers.argmin(axis=1)
            self._best[i, j] = np.take_along_axis(offers, which[:, None], axis=1)[:, 0]
            n_levels = kept.shape[1]
            self._choice[i, j] = np.where(which < n_levels, -1 - which, i[:, None] + which - n_levels + 1)

    def _keeping(self, i: np.ndarray, j: np.ndarray, kept: np.ndarray, tables: _Tables) -> np.ndarray:
        """The work for blocks `i` to `j` when block `i` keeps something, for each of its choices."""
        need = np.maximum(tables.backward[i], tables.forward[i] + tables.cotangents[j][:, None])
        work = _IMPOSSIBLE_BELOW[_up_to_all(self._units(need))] + tables.cost[i][:, :, None]
        if i[0] == j[0]:
            return work
        by = kept + self._step[i, i + 1][:, None]
        return work + self._less[i[:, None] + 1, j[:, None], _up_to_all(by)]

    def _coming_again(self, i: np.ndarray, j: np.ndarray) -> np.ndarray:
        """The work for blocks `i` to `j` when those before some `k` keep nothing and come again, for each `k`."""
        start, k = i[:, None], i[:, None] + np.arange(1, j[0] - i[0] + 1)
        work = self._less[k, j[:, None], _up_to_all(self._step[start, k])]
        work += self._best[start, k - 1]
        work += (self._total[k] - self._total[start])[:, :, None]
        work += _IMPOSSIBLE_BELOW[_up_to_all(self._running[start, k, j[:, None]])]
        return work

    def sequence(self, budget: int) -> list[int] | None:
        """The plan within a budget, None where nothing fits."""
        units = budget // self._unit
        if not math.isfinite(self._best[0, -1, units]):
            return None
        writer = Writer(self._blocks)
        stack: list[tuple] = [("solve", 0, self._blocks.count - 1, units)]
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

    def _unfold(self, writer: Writer, i: int, j: int, m: int) -> list[tuple]:
        which = int(self._choice[i, j, m])
        blocks = self._blocks
        if which < 0:
            level: Level = self._levels[i][-1 - which]
            if i == j:
                return [("run", i, i + 1, level.kept), ("backward", i), ("release", level.kept)]
            enters = blocks.crossing[i + 1]
            left = m - int(self._units(level.bytes) + self._step[i, i + 1])
            return [
                ("run", i, i + 1, level.kept | enters),
                ("solve", i + 1, j, left),
                ("release", enters),
                ("backward", i),
                ("release", level.kept),
            ]
        enters = blocks.crossing[which]
        left = m - int(self._step[i, which])
        return [
            ("run", i, which, enters),
            ("solve", which, j, left),
            ("release", enters),
            ("solve", i, which - 1, m),
        ]


class _Tables:
    """The choices of all blocks as arrays; where a block has fewer than others, ones that cost too much."""

    def __init__(self, levels: list[list[Level]], cotangents: np.ndarray) -> None:
        self.cotangents = cotangents  # bytes that enter the backward part of each block
        shape = len(levels), max(map(len, levels))
        self.cost = np.full(shape, np.inf)
        self.bytes, self.backward, self.forward = (np.zeros(shape, np.int64) for _ in range(3))
        for i, some in enumerate(levels):
            for k, level in enumerate(some):
                self.cost[i, k] = level.cost + level.forward_cost
                self.bytes[i, k] = level.bytes
                self.backward[i, k], self.forward[i, k] = level.backward_peak, level.forward_peak


def _up_to_all(units: np.ndarray) -> np.ndarray:
    """More units than there are make no difference."""
    return np.minimum(units, _UNITS)


class Writer:
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
