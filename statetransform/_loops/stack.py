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

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from .._jaxpr.step_counts import counted
from . import plan
from .arrays import Index, Leaves, merge, pick, put, take
from .chunks import Watch, while_loop


@dataclasses.dataclass(frozen=True, eq=False)
class Blocks:
    """`n` steps from `first` on in blocks of `size`, the first one shorter; all may be traced where the size is 1."""

    n: Any
    size: int
    first: Any = 0

    @property
    def count(self) -> Any:
        """The number of blocks."""
        return self.n if self.size == 1 else -(-self.n // self.size)

    def position(self, block: Index) -> Index:
        """The first step of a block; of the block behind the last, the number of steps."""
        if self.size == 1:
            return block if isinstance(self.first, int) and not self.first else self.first + block
        return jnp.maximum(self.n - (self.count - block) * self.size, 0)


class Stack(NamedTuple):
    """The stored carries. Those at `rows[:top + 1]` are in use; the carry at `rows[j]` is that before step `at[j]`.

    Attributes:
      slots: `[k + 2, *leaf.shape]` for each leaf of the carry.
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
        return cls([lax.broadcast(x, (k + 2,)) for x in carry], rows, jnp.zeros_like(rows), jnp.int32(0))

    def read(self) -> tuple[Leaves, Index]:
        """The topmost carry, and its position."""
        return take(self.slots, self.rows[self.top]), self.at[self.top]

    def restart(self, carry: Leaves) -> Stack:
        """With that carry alone, at position 0."""
        slots = put(self.slots, self.rows[0], carry)
        return Stack(slots, self.rows, lax.dynamic_update_index_in_dim(self.at, 0, 0, 0), jnp.zeros_like(self.top))

    def push(self, carry: Leaves, at: Index) -> Stack:
        """Puts the carry at a position on top."""
        top = self.top + 1
        slots = put(self.slots, self.rows[top], carry)
        return Stack(slots, self.rows, lax.dynamic_update_index_in_dim(self.at, at, top, 0), top)

    def pop(self) -> Stack:
        """Gives the topmost slot back; that of the initial carry stays."""
        return self._replace(top=jnp.maximum(self.top - 1, 0))


def splitter(k: int, n: int | None) -> Callable[[Index, Index], Index]:
    """`plan.split(length, slots)` on the device; the slots count the one that holds the start."""
    if k == 0:
        return lambda length, slots: length - 1
    if n is not None and k >= n - 2:  # every carry is stored
        return lambda length, slots: jnp.ones_like(length)
    beta = jnp.asarray(plan.table(k + 1, plan.LIMIT if n is None else n))

    def split(length: Index, slots: Index) -> Index:
        row, below = beta[slots], beta[slots - 1]
        r = jnp.sum(row < length, dtype=jnp.int32)
        best = jnp.minimum(row[r - 1], length - below[r - 1])
        return jnp.where(slots == 1, length - 1, jnp.clip(best, 1, length - 1))

    return split


class Climb(NamedTuple):
    """Goes on from the topmost carry to that before a later block, storing carries on the way.

    Attributes:
      k: the number of carries that may be stored.
      split: how far to go, out of the number of blocks up to and with the last one, and the number of slots.
      position: from the numbers of blocks to those of steps.
      stored: which leaves of the carry are stored.
    """

    k: int
    split: Callable[[Index, Index], Index]
    position: Callable[[Index], Index]
    stored: Sequence[bool]

    def __call__(
        self,
        advance: Callable[[Index, Any], Any],
        end: Index,
        stack: Stack,
        moving: Any,
        watch: Watch | None = None,
        steps: int | None = None,
        runs: int = 1,
    ) -> tuple[Stack, Any]:
        """Climbs.

        Args:
          advance: one step of `moving`.
          end: the block before which to arrive.
          stack: the stored carries.
          moving: the carry, and what is written on the way besides it.
          watch: what is told on the way.
          steps, runs: how many steps are taken in how many calls together, if that is known.
        """

        def leg(state: Any) -> Any:
            stack, (carry, *others) = state
            restored, at = stack.read()
            carry = merge(carry, self.stored, restored)
            to = at + self.split(end + 1 - at, self.k + 1 - stack.top)
            with counted(1):  # the loop around has the count of all steps
                moved = lax.fori_loop(self.position(at), self.position(to), advance, (carry, *others))
            return stack.push(pick(moved[0], self.stored), to), moved

        at = lambda state: state[0].at[state[0].top]
        with counted(steps, runs, is_recomputation=True):
            return while_loop(lambda s: at(s) < end, leg, (stack, moving), watch, lambda s: self.position(at(s)))
