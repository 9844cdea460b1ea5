"""The binomial schedule as data: which steps are advanced, stored, restored and reversed, and in which order.

`beta(c, r)` is the largest number of steps that can be reversed with `c` slots when no step is advanced more than
`r` times. A chain of `n` steps is split where both parts stay within these bounds, which makes the number of advanced
steps the least possible. The same `split` is computed here on integers and in `stack` on the device, where a
table of `beta` takes the place of the formula.

References:
  Griewank, *Achieving logarithmic growth of temporal and spatial complexity in reverse automatic differentiation*,
  Optimization Methods and Software 1, 1992.
  Griewank and Walther, *Algorithm 799: revolve*, ACM Transactions on Mathematical Software 26, 2000.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ..._base.table import Drawing, Table

LIMIT = 2**31 - 1  # positions are 32 bit integers on the device


def beta(c: int, r: int) -> int:
    """The largest number of steps that `c` slots reverse with at most `r` advances of each step."""
    return math.comb(c + r, c) if r >= 0 else 0


def repetitions(n: int, c: int) -> int:
    """The least `r` with `n <= beta(c, r)`."""
    low, high = -1, 1
    while beta(c, high) < n:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if beta(c, middle) < n else (low, middle)
    return high


def advances(n: int, c: int) -> int:
    """The least number of advanced steps that reverses `n` steps with `c` slots, one of which holds the start."""
    if n <= 1:
        return 0
    r = repetitions(n, c)
    return r * n - beta(c + 1, r - 1)


def split(n: int, c: int) -> int:
    """How far to advance first, in a chain of `n > 1` steps whose start is in one of `c` slots."""
    if c == 1:
        return n - 1  # no slot is left: go to the last step
    r = repetitions(n, c)
    return min(beta(c, r - 1), n - beta(c - 1, r - 1))


def columns(c: int, n: int) -> int:
    """How many repetitions `table` has."""
    return 1 + min(repetitions(max(n, 2**17), c) if c > 1 else 1, 4096)


def table(c: int, n: int) -> np.ndarray:
    """`beta` for up to `c` slots and all repetitions that `n` steps can need, saturated at the largest integer.

    Its size is the same for all `n` up to 2^17, so that programs are.
    """
    width = columns(c, n)
    return np.array([[min(beta(i, j), LIMIT) for j in range(width)] for i in range(c + 1)], np.int32)


def useful(n: int) -> int:
    """How many stored carries a loop of `n` steps has a use for: the first one and the last are there without."""
    return max(n - 2, 0)


class Periods(NamedTuple):
    """A loop in segments: the carry before each of them but the last goes far away.

    Attributes:
      n: number of steps.
      far: number of carries far away, the initial one among them.
      last: steps in the last segment; the others share the rest evenly.
    """

    n: int
    far: int
    last: int

    @classmethod
    def of(cls, n: int, k: int, far: int) -> Periods:
        """The segments with the fewest step evaluations for `k` near and `far` far carries, with the fewest transfers.

        A segment is reversed with `k` near carries. All but the last run once more than in the forward pass, so the
        last one may be longer: its steps are advanced up to `r + 1` times, those of the others up to `r` times. With
        enough room far away `r` is 1, and a segment has `k + 2` steps.
        """
        c = min(k, useful(n)) + 1
        if n <= beta(c, 2) or far < 1:
            return cls(n, 0, n)
        r = 1
        while far * beta(c, r) + beta(c, r + 1) < n:
            r += 1
        if r == 1:
            far = -(-(n - beta(c, 2)) // beta(c, 1))
        return cls(n, far, min(beta(c, r + 1), n - far * beta(c, r - 1)))

    def start(self, segment: Any) -> Any:
        """The first step of a segment, an integer of Python or of the device."""
        size, rest = divmod(self.n - self.last, max(self.far, 1))
        return segment * size + (segment + rest - abs(segment - rest)) // 2  # the lesser of both

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of steps in each segment."""
        starts = [*map(self.start, range(self.far + 1)), self.n]
        return tuple(stop - start for start, stop in itertools.pairwise(starts))


class Action(NamedTuple):
    """One action of a schedule.

    Attributes:
      kind: "advance" runs the steps from `start` to `stop` without recording; "store" copies the carry before step
        `start` into a slot, "restore" takes it from there; "write" puts it far away, "read" gets it from there into
        slot 0; "reverse" records step `start` and runs its adjoint.
      start, stop: steps, counted from 0.
      slot: of the near carries, 0 holds the one that the segment starts from, which is the initial one where nothing
        is far away. For "write" and "read", the number of the far carry. None for actions without one.
    """

    kind: str
    start: int
    stop: int
    slot: int | None = None

    def __str__(self) -> str:
        steps = f"{self.start} .. {self.stop}" if self.kind == "advance" else f"{self.start}"
        return f"{self.kind:8} {steps:>15}" + ("" if self.slot is None else f"   slot {self.slot}")


@dataclasses.dataclass(frozen=True)
class Schedule(Drawing):
    """The plan of a loop that stores few carries: :func:`statetransform.schedule` makes it.

    `plot` draws which step runs at which evaluation, and which carries are stored meanwhile.

    Attributes:
      n: number of steps.
      k: number of carries that may be stored besides the initial one.
      far: number of carries that may be stored far away, in host memory or on disk.
    """

    n: int
    k: int
    far: int = 0

    @functools.cached_property
    def periods(self) -> Periods:
        """The segments between the carries far away."""
        return Periods.of(self.n, self.k, self.far)

    @property
    def evaluations(self) -> int:
        """Evaluations of the step in one gradient: the forward pass, recomputation, and the recording of each step."""
        if not self.n:
            return 0
        again = sum(advances(size, self.k + 1) for size in self.periods.sizes)
        return again + self.n - self.periods.last + 1 + self.n

    @property
    def writes(self) -> int:
        """Carries that go far away in the forward pass."""
        return self.periods.far

    @property
    def reads(self) -> int:
        """Carries that come back in the backward pass."""
        return self.periods.far

    @property
    def transfers(self) -> int:
        """Writes and reads."""
        return self.writes + self.reads

    @property
    def recomputations(self) -> int:
        """Evaluations beyond those of the plain loop, which runs and records each step once."""
        return max(self.evaluations - self.n, 0)

    @property
    def peak(self) -> int:
        """The largest number of carries stored at a time, without the initial one."""
        return max(min(self.k, max(self.periods.sizes) - 2), 0)

    def _repr_html_(self) -> str:
        far = f", {self.far} far away" if self.far else ""
        per_step = f" ({self.evaluations / self.n:.3f} per step)" if self.n else ""
        rows = [("step evaluations", f"{self.evaluations}{per_step}"), ("carries stored at most", str(self.peak))]
        if self.far:
            rows.append(("transfers", str(self.transfers)))
        return Table(f"A gradient over {self.n} steps with {self.k} stored carries{far}", ["", ""], rows).html()

    @functools.cached_property
    def actions(self) -> tuple[Action, ...]:
        """All actions in order: the forward pass, then the backward pass. The last step of the forward pass is
        advanced, too, for the final carry; the carry before it is at hand when the backward pass begins."""
        if not self.n:
            return ()
        found: list[Action] = []
        starts = [*map(self.periods.start, range(self.periods.far + 1)), self.n]
        for segment, (start, stop) in enumerate(itertools.pairwise(starts[:-1])):
            found += [Action("write", start, start, segment), Action("advance", start, stop)]
        if self.periods.far:
            found.append(Action("store", starts[-2], starts[-2], 0))
        found += self._reversal(starts[-2], self.n, is_forward=True)
        for segment in reversed(range(self.periods.far)):
            found.append(Action("read", starts[segment], starts[segment], segment))
            found += self._reversal(starts[segment], starts[segment + 1])
        return tuple(found)

    def _reversal(self, start: int, end: int, is_forward: bool = False) -> Iterator[Action]:
        """Reverses the steps of a segment whose start is in slot 0, in the forward pass with its last step advanced."""
        stored, at = [start], start
        while end > start:
            while at < end - 1:
                to = at + split(end - at, self.k + 2 - len(stored))
                yield Action("advance", at, to)
                at = to
                if at < end - 1:
                    stored.append(at)
                    yield Action("store", at, at, len(stored) - 1)
            if is_forward:
                yield Action("advance", at, end)
                is_forward = False
            yield Action("reverse", at, end)
            end = at
            if stored[-1] == end:
                stored.pop()
            if end > start:
                at = stored[-1]
                yield Action("restore", at, at, len(stored) - 1)

    def __repr__(self) -> str:
        far, moved = "", ""
        if self.far:
            far, moved = f", far={self.far}", f", {self.writes} writes and reads"
        carries = f"{self.peak} stored carries at most"
        return f"schedule(n={self.n}, k={self.k}{far}): {self.evaluations} evaluations, {carries}{moved}"

    def __str__(self) -> str:
        shown = [str(action) for action in self.actions[:60]]
        rest = len(self.actions) - len(shown)
        per_step = self.evaluations / self.n if self.n else 0.0
        far = f", and up to {self.far} far away" if self.far else ""
        moved = [f"  far away           {self.writes} writes, {self.reads} reads"] if self.far else []
        head = [
            f"{self.n} steps, up to {self.k} stored carries besides the initial one{far}",
            f"  step evaluations   {self.evaluations}   ({per_step:.3f} per step; the plain loop has 1 per step)",
            f"  recomputations     {self.recomputations}",
            f"  stored carries     {self.peak}",
            *moved,
            f"  actions            {len(self.actions)}",
        ]
        return "\n".join([*head, *[f"    {line}" for line in shown], *([f"    ... and {rest} more"] if rest else [])])

    def _draw(self, ax: Any) -> None:
        time, since, away = 0, {0: 0}, {}
        lines: dict[str, list[Any]] = {"advance": [], "reverse": []}
        carries: dict[str, list[tuple[int, int, int]]] = {"stored carry": [], "carry far away": []}
        for action in self.actions:
            if action.kind in lines:
                length = action.stop - action.start
                lines[action.kind].append(([time, time + length], [action.start, action.stop]))
                time += length
            if action.kind in ("store", "read"):
                since[action.start] = time
            if action.kind == "write":
                away[action.start] = time
                since.pop(action.start, None)
            if action.kind == "read":
                carries["carry far away"].append((action.start, away.pop(action.start), time))
            if action.kind == "reverse" and action.start in since:
                carries["stored carry"].append((action.start, since.pop(action.start), time))
        for (label, found), color, style in zip(
            carries.items(), ("0.75", "tab:orange"), ("solid", "dotted"), strict=True
        ):
            if found:
                ax.hlines(*zip(*found, strict=True), color=color, linestyle=style, linewidth=1, label=label)
        for (kind, segments), color, width in zip(lines.items(), ("tab:blue", "black"), (1.2, 2.4), strict=True):
            for i, (x, y) in enumerate(segments):
                label = None if i else kind
                ax.plot(x, y, color=color, linewidth=width, label=label, solid_capstyle="butt")
        far = f", {self.writes} far away" if self.far else ""
        ax.set(
            xlabel="time (step evaluations)",
            ylabel="step",
            title=f"{self.n} steps, {self.k} stored carries{far}: {self.evaluations} evaluations",
            ylim=(-0.02 * self.n, 1.02 * self.n),
        )
        ax.legend(loc="upper right", framealpha=0.9)
