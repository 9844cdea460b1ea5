"""How blocks of steps are reversed: `ByVjp` runs one step again and transposes it, `ByTape` records residuals.

A block is reversed by recording the residuals of all its steps and running through them backwards; those of the last
block are recorded in the forward pass, so that with one block this is the plain scan, and nothing is computed twice.

References:
  Maddison, *Step-based checkpointing with high-level algorithmic differentiation*, Journal of Computational Science,
  2024: a slot may hold a carry or a step's residuals.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from .._jaxcompat import typeof, zeros
from .._jaxpr.step_counts import counted
from .arrays import Index, Leaves, is_differentiable, pick, put, select, slice_type, take, zeros_like
from .lanes import is_left_out
from .progress import fori_loop
from .stack import Blocks, Sharing, Units
from .step import Cotangents, Selected, Step
from .tape import Tape


class ByVjp:
    """Reverses the steps of one loop, block by block; here a block is one step, run again and transposed.

    `first` is the first step of a block, `behind` that after it.

    Args:
      n: the number of steps of this lane; None if it is known in advance.
      ct_ys: cotangents of the stacked outputs, None for zero and for integers; not needed in the forward sweep.

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
    ) -> None:
        self.step, self.selected, self.consts, self.xs, self.n, self.ct_ys = step, selected, consts, xs, n, ct_ys
        self.needed = step.needed(selected)

    def record(
        self, first: Index, carry: Leaves, ys: Leaves, recorded: Leaves, row: Index
    ) -> tuple[Leaves, Leaves, Leaves]:
        """Runs the last block in the forward sweep; gives the last carry, all outputs, and what was recorded."""
        del row
        # A loop of one step: its result is held once, and not fused with and computed again for what reads it.
        with counted(1, is_recomputation=True):
            carry, ys = lax.fori_loop(first, first + 1, self.step.writing(self.consts, self.xs), (carry, ys))
        if self.step.watch is not None:
            jax.debug.callback(self.step.watch.forward, self.step.length)
        return carry, ys, recorded

    def again(self, first: Index, behind: Index, carry: Leaves, recorded: Leaves, row: Index) -> Leaves:
        """Records the steps of a block from the carry before it, from a row on, if that is to be."""
        del first, behind, carry, row
        return recorded

    def reverse(
        self, first: Index, behind: Index, carry: Leaves, recorded: Leaves, row: Index, cts: Cotangents
    ) -> tuple[Leaves, Cotangents]:
        """What was recorded, and the cotangents before the block out of those behind it."""
        del behind, row
        ct_consts, ct, ct_xs = cts
        more, new, ct_x = self._pull(first, carry, ct)
        if self.step.length is None:
            left_out = is_left_out(first >= self.n)
            more = select(left_out, [jnp.zeros_like(x) for x in more], more)
            new = select(left_out, ct, new)
        total = [total + x for total, x in zip(ct_consts, more, strict=True)]
        return recorded, (total, new, put(ct_xs, self.step.place(first), ct_x))

    def _pull(self, i: Index, carry: Leaves, ct: Leaves) -> Cotangents:
        ct_ys, place = self.ct_ys or [], self.step.place(i)
        seen = [ct is not None for ct in ct_ys]
        fun, arguments = self.step.of_selected(self.selected, self.consts, carry, take(self.xs, place))

        def of_seen(*some: Leaves) -> tuple[Leaves, Leaves]:
            out, y = fun(*some)
            return pick(out, self.selected.carry), pick(y, seen)

        _, pull = jax.vjp(of_seen, *arguments)
        return pull((ct, take(pick(ct_ys, seen), place)))

    def no_cotangents(self, ct_carry: Leaves) -> Cotangents:
        """What a backward sweep starts with."""
        nothing = lambda leaves, mask: [zeros_like(x) for x in pick(leaves, mask)]
        return nothing(self.consts, self.selected.consts), ct_carry, nothing(self.xs, self.selected.xs)


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

    def again(self, first: Index, behind: Index, carry: Leaves, recorded: Leaves, row: Index) -> Leaves:
        with counted(self._length - self._last, self._count):
            return lax.fori_loop(first, behind, self._recording(first, row), (carry, recorded))[1]

    def _recording(self, first: Index, row: Index) -> Callable[[Index, Any], Any]:
        """One step of the carry and what is recorded, and of the outputs where they are wanted."""

        def one(i: Index, state: Any) -> Any:
            carry, recorded, *ys = state
            place = self.step.place(i)
            carry, y, new = self._tape.record(self.consts, carry, take(self.xs, place))
            return carry, put(recorded, i - first + row, new), *(put(some, place, y) for some in ys)

        return one

    def reverse(
        self, first: Index, behind: Index, carry: Leaves, recorded: Leaves, row: Index, cts: Cotangents
    ) -> tuple[Leaves, Cotangents]:
        del carry
        step, fixed = self.step, self._fixed
        ct_ys = [(ct, aval) for ct, aval in zip(self.ct_ys or [], step.y_avals, strict=True) if is_differentiable(aval)]

        def one(j: Index, state: Any) -> Any:
            recorded, (ct_consts, ct, ct_xs) = state
            i = behind - 1 - j
            place = step.place(i)
            ct_y = [zeros(aval) if ct is None else take([ct], place)[0] for ct, aval in ct_ys]
            more, ct, ct_x = self._tape.pull(fixed, take(recorded, i - first + row), take(self.xs, place), (ct, ct_y))
            total = [total + new for total, new in zip(ct_consts, more, strict=True)]
            # The residuals take part in the loop. Were they seen not to change, all of them would be copied.
            return lax.optimization_barrier((recorded, (total, ct, put(ct_xs, place, ct_x))))

        with counted(self._length, self._count):
            return lax.fori_loop(0, behind - first, one, (recorded, cts))


def reverse_of(step: Step, n: Any, selected: Selected, *args: Any) -> tuple[ByVjp, Blocks]:
    """How a loop of `n` steps is reversed, and in which blocks; one by one where no carry is needed for it."""
    if step.block == 1 or not any(step.needed(selected)):
        return ByVjp(step, selected, *args), Blocks.of(n, step.k)
    blocks = Blocks.of(n, step.k, step.block) if step.block else Units(n, step.k)
    return ByTape(blocks, step, selected, *args), blocks
