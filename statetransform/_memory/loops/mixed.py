"""The plan for units of memory that hold a carry or the residuals of one step, whichever saves more at the time.

From a stored carry one goes on, storing others on the way, and records the last steps in all units that are free then.
They are reversed from these residuals, so none of them is evaluated once more. In the mixed schedule of Maddison a step
may be recorded anywhere on the way. That is never better: it was compared for all chains of up to 260 steps and 14
units.

References:
  Maddison, *Step-based checkpointing with high-level algorithmic differentiation*, Journal of Computational Science,
  2024.
"""

from __future__ import annotations

import functools

import numpy as np

LIMIT = 10**8  # of the operations that a table takes: less than a second


@functools.lru_cache(8)
def _table(n: int, units: int) -> tuple[np.ndarray, np.ndarray]:
    """For up to `units` free units and `n` steps: the fewest evaluations, and how far to go to the next stored carry.

    The latter is 0 where none is stored: then as many of the last steps are recorded as there is room for.
    """
    cost = np.zeros((units + 1, n + 1), np.int64)
    far = np.zeros((units + 1, n + 1), np.int32)
    free, steps = np.arange(units + 1), np.arange(n + 1)
    for length in range(1, n + 1):
        # One unit more than the free ones holds what is recorded: that at work.
        rest = np.maximum(length - free - 1, 0)
        best = length + cost[free, rest]
        if length > 1 and units:
            stored = steps[1:length] + cost[:-1, length - 1 : 0 : -1] + cost[1:, 1:length]
            at = stored.argmin(1)
            lowest = stored[free[:-1], at]
            is_less = lowest < best[1:]
            best[1:] = np.where(is_less, lowest, best[1:])
            far[1:, length] = np.where(is_less, at + 1, 0)
        cost[:, length] = best
    return cost, far


def evaluations(n: int, units: int) -> int:
    """Step evaluations of one gradient over `n` steps."""
    return int(_table(n, _rounded(units))[0][units, n])


def _rounded(units: int) -> int:
    return 1 << max(units, 8).bit_length()  # so that few tables serve many budgets


@functools.lru_cache(8)
def legs(n: int, units: int) -> tuple[list[int], list[int], list[int]]:
    """Where the blocks of a loop of `n` steps begin, and where the legs end that lead there.

    A block is what is recorded at once. Each leg to it but the last ends at a carry that is stored on the way. With two
    units, the forward pass over ten steps stores the carry before step 4 and records steps 8 and 9, one in the other
    unit and one at work. The backward pass goes from 4 to 6 and records two, then two from 4 on. When the unit of that
    carry is free, it records three from step 1 on, and last step 0.

    >>> legs(10, 2)
    ([0, 1, 4, 6, 8], [4, 8, 6, 4, 1, 0], [5, 4, 2, 1, 0])

    Returns:
      starts: the first step of each block.
      ends: before which step each leg ends, those of the last block first.
      offsets: for each block, the number of its first leg, minus the number of carries stored then, without the initial
        one. So the leg that starts with so many stored carries is found by a sum.
    """
    far = _table(n, _rounded(units))[1]
    starts, ends, offsets, stored, end = [], [], [], [0], n
    while end:
        offsets.append(len(ends) - len(stored) + 1)
        while ahead := int(far[units - len(stored) + 1, end - stored[-1]]):
            stored.append(stored[-1] + ahead)
            ends.append(stored[-1])
        end = max(end - (units - len(stored) + 1) - 1, stored[-1])
        starts.append(end)
        ends.append(end)
        if stored[-1] == end and end:
            stored.pop()
    return starts[::-1], ends, offsets[::-1]
