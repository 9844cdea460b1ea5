"""Sweeps whose units of memory hold a carry or the residuals of one step, by the plan of `mixed`.

Which way to go is read from a table that the host computes, as there is no formula for it.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from .._jaxpr.step_counts import counted
from . import sweep
from .arrays import Index, Leaves, empty, pick, put, take
from .chunks import fori_loop
from .mixed import evaluations, legs
from .reverse import ByTape
from .step import Cotangents, Selected, Step


def shared(*groups: Sequence[Any]) -> tuple[list[Any], list[list[int]]]:
    """The arrays that hold one of some groups at a time, as abstract values, and which of them each group takes."""
    counts: collections.Counter[Any] = collections.Counter()
    for group in groups:
        counts |= collections.Counter(group)
    avals, places = list(counts.elements()), []
    for group in groups:
        free = collections.defaultdict(list)
        for i, aval in enumerate(avals):
            free[aval].append(i)
        places.append([free[aval].pop(0) for aval in group])
    return avals, places


class Sweeps:
    """Both sweeps of a loop with so many units, for one selection of what is differentiated.

    Row 0 holds the initial carry. A stored carry is in the row behind that of the one before, and what is recorded is
    in the rows behind the last of them.
    """

    def __init__(self, step: Step, selected: Selected, consts: Leaves, xs: Leaves, ct_ys: Leaves | None = None) -> None:
        assert step.length is not None
        self._step, self._consts, self._xs, self._n, units = step, consts, xs, step.length, step.k
        self._needed = step.needed(selected)
        self._legs = legs(self._n, units)
        self._count = sum(to < 0 for to in self._legs)
        self._stored = next(j for j, to in enumerate(self._legs) if to < 0)  # in the forward sweep
        self._first = ~self._legs[self._stored]
        self._again = evaluations(self._n, units) - self._n - self._first
        block = dataclasses.replace(step, block=self._n - self._first)
        self._recorder = ByTape(block, selected, consts, xs, None, ct_ys, count=self._count)
        carries = pick(step.avals, self._needed)
        self._avals, (self._of_carry, self._of_residuals) = shared(carries, self._recorder.avals)
        self._rows = units + 2

    def _put(self, rows: Leaves, row: Index, carry: Leaves) -> Leaves:
        return _with(rows, self._of_carry, put([rows[i] for i in self._of_carry], row, carry))

    def forward(self, init: Leaves) -> tuple[Leaves, Leaves, Leaves]:
        """The last carry, the outputs, and the rows."""
        step, ends = self._step, jnp.asarray((0, *self._legs[: self._stored]), jnp.int32)
        advance = step.writing(self._consts, self._xs)

        def leg(j: Index, state: Any) -> Any:
            (carry, ys), rows = state
            with counted(self._first, max(self._stored, 1)):
                carry, ys = lax.fori_loop(ends[j], ends[j + 1], advance, (carry, ys))
            return (carry, ys), self._put(rows, j + 1, pick(carry, self._needed))

        rows = self._put(empty(self._rows, self._avals), 0, pick(init, self._needed))
        moving = init, empty(self._n, step.y_avals)
        if self._stored:
            with counted(self._stored):
                moving, rows = fori_loop(0, self._stored, leg, (moving, rows), step.watch, lambda j: ends[j])
        at = (0, *self._legs)[self._stored]
        if at < self._first:
            with counted(self._first - at):
                moving = fori_loop(at, self._first, advance, moving, step.watch)
        recorded = [rows[i] for i in self._of_residuals]
        carry, ys, recorded = self._recorder.record(self._first, moving[0], moving[1], recorded, self._stored + 1)
        return carry, ys, _with(rows, self._of_residuals, recorded)

    def backward(self, rows: Leaves, ct_carry: Leaves) -> Cotangents:
        """The cotangents before the first step."""
        at = np.zeros(self._rows, np.int32)
        at[1 : self._stored + 1] = self._legs[: self._stored]
        ends = [self._n, *(~to for to in self._legs if to < 0)]  # of the blocks, last first

        def block(_: Index, state: Any) -> Any:
            rows, at, top, j, first, behind, cts = state
            recorded = [rows[i] for i in self._of_residuals]
            recorded, cts = self._recorder.reversed(first, behind, recorded, cts, top + 1)
            rows = _with(rows, self._of_residuals, recorded)
            top = jnp.maximum(top - (at[top] == first), 0)
            return *self._record(rows, at, top, j, first), cts

        numbers = (jnp.int32(i) for i in (self._stored, self._stored + 1, self._first, self._n))
        at = jnp.zeros(self._rows, jnp.int32) + at  # of the explicit mesh around, to which a constant does not belong
        state = rows, at, *numbers, self._recorder.no_cotangents(ct_carry)
        done, tell = (lambda c: self._n - jnp.asarray(ends, jnp.int32)[c]), (lambda watch: watch.backward)
        with counted(self._count):
            return fori_loop(0, self._count, block, state, self._step.watch, done, tell)[-1]

    def _record(self, rows: Leaves, at: Any, top: Index, j: Index, behind: Index) -> tuple[Any, ...]:
        """Goes on from the topmost carry, storing others, and records the steps up to `behind`."""
        step, table = self._step, jnp.asarray((*self._legs, ~0), jnp.int32)  # the last leg, which goes nowhere

        def advance(i: Index, carry: Leaves) -> Leaves:
            return pick(step.run(i, self._consts, step.whole(self._needed, carry), self._xs)[0], self._needed)

        def leg(state: Any) -> Any:
            rows, at, top, j, position, carry, _ = state
            is_stored = table[j] >= 0
            to = jnp.where(is_stored, table[j], ~table[j])
            with counted(1):  # the loop around has the count of all steps
                carry = lax.fori_loop(position, to, advance, carry)
            # What is recorded comes into this row if the carry does not stay there.
            rows, at = self._put(rows, top + 1, carry), lax.dynamic_update_index_in_dim(at, to, top + 1, 0)
            return rows, at, top + is_stored, j + 1, to, carry, is_stored

        carry = take([rows[i] for i in self._of_carry], top)
        state = rows, at, top, j, at[top], carry, jnp.bool_(True)
        with counted(self._again, self._count, is_recomputation=True):
            rows, at, top, j, first, carry, _ = lax.while_loop(lambda state: state[-1], leg, state)
        recorded, carry = [rows[i] for i in self._of_residuals], step.whole(self._needed, carry)
        recorded = self._recorder.again(first, behind, carry, recorded, top + 1)
        return _with(rows, self._of_residuals, recorded), at, top, j, first, behind


def _with(rows: Leaves, places: Sequence[int], new: Leaves) -> Leaves:
    """With some of the arrays replaced."""
    rows = list(rows)
    for i, x in zip(places, new, strict=True):
        rows[i] = x
    return rows


def forward(step: Step, selected: Selected, consts: Leaves, init: Leaves, xs: Leaves) -> tuple[Leaves, Leaves, Any]:
    """`sweep.forward` with `step.k` units; what it saves are their rows."""
    if not any(step.needed(selected)):
        return sweep.forward(step, selected, consts, init, xs)
    return Sweeps(step, selected, consts, xs).forward(init)


def backward(
    step: Step, selected: Selected, consts: Leaves, xs: Leaves, saved: Any, ct_carry: Leaves, ct_ys: Leaves
) -> Cotangents:
    """`sweep.backward` with units."""
    if not any(step.needed(selected)):
        return sweep.backward(step, selected, consts, xs, saved, ct_carry, ct_ys)
    return Sweeps(step, selected, consts, xs, ct_ys).backward(saved, ct_carry)
