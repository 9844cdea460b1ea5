"""A function under a byte budget, with the derivative that the plan gives it.

The function is a `custom_jvp`: undifferentiated it is itself. Its derivative rule knows which inputs are
differentiated, and guesses which outputs will have cotangents; for these it plans. The forward pass of the plan runs,
and the tangent is one linear equation: forward mode differentiates the plain function, reverse mode runs the backward
pass of the plan. Where that is differentiated again, the plain function takes its place. Where fewer outputs have
cotangents than was thought, the others' are zero. Where others have, the forward pass runs twice, which is warned of.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ... import _jax
from ..._base.errors import PolicyWarning
from ..._base.sites import warn
from ..._jax import zero_tangent
from ..context import Lanes
from ..loops.arrays import merge, pick
from ..loops.budget import MemoryBudget
from ..loops.lanes import lanes_first, noticed
from ..loops.linear import Linear
from ..programs.references import made_in, refuse_references
from ..programs.rewrite import BUDGETED
from ..programs.sizes import format_bytes
from ..programs.walk import walk
from .choose import Decision, Shortage
from .constants import Constants
from .decisions import Decisions
from .emit import Emitted, Pulled, whole
from .gradient import Pattern
from .versions import Version

Leaves = Sequence[Any]


class Budgeted:
    """A flat function and its budget.

    Args:
      name: of the function.
      body: an open jaxpr without constants.
      budget: the budget, which records what is chosen.
      guess: which outputs are expected to have cotangents.
      shardings: those of the inputs, None where they are not known or in the types.
      lanes: those in which it is called.
      constants: inputs that are constants of the program around.
    """

    def __init__(
        self,
        name: str,
        body: Any,
        budget: MemoryBudget,
        guess: tuple[bool, ...],
        shardings: tuple[Any, ...],
        lanes: Lanes,
        constants: Constants,
    ) -> None:
        self._name, self._body, self._guess, self._lanes = name, body, guess, lanes
        self._decisions = Decisions(name, body, budget, shardings, constants)
        self._reference = made_in(body)
        self._programs: dict[Any, Callable[..., Any]] = {}
        self._pulled: dict[Pattern, Pulled] = {}
        self._is_reverse_only = any(site.primitive.startswith("custom_vjp_call") for site in walk(body))
        self._can = [jnp.issubdtype(var.aval.dtype, jnp.inexact) for var in body.outvars]

    def plain(self, *inputs: Any) -> list[Any]:
        """The function itself."""
        return _jax.eval_jaxpr(self._body, (), *inputs)

    def __call__(self, *inputs: Any) -> list[Any]:
        """Runs the function, differentiably."""
        if self._reference is not None:
            return self._with_references(inputs)
        plain = lambda *xs: lanes_first(self.plain(*xs))
        plain.__name__ = BUDGETED
        run = jax.custom_jvp(plain)

        def rule(primals: Leaves, tangents: Leaves) -> Any:
            moves = _moving(tangents)
            if not any(moves):
                return lanes_first(out := self.plain(*primals)), [zero_tangent(y) for y in out]
            pattern = Pattern(moves, self._guess, self._lanes)
            found, passes = self._decisions.of(pattern), self._passes(pattern)
            primals = noticed(self._lanes.axes, functools.partial(self._decisions.notice, found))(list(primals))
            if isinstance(found, Decision) and not isinstance(found.program, Emitted) and passes is None:
                out, dots = self._jvp_of(self._by_hand(pattern, found.program), moves, primals, tangents)
                return lanes_first(out), dots
            out, kept = self._first(moves)(*primals)
            return lanes_first(out), self._tangent(moves, primals, tangents, out, kept)

        run.defjvp(rule, symbolic_zeros=True)
        return list(run(*inputs))

    def _with_references(self, inputs: Leaves) -> list[Any]:
        """The plain function, if it meets the budget when all that can be is differentiated."""
        moves = tuple(jnp.issubdtype(var.aval.dtype, jnp.inexact) for var in self._body.invars)
        budget = self._decisions.budget // self._lanes.count
        plain = self._decisions.planners.of(Pattern(moves, self._guess, self._lanes)).plain_bytes(budget)
        if plain is None or plain > budget:
            needed = "" if plain is None else f" ({format_bytes(plain)} of {format_bytes(budget)})"
            reason = f"The plain gradient does not fit{needed}, so that the function gets a derivative rule"
            refuse_references("checkpoint", self._reference, reason)
        return self.plain(*inputs)

    def _passes(self, pattern: Pattern) -> Emitted | Pulled | None:
        """Both passes, if they are planned, or if JAX cannot push tangents through the program in lanes."""
        found = self._decisions.of(pattern)
        if isinstance(found, Shortage):
            return None
        if isinstance(found.program, Emitted):
            return found.program
        if not self._is_reverse_only:
            return None
        pulled = Pulled(self._by_hand(pattern, found.program), pattern.inputs, pattern.outputs)
        return self._pulled.setdefault(pattern, pulled)

    def _first(self, moves: tuple[bool, ...]) -> Callable[..., tuple[list[Any], list[Any]]]:
        """The forward pass of the plan; what it keeps has no tangent: the linear equation starts from the inputs."""
        passes = self._passes(Pattern(moves, self._guess, self._lanes))

        def forward(*inputs: Any) -> tuple[list[Any], list[Any]]:
            return (self.plain(*inputs), []) if passes is None else passes.forward(inputs)

        run = jax.custom_jvp(self._compiled(("forward", moves), forward))

        def rule(primals: Leaves, tangents: Leaves) -> Any:
            out, kept = run(*primals)
            moved = _moving(tangents)
            if not any(moved):
                dots = [zero_tangent(y) for y in out]
            else:
                dots = self._jvp_of(self.plain, moved, primals, tangents)[1]
            return (out, kept), (dots, [zero_tangent(x) for x in kept])

        run.defjvp(rule, symbolic_zeros=True)
        return run

    def _by_hand(self, pattern: Pattern, program: Version | None) -> Callable[..., list[Any]]:
        """The function with checkpoints, or as it is."""
        if program is None:
            return lambda *xs: _jax.run(self._decisions.planners.plain, *xs)
        # JAX differentiates a call that stays one with some arrays more than what it contains.
        return self._compiled(("by hand", pattern), lambda *xs: _jax.run(program.closed, *xs), inline=True)

    def _jvp_of(
        self, program: Callable[..., list[Any]], moves: tuple[bool, ...], primals: Leaves, tangents: Leaves
    ) -> tuple[list[Any], list[Any]]:
        """What a program for the function gives, and its tangents."""
        fun = lambda *some: program(*merge(primals, moves, some))
        return jax.jvp(fun, pick(primals, moves), pick(tangents, moves))

    def _restricted(self, moves: tuple[bool, ...], primals: Leaves) -> Callable[..., list[Any]]:
        """The outputs that can have cotangents, as a function of the inputs that are differentiated."""
        return lambda *some: pick(self.plain(*merge(primals, moves, some)), self._can)

    def _tangent(
        self, moves: tuple[bool, ...], primals: Leaves, tangents: Leaves, out: list[Any], kept: list[Any]
    ) -> list[Any]:
        """The tangents of the outputs, as one linear equation in those of the inputs."""
        n = len(primals)

        def forward_mode(residuals: Leaves, dots: Leaves) -> list[Any]:
            primals = residuals[:n]
            return jax.jvp(self._restricted(moves, primals), pick(primals, moves), list(dots))[1]

        def primal(residuals: Leaves, dots: Leaves) -> list[Any]:
            primals = residuals[:n]
            return self._restricted(moves, primals)(*map(operator.add, pick(primals, moves), dots))

        def transpose(residuals: Leaves, cts: Leaves) -> list[Any]:
            return self._backward(moves)(list(residuals[:n]), list(residuals[n:]), list(cts))

        avals = tuple(var.aval.strip_weak_type() for var in pick(self._body.outvars, self._can))
        linear = Linear(forward_mode, transpose, avals, n + len(kept), primal)
        moved = linear([*primals, *kept], pick(tangents, moves))
        return merge([zero_tangent(y) for y in out], self._can, moved)

    def _backward(self, moves: tuple[bool, ...]) -> Callable[..., list[Any]]:
        """The cotangents of the inputs that are differentiated, differentiable in its turn."""

        def plain(primals: Leaves, cts: Leaves) -> list[Any]:
            """The same without the plan."""
            present = [ct is not None for ct in cts]
            some = lambda *xs: pick(self._restricted(moves, primals)(*xs), present)
            _, pull = jax.vjp(some, *pick(primals, moves))
            return list(pull(pick(cts, present)))

        def run(primals: Leaves, kept: Leaves, cts: Leaves) -> list[Any]:
            everywhere = merge([None] * len(self._can), self._can, cts)
            given = {i: ct for i, ct in enumerate(everywhere) if ct is not None}
            if not given:
                return list(map(jnp.zeros_like, pick(primals, moves)))
            guessed = {i for i, wanted in enumerate(self._guess) if wanted}
            if given.keys() < guessed:
                zero = lambda i: _jax.zeros(self._body.outvars[i].aval)
                given = {i: given[i] if i in given else zero(i) for i in sorted(guessed)}
            outputs, present = tuple(i in given for i in range(len(self._can))), list(given.values())
            return self._pull(Pattern(moves, outputs, self._lanes), primals, kept, present)

        backward = jax.custom_jvp(run)

        def rule(args: Any, dots: Any) -> Any:
            primals, _, cts = args
            dots_primals, _, dots_cts = dots
            return backward(*args), jax.jvp(plain, (primals, cts), (dots_primals, dots_cts))[1]

        backward.defjvp(rule)
        return backward

    def _pull(self, pattern: Pattern, primals: Leaves, kept: Leaves, cts: Leaves) -> list[Any]:
        found = self._decisions.of(pattern)
        if isinstance(found, Shortage):
            raise self._decisions.refuse(found)
        passes = self._passes(pattern)
        if pattern.outputs == self._guess and passes is not None:
            return self._compiled(("backward", pattern), passes.backward)(primals, kept, cts)
        # Other outputs have cotangents than was thought: what was kept does not fit, so the forward pass runs again.
        if pattern.outputs != self._guess:
            warn(
                f"checkpoint: {self._name} was planned for the gradient of the scalar that it returns first, and other "
                "outputs, or states that it writes, are differentiated, too. So its forward pass runs twice, and may "
                "need more than the budget. Make what follows, up to the loss, a part of the function.",
                PolicyWarning,
            )
        n = len(pattern.outputs)
        if isinstance(found.program, Emitted):
            step = whole(found.program, len(primals))
        else:
            step = (found.program or self._decisions.planners.of(pattern).versions.first).plain_step
        primals, cts = _jax.barrier((primals, list(cts)))
        return list(self._compiled(("step", pattern), step)(*primals, *cts)[n:])

    def _compiled(self, key: Any, fun: Callable[..., Any], inline: bool = False) -> Callable[..., Any]:
        """A function as one program for eager calls; the same object every time, so that it is compiled once."""
        return self._programs.setdefault(key, jax.jit(fun, inline=inline))


def _moving(tangents: Leaves) -> tuple[bool, ...]:
    """Which of the inputs have a tangent that is not zero for certain."""
    return tuple(not _jax.is_zero_tangent(dot) for dot in tangents)
