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
from .arrays import Index, Leaves, empty, pick, select
from .lanes import is_left_out, largest_of_lanes
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
    n = step.length
    assert n is not None
    if not any(step.needed(selected)):
        return *plain(step, consts, init, xs), Saved(None, Stack.of([], 0), [])
    return climb_last(*reverse_of(step, n, selected, consts, xs), init, empty(n, step.y_avals))


def climb_last(reverse: ByVjp, blocks: Blocks, carry: Leaves, ys: Leaves) -> tuple[Leaves, Leaves, Saved]:
    """`forward` for the last blocks of a loop, from the carry before them and with the outputs so far."""
    step, needed, sharing = reverse.step, reverse.needed, reverse.sharing
    stack, advance = Stack.of(pick(carry, needed), step.k), step.writing(reverse.consts, reverse.xs)
    last, steps = blocks.count - 1, blocks.n - blocks.last
    stack, (carry, ys) = climb(blocks, needed, advance, last, stack, (carry, ys), step.watch, steps)
    first = blocks.position(stack.at[stack.top])
    recorded, row = sharing.read(stack, empty(blocks.room, sharing.own(reverse.avals)))
    carry, ys, recorded = reverse.record(first, carry, ys, recorded, row)
    return carry, ys, Saved(None, *sharing.write(stack, recorded))


def backward(
    step: Step, selected: Selected, consts: Leaves, xs: Leaves, saved: Saved, ct_carry: Leaves, ct_ys: Leaves
) -> Cotangents:
    """The cotangents of what is selected: reverses all steps, storing carries again in the slots that become free.

    `ct_carry` are the cotangents of the selected leaves of the last carry, `ct_ys` those of the stacked outputs, None
    for zero and for integers.
    """
    n = largest_of_lanes(saved.n) if step.length is None else step.length
    reverse, blocks = reverse_of(step, n, selected, consts, xs, saved.n, ct_ys)
    # A single block is reversed in one go: a watch around it would only make copies.
    watch = None if reverse.avals and blocks.known == 1 else step.watch
    with counted(blocks.known):
        return unwind(reverse, blocks, saved.stack, saved.recorded, reverse.no_cotangents(ct_carry), watch)[1]


def unwind(
    reverse: ByVjp, blocks: Blocks, stack: Stack, own: Leaves, cts: Cotangents, watch: ProgressBar | None = None
) -> tuple[Stack, Cotangents]:
    """Reverses some blocks; `own` are the residuals of the last one that are in arrays of their own."""
    step, needed, n = reverse.step, reverse.needed, reverse.n

    def advance(i: Index, moving: Any) -> Any:
        carry = pick(step.run(i, reverse.consts, step.whole(needed, moving[0]), reverse.xs)[0], needed)
        return (carry if n is None else select(is_left_out(i >= n), moving[0], carry),)

    def one(j: Index, state: Any) -> Any:
        stack, own, cts = state
        block = blocks.count - 1 - j
        if any(needed):
            moving, stored = (stack.read()[0],), (True,) * sum(needed)
            stack, _ = climb(blocks, stored, advance, block, stack, moving, steps=blocks.again, runs=blocks.known or 1)
        # Out of its slot again, the carry can be fused with what reads it.
        carry = step.whole(needed, stack.read()[0])
        first, behind = blocks.position(block), blocks.position(block + 1)
        recorded, row = reverse.sharing.read(stack, own)
        # The forward sweep has recorded the last block.
        recorded = reverse.again(first, jnp.where(j == 0, first, behind), carry, recorded, row)
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
