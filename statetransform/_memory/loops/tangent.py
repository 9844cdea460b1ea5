"""The derivative rule of a checkpointed loop.

A loop is a `custom_jvp`: undifferentiated it is the plain loop. Its derivative rule runs the forward sweep and binds
the tangent as one linear equation: in forward mode that runs the differentiated loop, in reverse mode its transpose is
the backward sweep. The sweeps are loops of unknown length, which cannot be transposed; where they are differentiated
again, an equivalent loop takes their place.

What a rule holds outlives the trace in which it was made, so nothing here holds an array.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import jax

from ..._jax import is_differentiable, is_zero_tangent, symbolic_zero, typeof, zero_tangent, zeros
from .arrays import Leaves, merge, pick
from .lanes import lanes_first, one_by_one
from .linear import Linear
from .step import Cotangents, Saved, Selected

Primals = tuple[Leaves, Leaves, Leaves]  # constants, initial carry, inputs


@dataclasses.dataclass(frozen=True, eq=False)
class CheckpointedLoop:
    """What is known of a loop over lists of arrays. The loops take constants, initial carry and inputs.

    Attributes:
      plain: the loop that runs when no derivative is taken.
      forward: the loop that stores carries; gives what it saved besides the last carry and the outputs. Before the
        others it takes which primals are differentiated.
      moves: extends a selection of the carry by the leaves that receive a tangent during the loop. Others,
        such as the covariance of a filter, are computed again and not differentiated.
      reached: what of a selection gets a cotangent if some leaves of the last carry and some outputs have one.
      backward: the cotangents of these; see `sweep.backward`.
      nested: an equivalent loop that JAX can differentiate, used for derivatives of the sweeps. Also receives what was
        saved, which holds the number of steps. None if there is no such loop: then the sweeps themselves are
        differentiated, in forward mode only.
      cure: what to say where reverse mode over reverse mode needs `nested`.
      near: where there is no `nested`, the same loop with sweeps that can be differentiated, if these cannot: carries
        that go to files have no tangents.
    """

    plain: Callable[[Leaves, Leaves, Leaves], tuple[Leaves, Leaves]]
    forward: Callable[[Selected, Leaves, Leaves, Leaves], tuple[Leaves, Leaves, Saved]]
    moves: Callable[[Selected], Selected]
    reached: Callable[[Selected, Sequence[bool], Sequence[bool]], Selected]
    backward: Callable[[Selected, Leaves, Leaves, Saved, Leaves, Leaves, Sequence[bool]], Cotangents]
    nested: Callable[[Leaves, Leaves, Leaves, Saved], tuple[Leaves, Leaves]] | None
    cure: str = ""
    near: CheckpointedLoop | None = None

    def __call__(self, consts: Leaves, init: Leaves, xs: Leaves) -> tuple[Leaves, Leaves]:
        """Runs the loop, differentiably."""

        @jax.custom_jvp
        def loop(*primals: Leaves) -> tuple[Leaves, Leaves]:
            carry, ys = self.plain(*primals)
            return carry, lanes_first(ys) if ys else []

        def rule(primals: Primals, dots: Primals) -> Any:
            selected = self.moves(perturbed(dots))
            carry, ys, saved = self.first_sweep(selected)(*primals)
            return (carry, ys), tangent(self, selected, primals, dots, (carry, ys), saved)

        loop.defjvp(rule, symbolic_zeros=True)
        return loop(consts, init, xs)

    def first_sweep(self, selected: Selected) -> Callable[[Leaves, Leaves, Leaves], tuple[Leaves, Leaves, Saved]]:
        """The forward sweep, differentiable in its turn."""
        sweep = jax.custom_jvp(functools.partial(self.forward, selected))

        def rule(primals: Primals, dots: Primals) -> Any:
            out, moved = sweep(*primals), self.moves(perturbed(dots))
            own = out[2] if moved == selected else self.first_sweep(moved)(*primals)[2]
            moving = tangent(self, moved, primals, dots, out[:2], own)
            # What is saved follows from the primals, and the tangent depends on them.
            return out, (*moving, jax.tree.map(symbolic_zero, out[2]))

        sweep.defjvp(rule, symbolic_zeros=True)
        return sweep


def perturbed(dots: Primals) -> Selected:
    """Which of the primals have a tangent that is not zero for certain."""
    return Selected(*[tuple(not is_zero_tangent(dot) for dot in group) for group in dots])


def tangent(
    loop: CheckpointedLoop,
    selected: Selected,
    primals: Primals,
    dots: Primals,
    out: tuple[Leaves, Leaves],
    saved: Saved,
) -> tuple[Leaves, Leaves]:
    """The tangents of the last carry and the outputs (`out`), as one linear equation in those of the primals."""
    known = lambda x, dot: zero_tangent(x) if is_zero_tangent(dot) else dot
    consts, init, xs = (list(map(known, *group)) for group in zip(primals, dots, strict=True))
    residuals, tree = jax.tree.flatten((primals, saved))
    outputs, out_tree = jax.tree.flatten(out)
    rule = Tangent(loop, selected, tree, len(out[0]), tuple(typeof(y) for y in outputs))
    types = tuple(pick(rule.avals, rule.is_moving))
    linear = Linear(rule.forward, rule.transpose, types, len(residuals), rule.primal)
    moved = linear(residuals, [dot for group in map(pick, (consts, init, xs), selected) for dot in group])
    return out_tree.unflatten(merge([zero_tangent(y) for y in outputs], rule.is_moving, moved))


@dataclasses.dataclass(frozen=True, eq=False)
class Tangent:
    """The tangent of a loop, its transpose, and the derivatives of that.

    The residuals are the leaves of `(primals, saved)`, with the treedef `tree`. The outputs have the types `avals`; the
    first `n_carry` of them are leaves of the last carry.
    """

    loop: CheckpointedLoop
    selected: Selected
    tree: Any
    n_carry: int
    avals: tuple[Any, ...]

    @property
    def is_moving(self) -> list[bool]:
        """Which of the outputs have tangents."""
        return [*self.selected.carry, *map(is_differentiable, self.avals[self.n_carry :])]

    def forward(self, residuals: Leaves, dots: Leaves) -> Leaves:
        """The tangents of the outputs out of those of the selected primals."""
        fun, args = self.restricted(*self.tree.unflatten(residuals))
        rest = iter(dots)
        return jax.jvp(fun, args, tuple([next(rest) for _ in group] for group in args))[1]

    def primal(self, residuals: Leaves, dots: Leaves) -> Leaves:
        """The outputs that have tangents, at other primals: they depend on all that their tangents depend on."""
        primals, _ = self.tree.unflatten(residuals)
        rest = iter(dots)
        shift = lambda x, moves: x + next(rest) if moves else x
        moved = [list(map(shift, *group)) for group in zip(primals, self.selected, strict=True)]
        return pick(jax.tree.leaves(self.loop.plain(*moved)), self.is_moving)

    def transpose(self, residuals: Leaves, cts: Leaves) -> Leaves:
        """The cotangents of the selected primals, by the backward sweep; None for zero, in and out."""
        sweep = jax.custom_jvp(self.sweep)
        sweep.defjvp(lambda args, dots: (sweep(*args), jax.jvp(self.differentiable_sweep, args, dots)[1]))
        out = sweep(*self.tree.unflatten(residuals), list(cts))
        # The others are zero for certain: they must not meet an infinite slope outside of the loop.
        is_reached = [flag for pair in zip(self.reached(cts), self.selected, strict=True) for flag in pick(*pair)]
        return [ct if flag else None for ct, flag in zip(out, is_reached, strict=True)]

    def reached(self, cts: Leaves) -> Selected:
        """What gets a cotangent from those of the outputs."""
        seen = [ct is not None for ct in merge([None] * len(self.avals), self.is_moving, cts)]
        return self.loop.reached(self.selected, seen[: self.n_carry], seen[self.n_carry :])

    def sweep(self, primals: Primals, saved: Saved, cts: Leaves) -> Leaves:
        """`transpose` without derivatives."""
        consts, _, xs = primals
        everywhere = merge([None] * len(self.avals), self.is_moving, cts)
        ct_carry, ct_ys = pick(everywhere[: self.n_carry], self.selected.carry), everywhere[self.n_carry :]
        avals = pick(self.avals[: self.n_carry], self.selected.carry)
        is_live = pick(self.reached(cts).carry, self.selected.carry)
        ct_carry = [zeros(aval) if ct is None else ct for aval, ct in zip(avals, ct_carry, strict=True)]
        return jax.tree.leaves(self.loop.backward(self.selected, consts, xs, saved, ct_carry, ct_ys, is_live))

    def differentiable_sweep(self, primals: Primals, saved: Saved, cts: Leaves) -> Leaves:
        """The same cotangents as of the backward sweep, differentiable."""
        if self.loop.nested is None:
            rule = self if self.loop.near is None else dataclasses.replace(self, loop=self.loop.near)
            saved_by = lambda primals: rule.loop.forward(self.selected, *primals)[2]
            sweeps = lambda primals, cts: rule.sweep(primals, saved_by(primals), cts)
            return forward_only(sweeps, self.loop.cure)(primals, cts)
        fun, args = self.restricted(primals, saved)
        seen = [ct is not None for ct in cts]
        _, pull = jax.vjp(lambda *args: pick(fun(*args), seen), *args)
        return jax.tree.leaves(pull(pick(cts, seen)))

    def restricted(self, primals: Primals, saved: Saved) -> tuple[Callable[..., Leaves], tuple[Leaves, ...]]:
        """The loop as a function of what is differentiated, and its argument."""

        def fun(*some: Leaves) -> Leaves:
            loop = self.loop.nested or forward_only(lambda *args: self.loop.plain(*args[:3]), self.loop.cure)
            consts, init, xs = [merge(*parts) for parts in zip(primals, self.selected, some, strict=True)]
            return pick(jax.tree.leaves(loop(consts, init, xs, saved)), self.is_moving)

        return fun, tuple(pick(whole, mask) for whole, mask in zip(primals, self.selected, strict=True))


def forward_only(fun: Callable[..., Any], cure: str) -> Callable[..., Any]:
    """A function of pytrees with derivatives in forward mode, of any order; reverse mode over them says `cure`."""

    def refuse(residuals: Any, cts: Any) -> NoReturn:
        raise ValueError(cure)

    return lambda *args: one_by_one(fun(*args), refuse)
