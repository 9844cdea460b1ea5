"""The forward and the backward sweep of a loop, as programs whose size does not depend on the number of steps.

A sweep keeps a stack of stored carries. Where the next carry goes is computed on the device, by the same `split` as on
the host, so the plan takes no room in the program and the number of steps may be a traced value. Steps run in place;
stored carries sit in one array per leaf, into which they are written in place, too.

A leg begins in the topmost slot and ends in the next one, always: a carry that is reversed at once lies in a slot
like any other, for which there is one more than are stored. So no branch decides whether to store (a conditional would
copy all stored carries), and no carry is copied to be worked on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .._analysis.counts import counted
from . import plan
from .chunks import Watch, fori_loop, is_differentiable, while_loop

Leaves = list[Any]
Index = Any  # an int32 scalar


@dataclasses.dataclass(frozen=True, eq=False)
class Step:
    """One step of a loop as a function of lists of arrays, `fun(consts, carry, x) -> (carry, y)`."""

    fun: Callable[[Leaves, Leaves, Leaves], tuple[Leaves, Leaves]]
    y_avals: tuple[Any, ...]
    is_reversed: bool
    k: int
    watch: Watch | None = None
    length: int | None = None  # of the loop, if that is known

    def advances(self, n: int | None, size: int = 1) -> int | None:
        """How many steps the backward sweep over `n` blocks takes again, if that is known."""
        return None if n is None else size * (plan.schedule(n, self.k).evaluations - 2 * n)

    def at(self, n: Index, i: Index, consts: Leaves, carry: Leaves, xs: Leaves) -> tuple[Leaves, Leaves]:
        """The `i`-th step of `n`."""
        return self.fun(consts, carry, take(xs, self.place(n, i)))

    def place(self, n: Index, i: Index) -> Index:
        """Where the inputs and outputs of the `i`-th step are."""
        return n - 1 - i if self.is_reversed else i


class Stack(NamedTuple):
    """The stored carries. Those at `rows[:top + 1]` are in use; the carry at `rows[j]` is that before step `at[j]`."""

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

    def push(self, carry: Leaves, at: Index) -> Stack:
        """Puts the carry at a position on top."""
        top = self.top + 1
        slots = put(self.slots, self.rows[top], carry)
        return Stack(slots, self.rows, lax.dynamic_update_index_in_dim(self.at, at, top, 0), top)

    def pop(self) -> Stack:
        """Gives the topmost slot back; that of the initial carry stays."""
        return self._replace(top=jnp.maximum(self.top - 1, 0))


class Saved(NamedTuple):
    """What the backward sweep starts from: the number of steps, and the stored carries."""

    n: Any
    stack: Stack


def take(arrays: Leaves, i: Index) -> Leaves:
    """The `i`-th slices."""
    return [lax.dynamic_index_in_dim(x, i, 0, keepdims=False) for x in arrays]


def put(arrays: Leaves, i: Index, slices: Leaves) -> Leaves:
    """With the `i`-th slices replaced."""
    return [lax.dynamic_update_index_in_dim(x, y, i, 0) for x, y in zip(arrays, slices, strict=True)]


def empty(n: int, avals: Sequence[Any]) -> Leaves:
    """Arrays for `n` stacked outputs."""
    return [lax.full((n, *aval.shape), 0, aval.dtype) for aval in avals]


def splitter(k: int, n: int | None) -> Callable[[Index, Index], Index]:
    """`plan.split(length, slots)` on the device; the slots count the one that holds the start."""
    if k == 0:
        return lambda length, slots: length - 1
    if n is not None and k >= n - 2:  # every carry is stored
        return lambda length, slots: 1
    beta = jnp.asarray(plan.table(k + 1, plan.LIMIT if n is None else n))

    def split(length: Index, slots: Index) -> Index:
        row, below = beta[slots], beta[slots - 1]
        r = jnp.sum(row < length, dtype=jnp.int32)
        best = jnp.minimum(row[r - 1], length - below[r - 1])
        return jnp.where(slots == 1, length - 1, jnp.clip(best, 1, length - 1))

    return split


def climb(
    k: int,
    split: Callable[[Index, Index], Index],
    advance: Callable[[Index, Any], Any],
    end: Index,
    stack: Stack,
    others: Any = (),
    position: Callable[[Index], Index] = lambda at: at,
    watch: Watch | None = None,
    steps: int | None = None,
    runs: int = 1,
) -> tuple[Stack, Any]:
    """Goes on from the topmost carry to that before step `end`, storing carries on the way.

    Args:
      k: the number of carries that may be stored.
      split: how far to go, out of the number of steps up to and with `end`, and the number of slots.
      advance: one step of `(carry, *others)`.
      end: where to arrive.
      stack: the stored carries.
      others: what is written on the way besides the carry.
      position: from the numbers of steps here to those that `advance` takes.
      watch: who wants to know on the way.
      steps, runs: how many steps are taken in how many calls of this function together, if that is known.
    """

    def leg(state: Any) -> Any:
        stack, others = state
        carry, at = stack.read()
        to = at + split(end + 1 - at, k + 1 - stack.top)
        with counted(1):  # the loop around has the count of all steps
            carry, *others = lax.fori_loop(position(at), position(to), advance, (carry, *others))
        return stack.push(carry, to), tuple(others)

    at = lambda state: state[0].at[state[0].top]
    with counted(steps, runs, is_recomputation=True):
        return while_loop(lambda s: at(s) < end, leg, (stack, others), watch, lambda s: position(at(s)))


def plain(step: Step, consts: Leaves, init: Leaves, xs: Leaves, n: int) -> tuple[Leaves, Leaves]:
    """Runs all steps, storing nothing, under the eyes of a watch."""
    advance = advancing(step, n, consts, xs)
    return fori_loop(0, n, advance, (init, empty(n, step.y_avals)), step.watch)


def advancing(step: Step, n: int, consts: Leaves, xs: Leaves) -> Callable[[Index, Any], Any]:
    """A step of carry and outputs."""

    def advance(i: Index, moving: Any) -> Any:
        carry, ys = moving
        carry, y = step.at(n, i, consts, carry, xs)
        return carry, put(ys, step.place(n, i), y)

    return advance


def forward(step: Step, consts: Leaves, init: Leaves, xs: Leaves, n: int) -> tuple[Leaves, Leaves, Saved]:
    """Runs all steps, storing carries along the way.

    Returns:
      The last carry, the stacked outputs, and what the backward sweep starts from.
    """
    advance, ys = advancing(step, n, consts, xs), empty(n, step.y_avals)
    split, stack = splitter(step.k, n), Stack.of(init, step.k)
    stack, (ys,) = climb(step.k, split, advance, n - 1, stack, (ys,), watch=step.watch, steps=n - 1)
    carry, at = stack.read()
    with counted(1, is_recomputation=True):
        carry, ys = advance(at, (carry, ys))
    if step.watch is not None:
        jax.debug.callback(step.watch.forward, n)
    return carry, ys, Saved(n, stack)


class Selected(NamedTuple):
    """Which constants, initial values and inputs the cotangents are wanted for, as lists of truth values."""

    consts: tuple[bool, ...]
    init: tuple[bool, ...]
    xs: tuple[bool, ...]


def pick(leaves: Sequence[Any], mask: Sequence[bool]) -> Leaves:
    """Those with a mark."""
    return [x for x, marked in zip(leaves, mask, strict=True) if marked]


def merge(leaves: Sequence[Any], mask: Sequence[bool], picked: Sequence[Any]) -> Leaves:
    """With those with a mark replaced."""
    rest = iter(picked)
    return [next(rest) if marked else x for x, marked in zip(leaves, mask, strict=True)]


def backward(
    step: Step,
    selected: Selected,
    consts: Leaves,
    xs: Leaves,
    saved: Saved,
    ct_carry: Leaves,
    ct_ys: Leaves,
) -> Leaves:
    """Reverses all steps, storing carries again in the slots that become free.

    Args:
      step: the step.
      selected: whose cotangents to compute.
      consts, xs: as for `forward`.
      saved: what `forward` saved.
      ct_carry: cotangents of the differentiable leaves of the last carry.
      ct_ys: cotangents of the stacked outputs, None for zero and for integers.

    Returns:
      The cotangents of the selected constants, initial values and inputs.
    """
    n, stack = saved
    split = splitter(step.k, step.length)
    is_moving = [is_differentiable(x) for x in stack.slots]
    seen = [ct is not None for ct in ct_ys]
    again = step.advances(step.length)

    def advance(i: Index, moving: Any) -> Any:
        return (step.at(n, i, consts, moving[0], xs)[0],)

    def reverse(i: Index, carry: Leaves, ct: Leaves) -> tuple[Leaves, Leaves, Leaves]:
        def selected_step(some_consts: Leaves, moving: Leaves, some_x: Leaves) -> tuple[Leaves, Leaves]:
            out, y = step.fun(
                merge(consts, selected.consts, some_consts),
                merge(carry, is_moving, moving),
                merge(x, selected.xs, some_x),
            )
            return pick(out, is_moving), pick(y, seen)

        place = step.place(n, i)
        x = take(xs, place)
        arguments = pick(consts, selected.consts), pick(carry, is_moving), pick(x, selected.xs)
        _, pull = jax.vjp(selected_step, *arguments)
        return pull((ct, take(pick(ct_ys, seen), place)))

    def one(j: Index, state: Any) -> Any:
        stack, (ct_consts, ct, ct_xs) = state
        i = n - 1 - j
        stack, _ = climb(step.k, split, advance, i, stack, steps=again, runs=step.length or 1)
        more, ct, ct_x = reverse(i, stack.read()[0], ct)
        ct_consts = [total + new for total, new in zip(ct_consts, more, strict=True)]
        return stack.pop(), (ct_consts, ct, put(ct_xs, step.place(n, i), ct_x))

    zeros = [jnp.zeros_like(x) for x in pick(consts, selected.consts)], ct_carry
    cts = *zeros, [jnp.zeros_like(x) for x in pick(xs, selected.xs)]
    tell = lambda watch: watch.backward
    with counted(step.length):
        _, (ct_consts, ct, ct_xs) = fori_loop(0, n, one, (stack, cts), step.watch, tell=tell)
    return [*ct_consts, *pick(ct, pick(selected.init, is_moving)), *ct_xs]


def nested(step: Step, consts: Leaves, init: Leaves, xs: Leaves, n: int) -> tuple[Leaves, Leaves]:
    """The loop as nested checkpointed scans: any derivative of any order, in memory of the square root of `n`.

    For the derivatives of the sweeps themselves, which cannot be transposed.
    """
    inner = max(int(np.sqrt(n)), 1)
    outer = n // inner
    order = (lambda x: x[::-1]) if step.is_reversed else (lambda x: x)
    xs = [order(x) for x in xs]

    @jax.checkpoint
    def one(carry: Leaves, x: Leaves) -> tuple[Leaves, Leaves]:
        return step.fun(consts, carry, x)

    @jax.checkpoint
    def block(carry: Leaves, x: Leaves) -> tuple[Leaves, Leaves]:
        return lax.scan(one, carry, x, length=inner)

    head = [x[: outer * inner].reshape(outer, inner, *x.shape[1:]) for x in xs]
    carry, ys = lax.scan(block, init, head, length=outer)
    ys = [y.reshape(outer * inner, *y.shape[2:]) for y in ys]
    carry, rest = lax.scan(one, carry, [x[outer * inner :] for x in xs], length=n - outer * inner)
    return carry, [order(jnp.concatenate([y, z])) for y, z in zip(ys, rest, strict=True)]
