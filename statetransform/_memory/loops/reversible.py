"""Loops whose steps can be undone: reverse mode runs them backwards, and stores no carry, or every so many-th one.

Leapfrog, symplectic and staggered schemes lose nothing in a step but rounding. So the backward sweep starts from the
last carry, gets the carry before each step from the user's `inverse`, and differentiates the step there: each step is
evaluated once forward, undone once and differentiated once, whatever the length.

What is undone differs from the carry of the forward sweep by rounding, and the difference grows with the number of
steps. With `every=m` the carry after each `m` steps is stored, and the backward sweep goes on from it exactly.

References:
  Gomez, Ren, Urtasun and Grosse, *The reversible residual network: backpropagation without storing activations*, 2017.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from ..programs.step_counts import counted
from . import sweep
from .arrays import Index, Leaves, empty, empty_rows, read_row, take, write_row
from .progress import fori_loop
from .reverse import ByVjp
from .step import Cotangents, Saved, Selected, Step

Undo = Callable[[Leaves, Leaves, Leaves], Leaves]  # constants, the carry after a step, its input: the carry before it


def forward(
    step: Step, every: int | None, selected: Selected, consts: Leaves, init: Leaves, xs: Leaves
) -> tuple[Leaves, Leaves, Saved]:
    """Runs all steps; saves the last carry, and the one after every `every` steps."""
    n = step.length
    assert n is not None
    if not any(step.needed(selected)):
        return sweep.forward(step, selected, consts, init, xs)
    if not every or every >= n:
        carry, ys = sweep.plain(step, consts, init, xs)
        return carry, ys, Saved(None, carry, [])
    count, advance = -(-n // every), step.writing(consts, xs)

    def segment(s: Index, state: Any) -> Any:
        carry, ys, stored = state
        stored = write_row(stored, _row(s), carry)  # the initial carry's row is overwritten
        with counted(n, count):
            stop = jnp.minimum((s + 1) * every, n)
            carry, ys = lax.fori_loop(s * every, stop, advance, (carry, ys))
        return carry, ys, stored

    state = init, empty(n, step.y_avals), empty_rows(count - 1, step.avals)
    with counted(count):
        carry, ys, stored = fori_loop(0, count, segment, state, step.watch, lambda s: s * every)
    return carry, ys, Saved(None, carry, stored)


def backward(
    step: Step,
    undo: Undo,
    every: int | None,
    selected: Selected,
    consts: Leaves,
    xs: Leaves,
    saved: Saved,
    ct_carry: Leaves,
    ct_ys: Leaves,
    is_live: Sequence[bool],
) -> Cotangents:
    """The cotangents of what is selected: undoes and differentiates all steps."""
    n = step.length
    assert n is not None
    if not any(step.needed(selected)):
        return sweep.backward(step, selected, consts, xs, saved, ct_carry, ct_ys, is_live)
    reverse = ByVjp(step, selected, consts, xs, None, ct_ys, is_live)
    cts = reverse.starting(ct_carry)

    def steps(first: Index, behind: Index, carry: Leaves, cts: Cotangents, watch: Any = None) -> Cotangents:
        def one(j: Index, state: Any) -> Any:
            carry, cts = state
            i = behind - 1 - j
            with counted(1, is_recomputation=True):
                carry = undo(consts, carry, take(xs, step.place(i)))
            return carry, reverse.reverse(i, i + 1, carry, [], 0, cts)[1]

        return fori_loop(0, behind - first, one, (carry, cts), watch, is_backward=True)[1]

    if not saved.recorded:
        return steps(0, n, saved.stack, cts, step.watch)
    assert every is not None
    count = -(-n // every)

    def segment(j: Index, state: Any) -> Any:
        carry, cts = state
        s = count - 1 - j
        with counted(n, count):
            cts = steps(s * every, jnp.minimum((s + 1) * every, n), carry, cts)
        return read_row(saved.recorded, _row(s), step.avals), cts

    done = lambda j: n - jnp.maximum((count - j) * every, 0)
    with counted(count):
        return fori_loop(0, count, segment, (saved.stack, cts), step.watch, done, is_backward=True)[1]


def _row(segment: Index) -> Index:
    """Where the carry before a segment is: that before the first one is not needed."""
    return jnp.maximum(segment - 1, 0)
