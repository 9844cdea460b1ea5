"""The forward sweep of a loop whose length is not known in advance.

As long as there is room, every carry is stored. After that, each new one takes the place of another: of the one
without which the backward sweep from here would advance the fewest steps. That is computed exactly, by the binomial
formula for each gap between stored carries, but not at every step: the next carry is considered after a sixteenth of
an even share of the steps so far. For up to 5000 steps and 5, 10, 20 or 32 stored carries, a gradient so takes at most
1.08 times the evaluations of the schedule that knows the length.

References:
  Stumm and Walther, *New algorithms for optimal online checkpointing*, SIAM Journal on Scientific Computing 32, 2010.
  Wang, Moin and Iaccarino, *Minimal repetition dynamic checkpointing algorithm for unsteady adjoint calculation*, SIAM
  Journal on Scientific Computing 31, 2009; both place carries by other rules.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from . import plan
from .arrays import Index, Leaves, pick, read_row, select, write_row
from .far.memory import Room
from .lanes import is_left_out, largest_of_lanes
from .progress import while_loop
from .stack import Stack
from .step import Saved, Selected, Step

SHARE = 16  # how many times a new carry is considered within an even share of the steps so far
# Beyond that many steps, what a segment costs is underestimated. The compiler of the CPU holds the table three times:
# for all that an int32 counts that is 17 kB beside two carries, which may be of a few bytes.
MANY = 2**20


def forward(
    step: Step, selected: Selected, test: Callable[[Index, Leaves], Any], consts: Leaves, init: Leaves
) -> tuple[Leaves, Saved]:
    """Runs steps while a test holds, storing carries along the way.

    Under `vmap` all lanes take the same number of steps, those behind a lane's last one leaving its carry as it is.
    `test` says whether step `i` is to run on a carry. Once it is False it stays so, while other lanes go on.
    """
    if step.room:
        return _far_away(step, step.room, test, consts, init)
    needed = step.needed(selected)
    place, advance = placer(step.k), stepping(step, test, consts)

    def fill(state: Any) -> Any:
        moving, slots = state
        return advance(moving), write_row(slots, moving[0], pick(moving[-1], needed))

    def leg(state: Any) -> Any:
        moving, stack = state
        i, carry = moving[0], pick(moving[-1], needed)
        stack, is_stored = place(stack, i)
        row = stack.rows[stack.top]
        old = read_row(stack.slots, row, carry)
        stack = stack._replace(slots=write_row(stack.slots, row, select(is_stored, carry, old)))
        until = i + jnp.maximum(i // (SHARE * (step.k + 1)), 1)
        goes = lambda moving: (moving[0] < until) & largest_of_lanes(moving[2])
        return lax.while_loop(goes, advance, moving), stack

    start, stack = (jnp.int32(0), jnp.int32(0), test(jnp.int32(0), init), init), Stack.of(pick(init, needed), step.k)
    if step.k == 0 or not any(needed):
        moving = while_loop(lambda s: largest_of_lanes(s[2]), advance, start, step.watch, lambda s: s[0])
    else:
        done, has_room = (lambda s: s[0][0]), lambda s: (s[0][0] <= step.k) & largest_of_lanes(s[0][2])
        moving, slots = while_loop(has_room, fill, (start, stack.slots), step.watch, done)
        top = jnp.clip(moving[0] - 1, 0, step.k)
        state = moving, Stack(slots, stack.rows, jnp.arange(step.k + 2, dtype=jnp.int32), top)
        moving, stack = while_loop(lambda s: largest_of_lanes(s[0][2]), leg, state, step.watch, done)
    _, n, _, carry = moving
    return carry, Saved(n, stack, [])


def _far_away(
    step: Step, room: Room, test: Callable[[Index, Leaves], Any], consts: Leaves, init: Leaves
) -> tuple[Leaves, Saved]:
    """The same with the carry before each segment far away, in an even number of rows.

    Segments have `k + 2` steps until there is no more room; then every second carry is dropped, and segments are twice
    as long.
    """
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
    return carry, Saved(n, None, [], far, rows, count, period)


def stepping(step: Step, test: Callable[[Index, Leaves], Any], consts: Leaves) -> Callable[[Any], Any]:
    """A step from `(i, n, is_on, carry)` to these: its number, that of this lane, and whether it is to run."""

    def advance(state: Any) -> Any:
        i, n, is_on, carry = state
        after = step.fun(consts, carry, [])[0]
        left_out = is_left_out(~is_on)
        carry = select(left_out, carry, after)
        return i + 1, jnp.where(left_out, n, i + 1), test(i + 1, carry), carry

    return advance


def placer(k: int) -> Callable[[Stack, Index], tuple[Stack, Any]]:
    """Decides whether the carry before step `i` is stored where every slot is taken, and in whose place.

    The function gives the stack, whose topmost slot is for that carry, and whether it is stored.
    """
    beta = jnp.asarray(plan.table(k + 2, MANY if k > 1 else 1), jnp.float32)
    index = np.arange(k + 1, dtype=np.int32)
    slots = np.arange(k + 1, -1, -1)  # of the segments that begin at the stored carries and at `i`

    def place(stack: Stack, i: Index) -> tuple[Stack, Any]:
        at, rows = stack.at[:-1], stack.rows[:-1]  # the last slot is for the carry at work
        starts = jnp.append(at, i)
        lengths = jnp.append(starts[1:], i + 1) - starts
        # Without the j-th carry, its segment joins the one before, and those behind have one more slot.
        before = jnp.cumsum(advances(lengths[:-1], slots[:-1], beta))
        behind = jnp.cumsum(advances(lengths[1:], slots[:-1], beta)[::-1])[::-1]
        joined = advances(lengths[:-1] + lengths[1:], slots[:-1], beta)
        zero = jnp.zeros(1, before.dtype)
        costs = jnp.append(zero, before[:-1]) + joined + jnp.append(behind[1:], zero)
        j = jnp.argmin(costs).astype(jnp.int32) + 1
        source = jnp.minimum(jnp.where(index < j, index, index + 1), k)
        new_at = jnp.where(index == k, i, at[source])
        new_rows = jnp.where(index == k, rows[jnp.minimum(j, k)], rows[source])
        is_stored = j <= k
        at = stack.at.at[:-1].set(jnp.where(is_stored, new_at, at))
        rows = stack.rows.at[:-1].set(jnp.where(is_stored, new_rows, rows))
        return stack._replace(at=at, rows=rows), is_stored

    return place


def advances(lengths: Any, slots: np.ndarray, beta: Any) -> Any:
    """`plan.advances` for arrays, in float32; for one and two slots, where the table ends early, by closed forms."""
    n = lengths.astype(jnp.float32)
    r = jnp.sum(beta[slots] < n[:, None], axis=1, dtype=jnp.int32)
    below = jnp.where(r > 0, beta[np.minimum(slots + 1, len(beta) - 1), jnp.maximum(r - 1, 0)], 0)
    many = r.astype(n.dtype) * n - below
    root = jnp.ceil((jnp.sqrt(8 * n + 1) - 3) / 2)
    two = root * n - (root + 2) * (root + 1) * root / 6
    return jnp.where(n <= 1, 0, jnp.where(slots == 1, n * (n - 1) / 2, jnp.where(slots == 2, two, many)))
