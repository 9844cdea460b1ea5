"""The forward and the backward sweep of a loop of known length, and the backward sweep of any loop.

A sweep goes from stored carry to stored carry (`stack`). The steps are taken in blocks of a fixed size, the first one
being shorter. How a block is reversed is the business of `reverse`. These are programs whose size does not depend on
the number of steps.

With carries far away there are segments. The forward sweep puts the carry before each segment far away. The backward
sweep fetches them, last first, and reverses each segment with the carries near. Where the length is known, the last
segment keeps its carries from the forward sweep and is longer than the others (`plan.Periods`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ..programs.step_counts import counted
from .arrays import Index, Leaves, empty, empty_rows, pick, select
from .far.memory import Far
from .lanes import is_left_out, largest_of_lanes
from .plan import Periods, Schedule
from .progress import ProgressBar, fori_loop
from .reverse import ByVjp, reverse_of
from .stack import Blocks, Stack, climb
from .step import Cotangents, Saved, Selected, Step


def plain(step: Step, consts: Leaves, init: Leaves, xs: Leaves) -> tuple[Leaves, Leaves]:
    """Runs all steps, storing nothing, under the eyes of a watch."""
    n = step.length
    assert n is not None
    return fori_loop(0, n, step.writing(consts, xs), (init, empty(n, step.y_avals)), step.watch)


def forward(step: Step, selected: Selected, consts: Leaves, init: Leaves, xs: Leaves) -> tuple[Leaves, Leaves, Saved]:
    """Runs all steps of a loop of known length, storing carries before the last block, and recording that."""
    n, needed = step.length, step.needed(selected)
    assert n is not None
    if not any(needed):
        return *plain(step, consts, init, xs), Saved(None, Stack.of([], 0), [])
    carry, ys, advance, far, start = init, empty(n, step.y_avals), step.writing(consts, xs), None, 0
    if step.room:
        periods = Periods.of(n, step.k, step.room.rows)
        carry, ys, far = _to_last_segment(step, periods, advance, (carry, ys, step.room.empty(init)))
        start = n - periods.last
    reverse, blocks = reverse_of(step, n - start, selected, consts, xs, start=start)
    stack, last, steps = Stack.of(pick(carry, needed), step.k), blocks.count - 1, blocks.n - blocks.last
    stack, (carry, ys) = climb(blocks, needed, advance, last, stack, (carry, ys), step.watch, steps)
    first, sharing = blocks.position(stack.at[stack.top]), reverse.sharing
    recorded, row = sharing.read(stack, empty_rows(blocks.rows, sharing.own(reverse.avals)))
    carry, ys, recorded = reverse.record(first, carry, ys, recorded, row)
    return carry, ys, Saved(None, *sharing.write(stack, recorded), far)


def _to_last_segment(step: Step, periods: Periods, advance: Any, state: tuple[Leaves, Leaves, Far]) -> Any:
    """Runs all segments but the last; takes and gives the carry, the outputs and the carries far away."""

    def segment(s: Index, state: Any) -> Any:
        carry, ys, far = state
        far = far.write(s, carry)
        with counted(periods.n - periods.last, periods.far):
            carry, ys = lax.fori_loop(periods.start(s), periods.start(s + 1), advance, (carry, ys))
        return carry, ys, far

    if periods.far == 1:  # JAX makes no loop of one step, and has had trouble with host memory there
        return segment(0, state)
    with counted(periods.far):
        return fori_loop(0, periods.far, segment, state, step.watch, periods.start)


def backward(
    step: Step,
    selected: Selected,
    consts: Leaves,
    xs: Leaves,
    saved: Saved,
    ct_carry: Leaves,
    ct_ys: Leaves,
    is_live: Sequence[bool],
) -> Cotangents:
    """The cotangents of what is selected: reverses all steps, storing carries again in the slots that become free.

    `ct_carry` are the cotangents of the selected leaves of the last carry, `ct_ys` those of the stacked outputs, None
    for zero and for integers. Those of the carry that are not live are zero for certain.
    """
    n = largest_of_lanes(saved.n) if step.length is None else step.length
    reverse, blocks = reverse_of(step, n, selected, consts, xs, saved.n, ct_ys, is_live)
    cts = reverse.starting(ct_carry)
    if saved.far is not None:
        return _by_segments(reverse, n, saved, saved.far, cts)
    # A single block is reversed in one go: a watch around it would only make copies.
    watch = None if reverse.avals and blocks.known == 1 else step.watch
    with counted(blocks.known):
        return unwind(reverse, blocks, saved.stack, saved.recorded, cts, watch)[1]


def _by_segments(reverse: ByVjp, n: Any, saved: Saved, far: Far, cts: Cotangents) -> Cotangents:
    """Reverses a loop of `n` steps segment by segment."""
    step, stack = reverse.step, saved.stack
    known = step.length
    if known is None:
        top, again = saved.count - 1, None
        start = lambda s: jnp.minimum(s * saved.period, n)
        row = lambda s: jnp.where(s < 0, -1, saved.rows[jnp.maximum(s, 0)])
        far, carry = far.read(row(top), row(top - 1), top)
        stack = Stack.of(carry, step.k)
    else:
        periods = Periods.of(known, step.k, far.format.room.rows)
        top, again = periods.far, Schedule(known, step.k, far.format.room.rows).evaluations - 2 * known
        start = lambda s: jnp.where(s > top, known, periods.start(s))
        row = lambda s: s

    def segment(j: Index, state: Any) -> Any:
        stack, far, cts = state
        s = top - j
        first, behind = start(s), start(s + 1)
        blocks = Blocks(behind - first, step.k, first=first, known=known, again=again)
        with counted(known, top + 1 if known else 1):
            stack, cts = unwind(reverse, blocks, stack, [], cts)
        far, cts = far.after(cts)
        far, carry = far.read(row(s - 1), row(s - 2), s - 1)
        return stack.restart(carry), far, cts

    done = lambda j: n - start(top + 1 - j)
    with counted(top + 1 if known else None):
        return fori_loop(0, top + 1, segment, (stack, far, cts), step.watch, done, is_backward=True)[2]


def unwind(
    reverse: ByVjp, blocks: Blocks, stack: Stack, own: Leaves, cts: Cotangents, watch: ProgressBar | None = None
) -> tuple[Stack, Cotangents]:
    """Reverses some blocks; `own` are the residuals of the last one that are in arrays of their own."""
    step, needed, n = reverse.step, reverse.needed, reverse.n
    avals = pick(step.avals, needed)

    def advance(i: Index, moving: Any) -> Any:
        carry = pick(step.run(i, reverse.consts, step.whole(needed, moving[0]), reverse.xs)[0], needed)
        return (carry if n is None else select(is_left_out(i >= n), moving[0], carry),)

    def one(j: Index, state: Any) -> Any:
        stack, own, cts = state
        block = blocks.count - 1 - j
        if any(needed):
            moving, stored = (stack.read(avals)[0],), (True,) * sum(needed)
            stack, _ = climb(blocks, stored, advance, block, stack, moving, steps=blocks.again, runs=blocks.known or 1)
        # Out of its slot again, the carry can be fused with what reads it.
        carry = step.whole(needed, stack.read(avals)[0])
        first, behind = blocks.position(block), blocks.position(block + 1)
        recorded, row = reverse.sharing.read(stack, own)
        # The forward sweep has recorded the last block.
        recorded = reverse.record_again(first, jnp.where(j == 0, first, behind), carry, recorded, row)
        recorded, cts = reverse.reverse(first, behind, carry, recorded, row, cts)
        stack, own = reverse.sharing.write(stack, recorded)
        return stack.pop(), own, cts

    done = lambda j: blocks.n - blocks.position(blocks.count - j)
    stack, _, cts = fori_loop(0, blocks.count, one, (stack, own, cts), watch, done, is_backward=True)
    return stack, cts


def nested(step: Step, consts: Leaves, init: Leaves, xs: Leaves, n: int) -> tuple[Leaves, Leaves]:
    """The loop as nested checkpointed scans: any derivative of any order, in memory of the square root of `n`.

    For the derivatives of the sweeps themselves, which cannot be transposed.
    """
    inner = max(math.isqrt(n), 1)
    whole = n - n % inner
    order = (lambda x: x[::-1]) if step.is_reversed else (lambda x: x)
    xs = [order(x) for x in xs]
    one: Any = jax.checkpoint(functools.partial(step.fun, consts))
    block = jax.checkpoint(lambda carry, x: lax.scan(one, carry, x, length=inner))
    head = [x[:whole].reshape(n // inner, inner, *x.shape[1:]) for x in xs]
    carry, ys = lax.scan(block, init, head, length=n // inner)
    carry, rest = lax.scan(one, carry, [x[whole:] for x in xs], length=n % inner)
    ys = [y.reshape(whole, *y.shape[2:]) for y in ys]
    return carry, [order(jnp.concatenate([y, z])) for y, z in zip(ys, rest, strict=True)]
