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
from .chunks import while_loop
from .sweep import Index, Leaves, Saved, Stack, Step, put, take

SHARE = 16  # how many times a new carry is considered within an even share of the steps so far


def forward(step: Step, test: Callable[[Index, Leaves], Any], consts: Leaves, init: Leaves) -> tuple[Leaves, Saved]:
    """Runs steps while a test holds, storing carries along the way.

    Args:
      step: the step, without inputs and outputs.
      test: whether step `i` is to run on a carry.
      consts, init: as for `sweep.forward`.

    Returns:
      The last carry, and what the backward sweep starts from.
    """
    place = placer(step.k)

    def advance(state: Any) -> Any:
        i, carry = state
        return i + 1, step.fun(consts, carry, [])[0]

    def leg(state: Any) -> Any:
        i, carry, stack, until = state
        stack, is_stored = place(stack, i)
        row = stack.rows[stack.top]
        kept = [jnp.where(is_stored, new, old) for new, old in zip(carry, take(stack.slots, row), strict=True)]
        stack = stack._replace(slots=put(stack.slots, row, kept))
        until = i + jnp.where(stack.top < step.k, 1, jnp.maximum(i // (SHARE * (step.k + 1)), 1))
        i, carry = lax.while_loop(lambda state: (state[0] < until) & test(*state), advance, (i, carry))
        return i, carry, stack, until

    if step.k == 0:
        stack, start = Stack.of(init, 0), (jnp.int32(0), init)
        n, carry = while_loop(lambda s: test(*s), advance, start, step.watch, lambda s: s[0])
    else:
        first = lax.while_loop(lambda s: (s[0] < 1) & test(*s), advance, (jnp.int32(0), init))
        start = *first, Stack.of(init, step.k), jnp.int32(1)
        n, carry, stack, _ = while_loop(lambda s: test(s[0], s[1]), leg, start, step.watch, lambda s: s[0])
    return carry, Saved(n, stack)


def placer(k: int) -> Callable[[Stack, Index], tuple[Stack, Any]]:
    """Decides whether the carry before step `i` is stored, and in whose place.

    Returns:
      A function from the stack and `i` to the stack, whose topmost slot is for that carry, and whether it is.
    """
    beta = jnp.asarray(plan.table(k + 2, plan.LIMIT), jnp.float32)
    index = np.arange(k + 1)
    slots = np.arange(k + 1, -1, -1)  # of the segments that begin at the stored carries and at `i`

    def place(stack: Stack, i: Index) -> tuple[Stack, Any]:
        is_full = stack.top == k
        at, rows = stack.at[:-1], stack.rows[:-1]  # the last slot is for the carry at work
        starts = jnp.append(at, i)
        lengths = jnp.append(starts[1:], i + 1) - starts
        # Without the j-th carry, its segment joins the one before, and those behind have one more slot.
        before = jnp.cumsum(advances(lengths[:-1], slots[:-1], beta))
        behind = jnp.cumsum(advances(lengths[1:], slots[:-1], beta)[::-1])[::-1]
        joined = advances(lengths[:-1] + lengths[1:], slots[:-1], beta)
        costs = jnp.append(0, before[:-1]) + joined + jnp.append(behind[1:], 0)
        j = jnp.where(is_full, jnp.argmin(costs) + 1, stack.top + 1)
        is_stored = j <= k
        source = jnp.clip(jnp.where(index < j, index, index + 1), 0, k)
        last = jnp.where(is_full, k, stack.top + 1)
        new_at = jnp.where(index == last, i, at[source])
        new_rows = jnp.where(index == last, rows[jnp.minimum(j, k)], rows[source])
        keep = lambda new, old: jnp.where(is_stored, jnp.where(is_full | (index == last), new, old), old)
        at = stack.at.at[:-1].set(keep(new_at, at))
        rows = stack.rows.at[:-1].set(keep(new_rows, rows))
        return Stack(stack.slots, rows, at, jnp.where(is_stored, last, stack.top)), is_stored

    return place


def advances(lengths: Any, slots: np.ndarray, beta: Any) -> Any:
    """`plan.advances` for arrays, in float32; for one and two slots, where the table ends early, by closed forms."""
    n = lengths.astype(jnp.float32)
    r = jnp.sum(beta[slots] < n[:, None], axis=1)
    many = r * n - beta[np.minimum(slots + 1, len(beta) - 1), jnp.maximum(r - 1, 0)] * (r > 0)
    root = jnp.ceil((jnp.sqrt(8 * n + 1) - 3) / 2)
    two = root * n - (root + 2) * (root + 1) * root / 6
    return jnp.where(n <= 1, 0, jnp.where(slots == 1, n * (n - 1) / 2, jnp.where(slots == 2, two, many)))
