"""Sweeps that store carries and the residuals of a block of steps: between `sweep` and the plain scan.

The steps are taken in blocks of a fixed size, the first one being shorter. Between blocks the sweeps are those of
`sweep`, with a block in the place of a step. A block is reversed by recording the residuals of all its steps and
running through them backwards; those of the last block are recorded in the forward pass, so that with one
block this is the plain scan, and nothing is computed twice.

References:
  Maddison, *Step-based checkpointing with high-level algorithmic differentiation*, Journal of Computational Science,
  2024: a slot may hold a carry or a step's residuals.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.core
import jax.extend.core as jex
import jax.numpy as jnp
from jax import lax

from .._analysis.counts import counted
from .chunks import fori_loop, is_differentiable
from .sweep import (
    Index,
    Leaves,
    Selected,
    Stack,
    Step,
    advancing,
    climb,
    empty,
    merge,
    pick,
    put,
    splitter,
    take,
)


class Recorded(NamedTuple):
    """What the backward sweep starts from: the stored carries, and the residuals of the last block."""

    stack: Stack
    residuals: Leaves


class Tape:
    """One step split into the part that records residuals and the part that uses them.

    Residuals that do not depend on carry or inputs are not recorded, nor are the inputs themselves.

    Args:
      step: the step.
      selected: what is differentiated besides the carry.
      consts, carry, x: examples.

    Attributes:
      avals: the abstract values of what is recorded in each step.
    """

    def __init__(self, step: Step, selected: Selected, consts: Leaves, carry: Leaves, x: Leaves) -> None:
        trees = []

        def linearized(consts: Leaves, carry: Leaves, x: Leaves) -> Any:
            is_moving = [is_differentiable(leaf) for leaf in carry]

            def some(some_consts: Leaves, moving: Leaves, some_x: Leaves) -> Any:
                out, y = step.fun(
                    merge(consts, selected.consts, some_consts),
                    merge(carry, is_moving, moving),
                    merge(x, selected.xs, some_x),
                )
                return (pick(out, is_moving), [leaf for leaf in y if is_differentiable(leaf)]), (out, y)

            arguments = pick(consts, selected.consts), pick(carry, is_moving), pick(x, selected.xs)
            _, pull, (out, y) = jax.vjp(some, *arguments, has_aux=True)
            residuals, tree = jax.tree.flatten(pull)
            trees.append(tree)
            return out, y, residuals

        self._jaxpr: Any = jax.make_jaxpr(linearized)(consts, carry, x)
        self._tree: Any = trees[0]
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
        self._fixed_jaxpr = only_for(jaxpr, jaxpr.invars[: len(consts)], self._fixed)
        self.avals: tuple[Any, ...] = tuple(v.aval for v in self._recorded)

    @property
    def nbytes(self) -> int:
        """Bytes recorded in each step."""
        return sum(aval.size * aval.dtype.itemsize for aval in self.avals)

    def record(self, consts: Leaves, carry: Leaves, x: Leaves) -> tuple[Leaves, Leaves, Leaves]:
        """The carry, the outputs, and what is recorded."""
        out = jax.core.eval_jaxpr(self._jaxpr.jaxpr, self._jaxpr.consts, *consts, *carry, *x)
        values = dict(zip([id(v) for v in self._residuals], out[self._n[1] :], strict=True))
        return out[: self._n[0]], out[self._n[0] : self._n[1]], [values[id(v)] for v in self._recorded]

    def fixed(self, consts: Leaves) -> Leaves:
        """The residuals that are the same in every step."""
        return jax.core.eval_jaxpr(self._fixed_jaxpr, self._jaxpr.consts, *consts)

    def pull(self, fixed: Leaves, recorded: Leaves, x: Leaves, cts: Any) -> Any:
        """The cotangents of the selected constants, of the carry, and of the selected inputs."""
        pairs = zip((*self._fixed, *self._x, *self._recorded), (*fixed, *x, *recorded), strict=True)
        values = dict(pairs)
        residuals = [values[v] if isinstance(v, jex.Var) else v.val for v in self._residuals]
        return self._tree.unflatten(residuals)(cts)


def only_for(jaxpr: Any, invars: list[Any], outvars: list[Any]) -> Any:
    """The part of a jaxpr that computes some of its variables out of some of its inputs."""
    needed, eqns = set(outvars), []
    for eqn in reversed(jaxpr.eqns):
        if needed.intersection(eqn.outvars):
            eqns.append(eqn)
            needed.update(v for v in eqn.invars if isinstance(v, jex.Var))
    names = tuple(f"const {i}" for i in range(len(invars)))
    info = jaxpr.debug_info._replace(arg_names=names, result_paths=None)
    effects = set().union(*[eqn.effects for eqn in eqns])
    return jaxpr.replace(invars=invars, outvars=outvars, eqns=eqns[::-1], debug_info=info, effects=effects)


@dataclasses.dataclass(frozen=True, eq=False)
class Blocks:
    """The sweeps over `n` steps in blocks of `size`."""

    step: Step
    n: int
    size: int

    @property
    def count(self) -> int:
        """The number of blocks."""
        return -(-self.n // self.size)

    def position(self, block: Index) -> Index:
        """The first step of a block; of the block behind the last, the number of steps."""
        return jnp.maximum(self.n - (self.count - block) * self.size, 0)

    def tape(self, selected: Selected, consts: Leaves, carry: Leaves, xs: Leaves) -> Tape:
        """How a step is recorded."""
        return Tape(self.step, selected, consts, carry, take(xs, 0))

    def forward(self, selected: Selected, consts: Leaves, init: Leaves, xs: Leaves) -> tuple[Leaves, Leaves, Recorded]:
        """Runs all steps, storing carries before the last block, and recording the last block."""
        step, n, tape = self.step, self.n, self.tape(selected, consts, init, xs)
        advance = advancing(step, n, consts, xs)

        def record(i: Index, state: Any) -> Any:
            carry, ys, residuals = state
            place = step.place(n, i)
            carry, y, recorded = tape.record(consts, carry, take(xs, place))
            return carry, put(ys, place, y), put(residuals, i - first, recorded)

        ys, stack, last = empty(n, step.y_avals), Stack.of(init, step.k), self.count - 1
        stack, (ys,) = climb(
            step.k, splitter(step.k, self.count), advance, last, stack, (ys,), self.position, step.watch, n - self.size
        )
        first = self.position(last)
        start = stack.read()[0], ys, empty(self.size, tape.avals)
        with counted(self.size):
            carry, ys, residuals = fori_loop(first, n, record, start, step.watch)
        return carry, ys, Recorded(stack, residuals)

    def backward(
        self, selected: Selected, consts: Leaves, xs: Leaves, saved: Recorded, ct_carry: Leaves, ct_ys: Leaves
    ) -> Leaves:
        """Reverses all blocks; arguments and result as for `sweep.backward`."""
        tell = lambda watch: watch.backward
        step, n, split = self.step, self.n, splitter(self.step.k, self.count)
        again = step.advances(self.count, self.size)
        example = take(saved.stack.slots, 0)
        tape = self.tape(selected, consts, example, xs)
        fixed = tape.fixed(consts)
        y_avals = [aval for aval in step.y_avals if is_differentiable(aval)]
        ct_ys = [ct for ct, aval in zip(ct_ys, step.y_avals, strict=True) if is_differentiable(aval)]

        def advance(i: Index, moving: Any) -> Any:
            return (step.at(n, i, consts, moving[0], xs)[0],)

        def one(j: Index, state: Any) -> Any:
            stack, residuals, cts = state
            block = self.count - 1 - j
            first, behind = self.position(block), self.position(block + 1)

            def reverse(i: Index, state: Any) -> Any:
                residuals, (ct_consts, ct, ct_xs) = state
                i = behind - 1 - i
                place = step.place(n, i)
                ct_y = [
                    jnp.zeros(aval.shape, aval.dtype) if ct is None else take([ct], place)[0]
                    for ct, aval in zip(ct_ys, y_avals, strict=True)
                ]
                more, ct, ct_x = tape.pull(fixed, take(residuals, i - first), take(xs, place), (ct, ct_y))
                total = [total + new for total, new in zip(ct_consts, more, strict=True)]
                # The residuals take part in the loop. Were they seen not to change, all of them would be copied.
                return lax.optimization_barrier((residuals, (total, ct, put(ct_xs, place, ct_x))))

            with counted(n, self.count):
                residuals, cts = lax.fori_loop(0, behind - first, reverse, (residuals, cts))
            # The block before: its residuals take the place of those just used. There is none before the first.
            stack = stack.pop()
            stack, _ = climb(step.k, split, advance, block - 1, stack, (), self.position, steps=again, runs=self.count)
            carry, _ = stack.read()
            start = self.position(block - 1)

            def record(i: Index, state: Any) -> Any:
                carry, residuals = state
                carry, _, recorded = tape.record(consts, carry, take(xs, step.place(n, i)))
                return carry, put(residuals, i - start, recorded)

            with counted(n - self.size, self.count):
                _, residuals = lax.fori_loop(start, first, record, (carry, residuals))
            return stack, residuals, cts

        is_moving = [is_differentiable(x) for x in example]
        zeros = [jnp.zeros_like(x) for x in pick(consts, selected.consts)], ct_carry
        cts = *zeros, [jnp.zeros_like(x) for x in pick(xs, selected.xs)]
        start, outer = (saved.stack, saved.residuals, cts), None if self.count == 1 else step.watch
        reversed_steps = lambda j: n - self.position(self.count - j)
        with counted(self.count):
            _, _, (ct_consts, ct, ct_xs) = fori_loop(0, self.count, one, start, outer, reversed_steps, tell)
        return [*ct_consts, *pick(ct, pick(selected.init, is_moving)), *ct_xs]
