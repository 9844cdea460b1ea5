"""When each value is alive in a sequence of nodes, as arrays.

Plans are judged some thousand times on the way to a good one, so this is where the time of the planner goes.
"""

from __future__ import annotations

import bisect
import functools
from collections.abc import Sequence

import numpy as np

from .graph import Graph


class InvalidPlanError(ValueError):
    """A sequence uses a value before it is computed, or does not compute what it should."""


class Lives:
    """The lives of values: each from the run that computes it to its last use before it is computed again.

    Args:
      graph: the graph.
      sequence: nodes.

    Attributes:
      values, firsts, lasts: value, first and last step of each life, ordered by value and step.
      is_used: whether a node uses the value at the last step.
      is_counted: whether it takes memory of its own; known when the bytes have been counted.

    Raises:
      InvalidPlanError: a value is used that is not there.
    """

    def __init__(self, graph: Graph, sequence: Sequence[int]) -> None:
        self.graph, self.length = graph, len(sequence)
        self.steps = np.asarray(sequence, np.int64)
        # One number for each event, ordered by value, step, and whether the value is used or computed there.
        self._width = 2 * (self.length + 1)
        used, when = graph.inputs.of(self.steps)
        made, born = graph.outputs.of(self.steps)
        self._events = np.concatenate([used * self._width + 2 * when, made * self._width + 2 * born + 1])
        self._events.sort()
        values, rest = np.divmod(self._events, self._width)
        is_birth = (rest & 1).astype(bool)
        is_first = np.ones(len(values), bool)
        is_first[1:] = values[1:] != values[:-1]
        missing = is_first & ~is_birth
        if missing.any():
            raise InvalidPlanError(f"values {values[missing][:5].tolist()} are used before they are computed")
        births = np.flatnonzero(is_birth)
        deaths = np.append(births[1:], len(values))[: len(births)] - 1
        times = rest >> 1
        self.values, self.firsts, self.lasts = values[births], times[births], times[deaths]
        self.is_used = deaths > births
        self.is_counted = np.ones(len(self.values), bool)

    @functools.cached_property
    def _ordered(self) -> tuple[list[int], list[int], list[int]]:
        """Where the lives of each value begin in the lists, and their first and last steps."""
        begin = np.searchsorted(self.values, np.arange(len(self.graph.sizes) + 1))
        return begin.tolist(), self.firsts.tolist(), self.lasts.tolist()

    @functools.cached_property
    def _uses(self) -> list[int]:
        return self._events[self._events & 1 == 0].tolist()

    def last_before(self, value: int, step: int) -> int | None:
        """The end of the last life of a value that begins before a step."""
        begin, firsts, lasts = self._ordered
        k = bisect.bisect_left(firsts, step, begin[value], begin[value + 1]) - 1
        return lasts[k] if k >= begin[value] else None

    def uses_around(self, value: int, step: int) -> tuple[int | None, int | None]:
        """The last use of a value up to a step, and the first one behind it."""
        low, high = value * self._width, (value + 1) * self._width
        k = bisect.bisect_right(self._uses, low + 2 * step)
        before = self._uses[k - 1] if k and self._uses[k - 1] >= low else None
        behind = self._uses[k] if k < len(self._uses) and self._uses[k] < high else None
        step_of = lambda event: None if event is None else (event - low) // 2
        return step_of(before), step_of(behind)
