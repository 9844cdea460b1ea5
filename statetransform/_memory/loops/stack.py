"""Where a sweep stores carries, and how it goes on from one to the next.

A sweep keeps a stack of stored carries. Where the next carry goes is computed on the device, by the same `split` as on
the host, so the plan takes no room in the program and the number of steps may be a traced value. Steps run in place;
stored carries sit in one array per leaf, into which they are written in place, too.

Each leg starts from the carry in the topmost slot and puts its result in the next slot. There is one slot more than
stored carries, so a carry that is reversed at once needs no special case. So no branch decides whether to store (a
conditional would copy all stored carries), and no carry is copied to be worked on.

The forward sweep takes its last carry out of a leg, never out of the slots. If an output of the program were read out
of them, the compiler would copy all of them before the backward sweep overwrites them.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from ..programs.step_counts import counted
from . import mixed, plan
from .arrays import Index, Leaves, as_row, merge, pick, read_row, write_row
from .progress import ProgressBar, while_loop


class Blocks:
    """Steps in blocks, the first one shorter, and where the next carry is stored on the way to one of them.

    Args:
      n: the number of steps; it and the first step may be traced where the size is 1.
      known: the number of blocks in all segments of the loop; None if it is not known in advance.
      again: how many steps are advanced again in all of them, if that is known.

    Attributes:
      count, last: the number of blocks, and of the steps in the last one.
      rows: of how many steps residuals are kept at a time.
    """

    def __init__(
        self, n: Any, k: int, size: int = 1, first: Any = 0, *, known: int | None = None, again: int | None = None
    ) -> None:
        self.n, self.k, self.known, self.again, self._first = n, k, known, again, first
        self.last = self.rows = size
        self.count = n if size == 1 else -(-n // size)
        is_simple = k == 0 or (known is not None and k >= known - 2)
        self._beta = None if is_simple else jnp.asarray(plan.table(k + 1, plan.LIMIT if known is None else known))

    @classmethod
    def of(cls, n: Any, k: int, size: int = 1, first: int = 0) -> Blocks:
        """The blocks of a whole loop, or of its last segment."""
        if not isinstance(n, int):
            return cls(n, k)
        count = -(-n // size)
        return cls(n, k, size, first, known=count, again=size * (plan.Schedule(count, k).evaluations - 2 * count))

    def position(self, block: Index) -> Index:
        """The first step of a block; of the block behind the last, the number of steps."""
        if self.last == 1:
            return block if isinstance(self._first, int) and not self._first else self._first + block
        return jnp.maximum(self.n - (self.count - block) * self.last, 0)

    def leg(self, at: Index, end: Index, top: Index) -> Index:
        """Before which block the next carry is stored, from block `at` to `end`, with `top` besides the initial one.

        This is `plan.split` on the device.
        """
        if self._beta is None:  # no carry is stored, or every one
            return at + (1 if self.k else end - at)
        length, slots = end + 1 - at, self.k + 1 - top  # the slots count the one that holds the start
        row, below = self._beta[slots], self._beta[slots - 1]
        r = jnp.sum(row < length, dtype=jnp.int32)
        best = jnp.minimum(row[r - 1], length - below[r - 1])
        return at + jnp.where(slots == 1, length - 1, jnp.clip(best, 1, length - 1))


class Units(Blocks):
    """The blocks and legs of a loop whose units of memory hold a carry or the residuals of one step.

    They are read from a table that the host computes, as there is no formula for them: see `mixed`.
    """

    def __init__(self, n: int, units: int) -> None:
        starts, legs, offsets = mixed.legs(n, units)
        again = mixed.evaluations(n, units) - n - starts[-1]
        super().__init__(n, units, n - starts[-1], known=len(starts), again=again)
        self.count, self.rows = len(starts), units + 2
        self._positions = jnp.asarray((*starts, n), jnp.int32)
        self._legs = jnp.asarray(np.searchsorted(starts, legs), jnp.int32)
        self._offsets = jnp.asarray(offsets, jnp.int32)

    def position(self, block: Index) -> Index:
        return self._positions[block]

    def leg(self, at: Index, end: Index, top: Index) -> Index:
        del at
        return self._legs[self._offsets[end] + top]


class Stack(NamedTuple):
    """The stored carries. Those at `rows[:top + 1]` are in use; the carry at `rows[j]` is that before step `at[j]`.

    Attributes:
      slots: `[k + 2, *leaf.shape]` for each leaf of the carry, as by `arrays.empty_rows`.
      rows, at: int32 `[k + 2]`.
      top: int32.
    """

    slots: Leaves
    rows: Any
    at: Any
    top: Index

    @classmethod
    def of(cls, carry: Leaves, k: int) -> Stack:
        """Room for `k` stored carries, the initial one, which is in, and the one at work."""
        rows = jnp.arange(k + 2, dtype=jnp.int32)
        return cls([lax.broadcast(as_row(x), (k + 2,)) for x in carry], rows, jnp.zeros_like(rows), jnp.int32(0))

    def read(self, like: Sequence[Any]) -> tuple[Leaves, Index]:
        """The topmost carry, of leaves like these, and its position."""
        return read_row(self.slots, self.rows[self.top], like), self.at[self.top]

    def restart(self, carry: Leaves) -> Stack:
        """With that carry alone, at position 0."""
        slots = write_row(self.slots, self.rows[0], carry)
        return Stack(slots, self.rows, lax.dynamic_update_index_in_dim(self.at, 0, 0, 0), jnp.zeros_like(self.top))

    def push(self, carry: Leaves, at: Index) -> Stack:
        """Puts the carry at a position on top."""
        top = self.top + 1
        slots = write_row(self.slots, self.rows[top], carry)
        return Stack(slots, self.rows, lax.dynamic_update_index_in_dim(self.at, at, top, 0), top)

    def pop(self) -> Stack:
        """Gives the topmost slot back; that of the initial carry stays."""
        return self._replace(top=jnp.maximum(self.top - 1, 0))


class Sharing(NamedTuple):
    """Which residuals are recorded in slots of carries: those of a step begin in the topmost one, and overwrite it.

    For each residual, the leaf of the carry whose slots hold it; None for one with an array of its own.
    """

    places: tuple[int | None, ...] = ()

    @classmethod
    def of(cls, carry: Sequence[Any], residuals: Sequence[Any]) -> Sharing:
        """Shares as many as there are of the same abstract value."""
        free = collections.defaultdict(list)
        for i, aval in enumerate(carry):
            free[aval].append(i)
        return cls(tuple(free[aval].pop(0) if free[aval] else None for aval in residuals))

    def own(self, residuals: Sequence[Any]) -> Leaves:
        """Those in arrays of their own."""
        return [x for x, place in zip(residuals, self.places, strict=True) if place is None]

    def read(self, stack: Stack, own: Leaves) -> tuple[Leaves, Index]:
        """All residuals, and the row of the first step."""
        rest = iter(own)
        row = 0 if len(own) == len(self.places) else stack.top
        return [next(rest) if place is None else stack.slots[place] for place in self.places], row

    def write(self, stack: Stack, residuals: Leaves) -> tuple[Stack, Leaves]:
        """The stack with these residuals in it, and those in arrays of their own."""
        slots = list(stack.slots)
        for place, x in zip(self.places, residuals, strict=True):
            if place is not None:
                slots[place] = x
        return stack._replace(slots=slots), self.own(residuals)


def climb(
    blocks: Blocks,
    stored: Sequence[bool],
    advance: Callable[[Index, Any], Any],
    end: Index,
    stack: Stack,
    moving: Any,
    watch: ProgressBar | None = None,
    steps: int | None = None,
    runs: int = 1,
) -> tuple[Stack, Any]:
    """Goes on from the topmost carry to that before a later block, storing carries on the way.

    Args:
      stored: which leaves of the carry are stored.
      advance: one step of `moving`: the carry, and what is written on the way besides it.
      end: the block before which to arrive.
      steps, runs: how many steps are taken in how many calls together, if that is known.
    """

    def leg(state: Any) -> Any:
        stack, (carry, *others) = state
        restored, at = stack.read(pick(carry, stored))
        carry = merge(carry, stored, restored)
        to = blocks.leg(at, end, stack.top)
        with counted(1):  # the loop around has the count of all steps
            moved = lax.fori_loop(blocks.position(at), blocks.position(to), advance, (carry, *others))
        return stack.push(pick(moved[0], stored), to), moved

    at = lambda state: state[0].at[state[0].top]
    with counted(steps, runs, is_recomputation=True):
        return while_loop(lambda s: at(s) < end, leg, (stack, moving), watch, lambda s: blocks.position(at(s)))
