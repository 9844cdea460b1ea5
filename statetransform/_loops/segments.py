"""The sweeps of a loop with carries in two places: segment by segment, the carries before these far away.

The forward sweep puts the carry before each segment far away. The backward sweep fetches them, last first, and reverses
each segment with the carries near, as `sweep` reverses a whole loop. Where the length is known, the last segment keeps
its carries from the forward sweep and is longer than the others (`plan.Periods`). Where it is not, segments have
`k + 2` steps until the room far away is used up; then every second carry there is dropped, and segments are twice as
long.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from .._jaxpr.step_counts import counted
from .arrays import Index, Leaves, empty
from .far_memory import Far
from .lanes import largest_of_lanes
from .plan import Periods, Schedule
from .progress import fori_loop, while_loop
from .reverse import ByVjp
from .stack import Blocks, Stack
from .step import Cotangents, Selected, Step
from .sweep import climb_last, unwind
from .unknown_length import stepping


class SavedSegments(NamedTuple):
    """What the backward sweep starts from.

    Where the length is known in advance: the carries of the last segment, and those far away. Elsewhere: those far
    away, the number of steps of this lane, the row of the carry before each segment, and the number and length of
    segments.
    """

    n: Any
    stack: Any
    far: Far
    rows: Any = None
    count: Any = None
    period: Any = None


def forward(
    step: Step, selected: Selected, consts: Leaves, init: Leaves, xs: Leaves
) -> tuple[Leaves, Leaves, SavedSegments]:
    """`sweep.forward` for a loop of known length, with `step.room.rows` carries far away."""
    n, room = step.length, step.room
    assert n is not None and room is not None
    periods = Periods.of(n, step.k, room.rows)
    advance = step.writing(consts, xs)

    def segment(s: Index, state: Any) -> Any:
        carry, ys, far = state
        far = far.write(s, carry)
        with counted(n - periods.last, periods.far):
            carry, ys = lax.fori_loop(periods.start(s), periods.start(s + 1), advance, (carry, ys))
        return carry, ys, far

    state = init, empty(n, step.y_avals), room.empty(init)
    if periods.far == 1:  # JAX makes no loop of one step, and has had trouble with host memory there
        state = segment(0, state)
    else:
        with counted(periods.far):
            state = fori_loop(0, periods.far, segment, state, step.watch, periods.start)
    carry, ys, far = state
    blocks = Blocks(periods.last, step.k, first=n - periods.last, known=periods.last)
    carry, ys, saved = climb_last(ByVjp(step, selected, consts, xs), blocks, carry, ys)
    return carry, ys, SavedSegments(None, saved.stack, far)


def forward_unknown(
    step: Step, _: Selected, test: Callable[[Index, Leaves], Any], consts: Leaves, init: Leaves
) -> tuple[Leaves, SavedSegments]:
    """`unknown_length.forward` with `step.room.rows` carries far away, an even number."""
    room = step.room
    assert room is not None
    most = room.rows

    def segment(state: Any) -> Any:
        moving, far, rows, count, period = state
        # Without room, the carries before segments 0, 2, 4, ... stay, and the rows of the others are free.
        is_full = count == most
        rows = jnp.where(is_full, jnp.concatenate([rows[0::2], rows[1::2]]), rows)
        count, period = jnp.where(is_full, most // 2, count), jnp.where(is_full, 2 * period, period)
        far, count = far.write(rows[count], moving[-1]), count + 1
        goes = lambda moving: (moving[0] < count * period) & largest_of_lanes(moving[2])
        return lax.while_loop(goes, stepping(step, test, consts), moving), far, rows, count, period

    start = jnp.int32(0), jnp.int32(0), test(jnp.int32(0), init), init
    rows = jnp.arange(most, dtype=jnp.int32)
    state = start, room.empty(init), rows, jnp.int32(0), jnp.int32(step.k + 2)
    is_on, done = (lambda state: largest_of_lanes(state[0][2])), (lambda state: state[0][0])
    (_, n, _, carry), far, rows, count, period = while_loop(is_on, segment, state, step.watch, done)
    return carry, SavedSegments(n, None, far, rows, count, period)


def backward(
    step: Step, selected: Selected, consts: Leaves, xs: Leaves, saved: SavedSegments, ct_carry: Leaves, ct_ys: Leaves
) -> Cotangents:
    """`sweep.backward`, segment by segment."""
    n, far, stack = step.length, saved.far, saved.stack
    if n is None:
        total, top, again = largest_of_lanes(saved.n), saved.count - 1, None
        start = lambda s: jnp.minimum(s * saved.period, total)
        row = lambda s: jnp.where(s < 0, -1, saved.rows[jnp.maximum(s, 0)])
        far, carry = far.read(row(top), row(top - 1), top)
        stack = Stack.of(carry, step.k)
    else:
        periods = Periods.of(n, step.k, far.form.room.rows)
        total, top, again = n, periods.far, Schedule(n, step.k, far.form.room.rows).evaluations - 2 * n
        start = lambda s: jnp.where(s > top, n, periods.start(s))
        row = lambda s: s
    reverse = ByVjp(step, selected, consts, xs, saved.n, ct_ys)

    def segment(j: Index, state: Any) -> Any:
        stack, far, cts = state
        s = top - j
        first, behind = start(s), start(s + 1)
        blocks = Blocks(behind - first, step.k, first=first, known=n, again=again)
        with counted(n, top + 1 if n else 1):
            stack, cts = unwind(reverse, blocks, stack, [], cts)
        far, cts = far.after(cts)
        far, carry = far.read(row(s - 1), row(s - 2), s - 1)
        return stack.restart(carry), far, cts

    state = stack, far, reverse.no_cotangents(ct_carry)
    done = lambda j: total - start(top + 1 - j)
    with counted(top + 1 if n else None):
        return fori_loop(0, top + 1, segment, state, step.watch, done, is_backward=True)[2]
