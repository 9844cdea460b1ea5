"""How blocks of steps are reversed: `ByVjp` runs one step again and transposes it, `ByTape` records residuals.

A block is reversed by recording the residuals of all its steps and running through them backwards; those of the last
block are recorded in the forward pass, so that with one block this is the plain scan, and nothing is computed twice.

References:
  Maddison, *Step-based checkpointing with high-level algorithmic differentiation*, Journal of Computational Science,
  2024: a slot may hold a carry or a step's residuals.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp
from jax import lax

from ..._jax import barrier, eval_jaxpr, is_differentiable, part_of, slice_type, typeof, without_unused, zeros_like
from ..programs.step_counts import counted
from ..programs.walk import backward_slice
from .arrays import Index, Leaves, merge, pick, put, read_row, select, take, write_row
from .lanes import is_left_out
from .progress import fori_loop
from .stack import Blocks, Sharing, Units
from .step import Cotangents, Selected, Step


class Tape:
    """One step split into the part that records residuals and the part that uses them.

    Residuals that do not depend on carry or inputs are not recorded, nor are the inputs themselves. `avals` are the
    abstract values of what is.
    """

    def __init__(self, step: Step, selected: Selected, consts: Leaves, carry: Leaves, x: Leaves) -> None:

        def linearized(consts: Leaves, carry: Leaves, x: Leaves) -> Any:
            fun, arguments = step.of_selected(selected, consts, carry, x)

            def differentiable(*some: Leaves) -> Any:
                out, y = fun(*some)
                return (pick(out, selected.carry), [leaf for leaf in y if is_differentiable(leaf)]), (out, y)

            _, push, (out, y) = jax.linearize(differentiable, *arguments, has_aux=True)
            return out, y, push  # a pytree of residuals

        self._arguments = step.of_selected(selected, consts, carry, x)[1]
        traced: Any = jax.make_jaxpr(linearized, return_shape=True)(consts, carry, x)
        self._jaxpr, (_, _, push) = traced
        self._tree = jax.tree.structure(push)
        self._n = len(carry), len(carry) + len(step.y_avals)
        jaxpr = self._jaxpr.jaxpr
        self._x = jaxpr.invars[len(consts) + len(carry) :]
        residuals = jaxpr.outvars[self._n[1] :]
        moving = set(jaxpr.invars[len(consts) :])
        for eqn in jaxpr.eqns:
            if any(isinstance(v, jex.Var) and v in moving for v in eqn.invars):
                moving.update(eqn.outvars)
        self._residuals = residuals
        recorded = [v for v in residuals if isinstance(v, jex.Var) and v in moving and v not in self._x]
        self._recorded = list(dict.fromkeys(recorded))
        self._fixed = [v for v in residuals if isinstance(v, jex.Var) and v not in moving]
        self._fixed_jaxpr = part_of(jaxpr, jaxpr.invars[: len(consts)], self._fixed)
        self.avals: tuple[Any, ...] = tuple(v.aval for v in self._recorded)

    @property
    def needed(self) -> tuple[bool, ...]:
        """Which leaves of the carry the residuals of this step and of all later ones depend on.

        All of them if the step has effects, so that these see the values that they saw in the forward sweep.
        """
        jaxpr, n = self._jaxpr.jaxpr, self._n[0]
        carry = jaxpr.invars[len(jaxpr.invars) - len(self._x) - n :][:n]
        found = (bool(jaxpr.effects),) * n
        while not all(found):
            outputs = [*self._residuals, *pick(jaxpr.outvars[:n], found)]
            atoms = [*outputs, *(v for eqn in backward_slice(jaxpr, outputs) for v in eqn.invars)]
            used = {v for v in atoms if isinstance(v, jex.Var)}
            before, found = found, tuple(v in used for v in carry)
            if found == before:
                break
        return found

    def record(self, consts: Leaves, carry: Leaves, x: Leaves) -> tuple[Leaves, Leaves, Leaves]:
        """The carry, the outputs, and what is recorded, one array for each of `avals`."""
        out = eval_jaxpr(self._jaxpr.jaxpr, self._jaxpr.consts, *consts, *carry, *x)
        values = dict(zip([id(v) for v in self._residuals], out[self._n[1] :], strict=True))
        return out[: self._n[0]], out[self._n[0] : self._n[1]], [values[id(v)] for v in self._recorded]

    def fixed(self, consts: Leaves) -> Leaves:
        """The residuals that are the same in every step."""
        return eval_jaxpr(self._fixed_jaxpr, self._jaxpr.consts, *consts)

    def pull(self, fixed: Leaves, recorded: Leaves, x: Leaves, ct: Sequence[Any], ct_y: Sequence[Any]) -> Cotangents:
        """The cotangents of the selected constants, of the carry, and of the selected inputs. None is a zero."""
        pairs = zip((*self._fixed, *self._x, *self._recorded), (*fixed, *x, *recorded), strict=True)
        values = dict(pairs)
        residuals = [values[v] if isinstance(v, jex.Var) else v.val for v in self._residuals]
        push = self._tree.unflatten(residuals)
        seen = [some is not None for some in (*ct, *ct_y)]

        def of_seen(*tangents: Leaves) -> Leaves:
            out, y = push(*tangents)
            return pick([*out, *y], seen)

        return jax.linear_transpose(of_seen, *self._arguments)(pick([*ct, *ct_y], seen))


class ByVjp:
    """Reverses the steps of one loop, block by block; here a block is one step, run again and transposed.

    `first` is the first step of a block, `behind` that after it.

    Args:
      n: the number of steps of this lane; None if it is known in advance.
      ct_ys: cotangents of the stacked outputs, None for zero and for integers; not needed in the forward sweep.
      is_live: which selected leaves of the carry can have a cotangent that is not zero; None for all.

    Attributes:
      avals, sharing: the abstract values of what is recorded in each step, and where that is.
    """

    avals: tuple[Any, ...] = ()
    sharing = Sharing()

    def __init__(
        self,
        step: Step,
        selected: Selected,
        consts: Leaves,
        xs: Leaves,
        n: Index | None = None,
        ct_ys: Sequence[Any] | None = None,
        is_live: Sequence[bool] | None = None,
    ) -> None:
        self.step, self.selected, self.consts, self.xs, self.n, self.ct_ys = step, selected, consts, xs, n, ct_ys
        self.needed = step.needed(selected)
        self._is_live = is_live

    def starting(self, ct_carry: Leaves) -> Cotangents:
        """The cotangents that a backward sweep starts from: those of the last carry, and nothing yet of the others."""
        nothing = lambda leaves, mask: [zeros_like(x) for x in pick(leaves, mask)]
        return nothing(self.consts, self.selected.consts), ct_carry, nothing(self.xs, self.selected.xs)

    @functools.cached_property
    def _live(self) -> tuple[Step, tuple[bool, ...]]:
        """The step without what no cotangent comes from, and which leaves of the carry have one after some step.

        What is left out must not be differentiated: zero times an infinite slope is not a number.
        """
        step, chosen = self.step, self.selected.carry
        live = chosen if self._is_live is None else tuple(merge([False] * len(chosen), chosen, self._is_live))
        if live == chosen:
            return step, live
        types = list(map(typeof, self.consts)), list(step.avals), list(map(slice_type, self.xs))
        closed: Any = jax.make_jaxpr(step.fun)(*types)
        seen = [ct is not None for ct in self.ct_ys or []]
        part, used = without_unused(closed.jaxpr, [*live, *seen])

        def fun(consts: Leaves, carry: Leaves, x: Leaves) -> tuple[Leaves, Leaves]:
            out = eval_jaxpr(part, closed.consts, *pick([*consts, *carry, *x], used))
            whole = merge([None] * (len(live) + len(seen)), [*live, *seen], out)
            return whole[: len(live)], whole[len(live) :]

        return dataclasses.replace(step, fun=fun), live

    def record(
        self, first: Index, carry: Leaves, ys: Leaves, recorded: Leaves, row: Index
    ) -> tuple[Leaves, Leaves, Leaves]:
        """Runs the last block in the forward sweep; gives the last carry, all outputs, and what was recorded."""
        del row
        # A loop of one step: its result is held once, and not fused with and computed again for what reads it.
        with counted(1, is_recomputation=True):
            carry, ys = lax.fori_loop(first, first + 1, self.step.writing(self.consts, self.xs), (carry, ys))
        if self.step.watch is not None:
            # With a part of the result, as a constant would be told before the first step.
            known = [jnp.ravel(x)[:1] for x in carry if not jnp.issubdtype(x.dtype, jax.dtypes.prng_key)]
            jax.debug.callback(self.step.watch.ended, *known[:1])
        return carry, ys, recorded

    def record_again(self, first: Index, behind: Index, carry: Leaves, recorded: Leaves, row: Index) -> Leaves:
        """Records the steps of a block from the carry before it, from a row on, if that is to be."""
        del first, behind, carry, row
        return recorded

    def reverse(
        self, first: Index, behind: Index, carry: Leaves, recorded: Leaves, row: Index, cts: Cotangents
    ) -> tuple[Leaves, Cotangents]:
        """What was recorded, and the cotangents before the block out of those behind it."""
        del behind, row
        ct_consts, ct, ct_xs = cts
        ct_ys, place = self.ct_ys or [], self.step.place(first)
        seen = [ct is not None for ct in ct_ys]
        step, live = self._live
        fun, arguments = step.of_selected(self.selected, self.consts, carry, take(self.xs, place))

        def of_seen(*some: Leaves) -> tuple[Leaves, Leaves]:
            out, y = fun(*some)
            return pick(out, live), pick(y, seen)

        given = pick(ct, pick(live, self.selected.carry)), take(pick(ct_ys, seen), place)
        more, new, ct_x = jax.vjp(of_seen, *arguments)[1](given)
        if self.step.length is None:
            left_out = is_left_out(first >= self.n)
            more = select(left_out, [jnp.zeros_like(x) for x in more], more)
            new = select(left_out, ct, new)
        total = [total + x for total, x in zip(ct_consts, more, strict=True)]
        return recorded, (total, new, put(ct_xs, place, ct_x))


class ByTape(ByVjp):
    """The same for blocks of some steps, reversed by their residuals; `recorded` has a row for each step."""

    def __init__(self, blocks: Blocks, step: Step, selected: Selected, *args: Any) -> None:
        super().__init__(step, selected, *args)
        assert step.length is not None and blocks.known is not None
        self._last, self._length, self._count = blocks.last, step.length, blocks.known
        types = list(map(typeof, self.consts)), list(step.avals), list(map(slice_type, self.xs))
        self._tape = Tape(step, selected, *types)
        self._fixed = self._tape.fixed(self.consts) if self.ct_ys is not None else []
        self.avals = self._tape.avals
        carries = pick(step.avals, self.needed) if isinstance(blocks, Units) else ()
        self.sharing = Sharing.of(carries, self.avals)

    def record(
        self, first: Index, carry: Leaves, ys: Leaves, recorded: Leaves, row: Index
    ) -> tuple[Leaves, Leaves, Leaves]:
        with counted(self._last):
            state = carry, recorded, ys
            carry, recorded, ys = fori_loop(first, self._length, self._recording(first, row), state, self.step.watch)
        return carry, ys, recorded

    def record_again(self, first: Index, behind: Index, carry: Leaves, recorded: Leaves, row: Index) -> Leaves:
        with counted(self._length - self._last, self._count):
            return lax.fori_loop(first, behind, self._recording(first, row), (carry, recorded))[1]

    def _recording(self, first: Index, row: Index) -> Callable[[Index, Any], Any]:
        """One step of the carry and what is recorded, and of the outputs where they are wanted."""

        def one(i: Index, state: Any) -> Any:
            carry, recorded, *ys = state
            place = self.step.place(i)
            carry, y, new = self._tape.record(self.consts, carry, take(self.xs, place))
            return carry, write_row(recorded, i - first + row, new), *(put(some, place, y) for some in ys)

        return one

    def reverse(
        self, first: Index, behind: Index, carry: Leaves, recorded: Leaves, row: Index, cts: Cotangents
    ) -> tuple[Leaves, Cotangents]:
        del carry
        step, fixed = self.step, self._fixed
        live = pick(self._live[1], self.selected.carry)
        ct_ys = pick(self.ct_ys or [], [*map(is_differentiable, step.y_avals)])

        def one(j: Index, state: Any) -> Any:
            recorded, (ct_consts, ct, ct_xs) = state
            i = behind - 1 - j
            place = step.place(i)
            ct_y = [None if ct is None else take([ct], place)[0] for ct in ct_ys]
            ct = [some if is_live else None for some, is_live in zip(ct, live, strict=True)]
            residuals = read_row(recorded, i - first + row, self.avals)
            more, ct, ct_x = self._tape.pull(fixed, residuals, take(self.xs, place), ct, ct_y)
            total = [total + new for total, new in zip(ct_consts, more, strict=True)]
            # The residuals take part in the loop. Were they seen not to change, all of them would be copied.
            return barrier((recorded, (total, ct, put(ct_xs, place, ct_x))))

        with counted(self._length, self._count):
            return lax.fori_loop(0, behind - first, one, (recorded, cts))


def reverse_of(step: Step, n: Any, selected: Selected, *args: Any, start: int = 0) -> tuple[ByVjp, Blocks]:
    """How `n` steps of a loop are reversed, and in which blocks; one by one where no carry is needed for it."""
    if step.block == 1 or not any(step.needed(selected)):
        return ByVjp(step, selected, *args), Blocks.of(n, step.k, first=start)
    blocks = Blocks.of(n, step.k, step.block) if step.block else Units(n, step.k)
    return ByTape(blocks, step, selected, *args), blocks
