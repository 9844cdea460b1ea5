"""What a budget chooses for a loop or a function, and the bytes and step evaluations of that."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

from ..programs.sizes import format_bytes
from . import mixed, plan

WORKING = 5  # carries at work in a sweep: the initial one, the present and the next, and two cotangents
FEW = 4096  # bytes that are in no plan, as they would be taken for a small carry: half of them what all programs need
FLYING = 3  # carries between the host's memory and the device, as counted for a stencil on a TPU v5e; one on an H100
MOST = 4096  # stored carries of a loop of unknown length: whenever one is placed, all of them are looked at
SLOT = 40  # bytes for each carry of a loop of unknown length that say which of them gives way to a new one


class Sizes(NamedTuple):
    """The bytes of a loop, and what plans take of them.

    Attributes:
      carry, residual: of one carry, and of what one step records.
      scratch: what the gradient of a step needs besides carries, as the compiler says.
      unit: of what holds a carry or the residuals of a step; 0 where nothing does.
      slot: of what says where a carry is stored, if that is decided as the loop runs.
    """

    carry: int
    residual: int
    scratch: int = 0
    unit: int = 0
    slot: int = 0

    def plain(self, n: int) -> int:
        """Bytes of the plain loop."""
        return 3 * self.carry + n * self.residual + self.scratch

    def sweep(self, k: int, block: int) -> int:
        """Bytes of a sweep with stored carries and blocks of residuals."""
        recorded = self.residual * (block + 1) if block > 1 else 0  # those of one step are copied when they are used
        # A row of the table for a loop of unknown length is long where few carries are stored.
        places = self.slot * k + 4 * plan.columns(k + 1, plan.LIMIT) if self.slot else 0
        return (k + WORKING) * self.carry + recorded + self.scratch + max(places - FEW // 2, 0)

    def most(self, budget: int) -> int:
        """The largest number of stored carries that fits; negative if the sweep does not."""
        most = (budget - self.sweep(0, 1)) // max(self.carry, 1)
        if not self.slot:
            return most
        return next((k for k in range(min(most, MOST), -1, -1) if self.sweep(k, 1) <= budget), -1)

    def units(self, units: int) -> int:
        """Bytes of a sweep with units."""
        # Two more hold the initial carry and the step that is recorded last, whose residuals are copied when used.
        return (units + 2) * self.unit + 3 * self.carry + self.residual + self.scratch

    def candidates(self, n: int | None, budget: int) -> Iterator[tuple[int, int]]:
        """Numbers of carries and block sizes that fit, with the largest block for each number of carries."""
        if n is not None and self.plain(n) <= budget:
            yield 0, n
            return
        units = min((budget - self.units(0)) // self.unit, n - 1) if n and self.unit else -1
        if n and units >= 0 and n * n * units <= mixed.LIMIT:
            yield units, 0
        most = self.most(budget)
        if most < 0:
            return
        if n is None:
            yield min(most, MOST), 1
            return
        for k in _spread(min(most, plan.useful(n))):
            size = min((budget - self.sweep(k, 1)) // self.residual - 1, n - 1) if self.residual else 1
            yield k, max(size, 1)
            yield k, 1


@dataclasses.dataclass(frozen=True, repr=False)
class Choice:
    """What a budget chose for one loop.

    Attributes:
      n: number of steps; None if it is not known in advance.
      carries: stored carries besides the initial one.
      block: of how many steps the residuals are stored at a time; 1 for none beyond the step at work, 0 where each of
        the units that `carries` counts holds a carry or the residuals of a step, whichever saves more.
      sizes: the bytes of the loop's parts.
      budget: bytes.
      host: carries in host memory.
      disk: carries in files. If the number of steps is not known, these two are the most that there may be.
      lanes: how many lanes of `vmap` all bytes are of, those on the device and those far away.
      is_of_one_lane: whether the loop was given lanes after it was planned, so that these bytes are those of one lane.
    """

    n: int | None
    carries: int
    block: int
    sizes: Sizes
    budget: int
    host: int = 0
    disk: int = 0
    lanes: int = 1
    is_of_one_lane: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether everything is stored, as in the plain scan."""
        return self.n is not None and self.block >= self.n

    @property
    def bytes(self) -> int:
        """Bytes on the device, of the stored carries and residuals and of those at work."""
        if self.is_plain:
            return self.sizes.plain(self.block)
        near = self.sizes.sweep(self.carries, self.block) if self.block else self.sizes.units(self.carries)
        return near + (self.host > 0) * FLYING * self.sizes.carry

    @property
    def evaluations(self) -> int | None:
        """Step evaluations of one gradient; None if the number of steps is not known."""
        if self.n is None:
            return None
        if not self.block:
            return mixed.evaluations(self.n, self.carries)
        if self.block == 1:
            return plan.Schedule(self.n, self.carries, self.host + self.disk).evaluations
        # The last block is recorded in the forward pass, so every step is evaluated once, and once more each time that
        # it is advanced. The first block may be shorter.
        count, slots = -(-self.n // self.block), self.carries + 1
        missing = count * self.block - self.n
        return self.n + plan.advances(count, slots) * self.block - _first_advances(count, slots) * missing

    def __repr__(self) -> str:
        return f"<{self}>"  # in a list, and in a notebook

    def __str__(self) -> str:
        steps = "a loop" if self.n is None else f"a loop of {self.n} steps"
        if self.is_plain:
            what = "all residuals"
        elif not self.block:
            what = f"{self.carries} units of {format_bytes(self.sizes.unit)}, each a carry or the residuals of a step"
        else:
            what = f"{self.carries} carries of {format_bytes(self.sizes.carry)}"
            if self.block > 1:
                what += f" and the residuals of {self.block} steps of {format_bytes(self.sizes.residual)} each"
        most = "up to " if self.n is None else ""
        for place, carries in (("in host memory", self.host), ("on disk", self.disk)):
            if carries:
                what += f", {most}{carries} more {place} ({format_bytes(carries * self.sizes.carry)})"
        cost = ""
        if self.n:
            evaluated = self.evaluations or 0
            cost = f", {evaluated} step evaluations ({evaluated / self.n:.3f} per step)"
        place = "on the device" if self.host or self.disk else "in all"
        lanes = f", for {self.lanes} lanes of `vmap`" if self.lanes > 1 else ""
        lanes += ", for each of the lanes that came later" if self.is_of_one_lane else ""
        held = f"{format_bytes(self.bytes)} {place}{lanes}"
        return f"{steps} within {format_bytes(self.budget)}: stores {what}, {held}{cost}"


@dataclasses.dataclass(frozen=True)
class FunctionChoice:
    """What a budget chose for the gradient of one function.

    Attributes:
      name: of the function.
      planned_bytes: intermediates alive at the same time at most.
      compiled_bytes: temporary bytes of the compiled gradient step; None where the backend does not say.
      flops_over_plain: operations over those of plain differentiation.
      is_plain: whether it is the plain program.
      budget: bytes.
      target: what it was compiled for, if that is not there.
    """

    name: str
    planned_bytes: int
    compiled_bytes: int | None
    flops_over_plain: float
    is_plain: bool
    budget: int
    target: str = ""

    @property
    def bytes(self) -> int:
        """The planned bytes."""
        return self.planned_bytes

    def __str__(self) -> str:
        sizes = f"{format_bytes(self.planned_bytes)} as planned"
        if self.compiled_bytes is not None:
            sizes += f", {format_bytes(self.compiled_bytes)} as compiled"
            sizes += f" for {self.target}" if self.target else ""
        what = "the plain program" if self.is_plain else f"{self.flops_over_plain:.3f} times the FLOPs of the plain one"
        return f"the gradient of {self.name} within {format_bytes(self.budget)}: {sizes}, {what}"


def _spread(most: int) -> Iterator[int]:
    """All numbers up to 1024 and `most`, and some between."""
    k = 0
    while k < most:
        yield k
        k += max(1, k // 512)
    yield most


def _first_advances(n: int, c: int) -> int:
    """How often the first of `n` steps is advanced."""
    times = 0
    while n > 1:
        if c == 1:
            return times + n - 1
        n, times = plan.split(n, c), times + 1
    return times
