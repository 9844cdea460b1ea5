"""The forward and the backward sweep of a loop, as programs whose size does not depend on the number of steps.

A sweep goes from stored carry to stored carry (`stack`). The steps are taken in blocks of a fixed size, the first one
being shorter. How a block is reversed is the business of `reverse`.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .._jaxpr.step_counts import counted
from . import plan
from .arrays import Index, Leaves, empty, pick, select
from .chunks import Watch, fori_loop
from .lanes import is_left_out, longest
from .reverse import Reverse, reverse_of
from .stack import Blocks, Climb, Stack, splitter
from .step import Cotangents, Saved, Selected, Step


def plain(step: Step, consts: Leaves, init: Leaves, xs: Leaves) -> tuple[Leaves, Leaves]:
    """Runs all steps, storing nothing, under the eyes of a watch."""
    n = step.length
    assert n is not None
    return fori_loop(0, n, step.writing(consts, xs), (init, empty(n, step.y_avals)), step.watch)


def forward(step: Step, selected: Selected, consts: Leaves, init: Leaves, xs: Leaves) -> tuple[Leaves, Leaves, Saved]:
    """Runs all steps of a loop of known length, storing carries before the last block, and recording that.

    Returns:
      The last carry, the stacked outputs, and what the backward sweep starts from.
    """
    n = step.length
    assert n is not None
    if not any(step.needed(selected)):
        return *plain(step, consts, init, xs), Saved(None, Stack.of([], 0), [])
    reverse = reverse_of(step, selected, consts, xs)
    return climb_last(reverse, init, empty(n, step.y_avals), Blocks(n, reverse.size))


def climb_last(reverse: Reverse, carry: Leaves, ys: Leaves, blocks: Blocks) -> tuple[Leaves, Leaves, Saved]:
    """`forward` for the last blocks of a loop, from the carry before them and with the outputs so far."""
    step, needed = reverse.step, reverse.needed
    climb = Climb(step.k, splitter(step.k, blocks.count), blocks.position, needed)
    stack, last = Stack.of(pick(carry, needed), step.k), blocks.count - 1
    advance = step.writing(reverse.consts, reverse.xs)
    stack, (carry, ys) = climb(advance, last, stack, (carry, ys), step.watch, steps=blocks.n - blocks.size)
    first = blocks.position(stack.at[stack.top])
    carry, ys, recorded = reverse.record(first, carry, ys, empty(blocks.size, reverse.avals))
    return carry, ys, Saved(None, stack, recorded)


def backward(
    step: Step, selected: Selected, consts: Leaves, xs: Leaves, saved: Saved, ct_carry: Leaves, ct_ys: Leaves
) -> Cotangents:
    """Reverses all steps, storing carries again in the slots that become free.

    Args:
      step: the step.
      selected: whose cotangents to compute.
      consts, xs: as for `forward`.
      saved: what `forward` saved.
      ct_carry: cotangents of the selected leaves of the last carry.
      ct_ys: cotangents of the stacked outputs, None for zero and for integers.

    Returns:
      The cotangents of the selected constants, initial values and inputs.
    """
    n, reverse = step.length, reverse_of(step, selected, consts, xs, saved.n, ct_ys)
    blocks = Blocks(longest(saved.n) if n is None else n, reverse.size)
    known = None if n is None else blocks.count
    again = None if known is None else blocks.size * (plan.Schedule(known, step.k).evaluations - 2 * known)
    # A single block is reversed in one go: a watch around it would only make copies.
    watch = None if reverse.size > 1 and known == 1 else step.watch
    state = saved.stack, saved.recorded, reverse.no_cotangents(ct_carry)
    with counted(known):
        return unwind(reverse, blocks, state, known, again, watch)[2]


def unwind(
    reverse: Reverse,
    blocks: Blocks,
    state: tuple[Stack, Leaves, Cotangents],
    known: int | None,
    again: int | None,
    watch: Watch | None = None,
) -> tuple[Stack, Leaves, Cotangents]:
    """Reverses some blocks.

    Args:
      reverse: how they are reversed.
      blocks: which steps.
      state: the stored carries, the residuals of the last block, and the cotangents behind it.
      known: how many blocks there are in all; None if it is not known in advance.
      again: how many steps are advanced again in all, if that is known.
      watch: what is told on the way.
    """
    step, needed, n = reverse.step, reverse.needed, reverse.n
    climb = Climb(step.k, splitter(step.k, known), blocks.position, (True,) * sum(needed))

    def advance(i: Index, moving: Any) -> Any:
        carry = pick(step.run(i, reverse.consts, step.whole(needed, moving[0]), reverse.xs)[0], needed)
        return (carry if n is None else select(is_left_out(i >= n), moving[0], carry),)

    def one(j: Index, state: Any) -> Any:
        stack, recorded, cts = state
        block = blocks.count - 1 - j
        if any(needed):
            stack, _ = climb(advance, block, stack, (stack.read()[0],), steps=again, runs=known or 1)
        # Out of its slot again, the carry can be fused with what reads it.
        carry = step.whole(needed, stack.read()[0])
        first, behind = blocks.position(block), blocks.position(block + 1)
        # The forward sweep has recorded the last block.
        recorded = reverse.again(first, jnp.where(j == 0, first, behind), carry, recorded)
        cts = reverse.reverse(first, behind, carry, recorded, cts)
        return stack.pop(), recorded, cts

    done, tell = (lambda j: blocks.n - blocks.position(blocks.count - j)), (lambda watch: watch.backward)
    return fori_loop(0, blocks.count, one, state, watch, done, tell)


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
