"""Blocks of steps that are reversed from recorded residuals: between `sweep.ByVjp` and the plain scan.

A block is reversed by recording the residuals of all its steps and running through them backwards; those of the last
block are recorded in the forward pass, so that with one block this is the plain scan, and nothing is computed twice.

References:
  Maddison, *Step-based checkpointing with high-level algorithmic differentiation*, Journal of Computational Science,
  2024: a slot may hold a carry or a step's residuals.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.extend.core as jex
from jax import lax

from .._jaxcompat import eval_jaxpr, part_of, residuals_of, zeros
from .._jaxpr.step_counts import counted
from .._jaxpr.walk import backward_slice
from .arrays import Index, Leaves, is_differentiable, merge, pick, put, take
from .chunks import fori_loop
from .sweep import Cotangents, Selected, Step


class Tape:
    """One step split into the part that records residuals and the part that uses them.

    Residuals that do not depend on carry or inputs are not recorded, nor are the inputs themselves.

    Args:
      step: the step.
      selected: what is differentiated.
      consts, carry, x: examples.

    Attributes:
      avals: the abstract values of what is recorded in each step.
    """

    def __init__(self, step: Step, selected: Selected, consts: Leaves, carry: Leaves, x: Leaves) -> None:
        self._jaxpr, self._tree = self._traced(step, selected, consts, carry, x)
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

    @staticmethod
    def _traced(step: Step, selected: Selected, consts: Leaves, carry: Leaves, x: Leaves) -> tuple[Any, Any]:
        """A step as a jaxpr whose last outputs are its residuals, and the treedef of their linear function."""
        trees = []

        def linearized(consts: Leaves, carry: Leaves, x: Leaves) -> Any:
            def some(some_consts: Leaves, moving: Leaves, some_x: Leaves) -> Any:
                out, y = step.fun(
                    merge(consts, selected.consts, some_consts),
                    merge(carry, selected.carry, moving),
                    merge(x, selected.xs, some_x),
                )
                return (pick(out, selected.carry), [leaf for leaf in y if is_differentiable(leaf)]), (out, y)

            arguments = pick(consts, selected.consts), pick(carry, selected.carry), pick(x, selected.xs)
            _, pull, (out, y) = jax.vjp(some, *arguments, has_aux=True)
            residuals, tree = residuals_of(pull)
            trees.append(tree)
            return out, y, residuals

        return jax.make_jaxpr(linearized)(consts, carry, x), trees[0]

    @property
    def nbytes(self) -> int:
        """Bytes recorded in each step."""
        return sum(aval.size * aval.dtype.itemsize for aval in self.avals)

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

    def pull(self, fixed: Leaves, recorded: Leaves, x: Leaves, cts: Any) -> Cotangents:
        """The cotangents of the selected constants, of the carry, and of the selected inputs."""
        pairs = zip((*self._fixed, *self._x, *self._recorded), (*fixed, *x, *recorded), strict=True)
        values = dict(pairs)
        residuals = [values[v] if isinstance(v, jex.Var) else v.val for v in self._residuals]
        return self._tree.unflatten(residuals)(cts)


@dataclasses.dataclass(frozen=True)
class ByTape:
    """Blocks of `size` steps, whose residuals are recorded together."""

    size: int

    def __call__(self, step: Step, selected: Selected, consts: Leaves, xs: Leaves, carry: Leaves) -> ByResiduals:
        """For one sweep."""
        return ByResiduals(self.size, step, selected, consts, xs, carry)


class ByResiduals:
    """A `sweep.Reverse` by residuals of `size` steps; `recorded` are arrays `[size, ...]`.

    Blocks of other sizes, the last one of `size`, are `count`; their residuals begin at any row.
    """

    def __init__(
        self,
        size: int,
        step: Step,
        selected: Selected,
        consts: Leaves,
        xs: Leaves,
        carry: Leaves,
        count: int | None = None,
    ) -> None:
        self._size, self._step, self._consts, self._xs = size, step, consts, xs
        self._count = -(-self._n // size) if count is None else count
        self._tape = Tape(step, selected, consts, carry, take(xs, 0))
        self.avals = self._tape.avals

    @property
    def _n(self) -> int:
        assert self._step.length is not None
        return self._step.length

    def record(
        self, first: Index, carry: Leaves, ys: Leaves, recorded: Leaves, row: Index = 0
    ) -> tuple[Leaves, Leaves, Leaves]:
        def one(i: Index, state: Any) -> Any:
            carry, ys, recorded = state
            place = self._step.place(i)
            carry, y, new = self._tape.record(self._consts, carry, take(self._xs, place))
            return carry, put(ys, place, y), put(recorded, i - first + row, new)

        with counted(self._size):
            return fori_loop(first, self._n, one, (carry, ys, recorded), self._step.watch)

    def again(self, first: Index, behind: Index, carry: Leaves, recorded: Leaves, row: Index = 0) -> Leaves:
        def one(i: Index, state: Any) -> Any:
            carry, recorded = state
            carry, _, new = self._tape.record(self._consts, carry, take(self._xs, self._step.place(i)))
            return carry, put(recorded, i - first + row, new)

        with counted(self._n - self._size, self._count):
            return lax.fori_loop(first, behind, one, (carry, recorded))[1]

    def given(self, n: Index | None, ct_ys: Leaves) -> Any:
        del n
        return self._tape.fixed(self._consts), ct_ys

    def reverse(
        self,
        given: Any,
        first: Index,
        behind: Index,
        carry: Leaves,
        recorded: Leaves,
        cts: Cotangents,
        row: Index = 0,
    ) -> Cotangents:
        return self.reversed(given, first, behind, recorded, cts, row)[1]

    def reversed(
        self, given: Any, first: Index, behind: Index, recorded: Leaves, cts: Cotangents, row: Index
    ) -> tuple[Leaves, Cotangents]:
        """The same; also gives the residuals, which go on in their place."""
        step, (fixed, ct_ys) = self._step, given
        ct_ys = [(ct, aval) for ct, aval in zip(ct_ys, step.y_avals, strict=True) if is_differentiable(aval)]

        def one(j: Index, state: Any) -> Any:
            recorded, (ct_consts, ct, ct_xs) = state
            i = behind - 1 - j
            place = step.place(i)
            ct_y = [zeros(aval) if ct is None else take([ct], place)[0] for ct, aval in ct_ys]
            more, ct, ct_x = self._tape.pull(fixed, take(recorded, i - first + row), take(self._xs, place), (ct, ct_y))
            total = [total + new for total, new in zip(ct_consts, more, strict=True)]
            # The residuals take part in the loop. Were they seen not to change, all of them would be copied.
            return lax.optimization_barrier((recorded, (total, ct, put(ct_xs, place, ct_x))))

        with counted(self._n, self._count):
            return lax.fori_loop(0, behind - first, one, (recorded, cts))
