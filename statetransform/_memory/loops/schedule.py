"""`schedule`: what a loop with `checkpoint=` does, without running it."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from .options import Reversible, check_carries, stored_carries
from .plan import Action, Schedule


@dataclasses.dataclass(frozen=True, repr=False)
class Backwards(Schedule):
    """The plan of a loop whose steps are undone; of its actions, "undo" gets the carry before step `start`.

    Attributes:
      every: after how many steps a carry is stored; None for none but the last one.
    """

    every: int | None = None

    @property
    def evaluations(self) -> int:
        """Evaluations of the step in one gradient: one forward, and one in its derivative."""
        return 2 * self.n

    @property
    def undone(self) -> int:
        """Evaluations of the inverse in one gradient."""
        return self.n

    @property
    def peak(self) -> int:
        """The number of carries stored, without the last one."""
        return self.k

    @functools.cached_property
    def actions(self) -> tuple[Action, ...]:
        """All actions in order: the forward pass, then the backward pass."""
        size = self.every or max(self.n, 1)
        starts, found = range(0, self.n, size), list[Action]()
        for start in starts:
            if start:
                found.append(Action("store", start, start, start // size - 1))
            found.append(Action("advance", start, min(start + size, self.n)))
        for start in reversed(starts):
            for i in reversed(range(start, min(start + size, self.n))):
                found += [Action("undo", i, i + 1), Action("reverse", i, i + 1)]
            if start:
                found.append(Action("restore", start, start, start // size - 1))
        return tuple(found)

    def __repr__(self) -> str:
        every = f", every={self.every}" if self.every else ""
        carries = f"{self.peak} stored carries"
        return (
            f"schedule(n={self.n}, Reversible{every}): {self.evaluations} evaluations, {self.undone} undone, {carries}"
        )


def schedule(n: int, k: int | str | Reversible, *, far: int = 0) -> Schedule:
    """The plan of a loop with `checkpoint=k`, without running it.

    Args:
      n: number of steps, from 0 on.
      k: how many carries may be stored besides the initial one, from 0 on; "sqrt" for the square root of `n`, "log"
        for its binary logarithm, both rounded up; or a :class:`statetransform.Reversible`.
      far: how many carries more may be stored in host memory or on disk, the initial one among them.

    Returns:
      A `Schedule` with `evaluations`, `peak`, `writes`, `reads`, `transfers` (both together) and `actions`; prints as
      a table, and draws itself with `plot()`. For steps that are undone also `undone`, the evaluations of the inverse.

    Raises:
      TypeError, ValueError: `n`, `k` or `far` is not a number of steps or of carries.

    References:
      Griewank and Walther, *Algorithm 799: revolve*, ACM Transactions on Mathematical Software 26, 2000.

    Example:
      >>> import statetransform as st
      >>> plan = st.schedule(1000, 20)
      >>> plan.evaluations, plan.peak
      (3725, 20)
      >>> st.schedule(1000, 20, far=100)
      schedule(n=1000, k=20, far=100): 2944 evaluations, 20 stored carries at most, 34 writes and reads
      >>> print(st.schedule(3, 0))
      3 steps, up to 0 stored carries besides the initial one
        step evaluations   7   (2.333 per step; the plain loop has 1 per step)
        recomputations     4
        stored carries     0
        actions            8
          advance           0 .. 2
          advance           2 .. 3
          reverse                2
          restore                0   slot 0
          advance           0 .. 1
          reverse                1
          restore                0   slot 0
          reverse                0
    """
    for name, value, what in (("n", n, "steps"), ("far", far, "carries")):
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            kind = type(value).__name__
            raise TypeError(f"schedule: `{name}` must be a number of {what}, not {value!r} of type {kind}")
        if value < 0:
            raise ValueError(f"schedule: `{name}` must be 0 or more, not {value}")
    if isinstance(k, str) and k == "step":
        raise ValueError(
            'schedule: with "step" each step is recomputed from its own stored carry, so there is nothing to plan; '
            f"`schedule({n}, {max(int(n) - 1, 0)})` is that, the initial carry apart"
        )
    if isinstance(k, Reversible):
        if far:
            raise ValueError("schedule: a loop that is run backwards stores nothing far away; leave `far` out")
        return Backwards(int(n), k.stored(int(n)), every=k.every)
    check_carries("schedule", k)
    return Schedule(int(n), stored_carries("schedule", k, int(n)), int(far))
