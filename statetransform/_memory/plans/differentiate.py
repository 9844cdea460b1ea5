"""A function under a byte budget, with the derivative that the plan gives it.

The function is a `custom_jvp`: undifferentiated it is itself. Its derivative rule knows which inputs are
differentiated, and guesses which outputs will have cotangents; for these it plans. The forward pass of the plan runs,
and the tangent is one linear equation: forward mode differentiates the plain function, reverse mode runs the backward
pass of the plan. Where that is differentiated again, the plain function takes its place. Where fewer outputs have
cotangents than was thought, the others' are zero. Where others have, the forward pass runs twice, which is warned of.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp

from ... import _jax
from ..._base.errors import BudgetError, PolicyWarning
from ..._base.sites import warn
from ..._jax import zero_tangent
from ..context import Context, Lanes
from ..loops.arrays import merge, pick
from ..loops.budget import MemoryBudget
from ..loops.choice import FunctionChoice
from ..loops.lanes import lanes_first, noticed
from ..loops.linear import Linear
from ..loops.others import with_reversible_loops
from ..programs.references import made_in, refuse_references
from ..programs.rewrite import BUDGETED, program_of
from ..programs.sizes import format_bytes
from ..programs.walk import backward_slice, walk
from .choose import Decision, Planners, Shortage, excess_message, shortage_message
from .cost import operations
from .devices import is_unknown
from .emit import Emitted, Pulled, whole
from .gradient import Pattern
from .meter import Meter
from .versions import Version

logger = logging.getLogger("statetransform")

Leaves = Sequence[Any]

_PARTS = 0.01  # of the work of a loss, which its parts may take besides: what a plan may have too much of it


def planned(fun: Callable[..., Any], budget: MemoryBudget, context: Context) -> Callable[..., Any]:
    """A pure function whose gradient keeps its intermediates within a budget.

    Args:
      fun: a function of pytrees of arrays.
      budget: the budget, which records what is chosen.
      context: what is around the call.

    Returns:
      The function, with the same values and derivatives.
    """

    @functools.wraps(fun)
    def call(*args: Any, **kwargs: Any) -> Any:
        traced, shapes, leaves = program_of(fun, args, kwargs)
        closed = with_reversible_loops(traced, max(budget.bytes // context.lanes.count, 1))
        flags = jax.tree.leaves(jax.tree.broadcast(context.active, shapes))
        body, consts = _jax.without_constvars(closed)
        name = getattr(fun, "__name__", type(fun).__name__)
        context.depend()
        out = _Call(name, body, budget, _guess(body, flags), context)(consts, leaves)
        return jax.tree.unflatten(jax.tree.structure(shapes), out)

    return call


def _guess(body: Any, flags: list[bool]) -> tuple[bool, ...]:
    """Which outputs will have cotangents: of a loss with other things, the loss; otherwise all that can.

    The parts of a loss may be figures to look at, or summed by the caller. If they are hardly more work than the first
    of them, they count as the loss: with cotangents of zero they are hardly more work, either.
    """
    can = [jnp.issubdtype(var.aval.dtype, jnp.inexact) for var in body.outvars]
    likely = [wanted and flag for wanted, flag in zip(can, flags, strict=True)]
    if not any(likely):
        return tuple(can)
    some = list(itertools.compress(body.outvars, likely))
    if not likely[0] or some[0].aval.shape or len(some) == 1:
        return tuple(likely)
    work = lambda outputs: sum(map(operations, backward_slice(body, outputs)))
    if not any(var.aval.shape for var in some) and work(some) <= (1 + _PARTS) * work(some[:1]):
        return tuple(likely)
    return tuple(i == 0 for i in range(len(can)))


@dataclasses.dataclass(frozen=True, eq=False)
class _Call:
    """A call of a flat function under a budget.

    Where a gradient is around lanes, they become part of the function: what they share has one gradient.

    Attributes:
      name: of the function.
      body: an open jaxpr without constants.
      budget: the budget.
      guess: which outputs are expected to have cotangents.
      context: what is around the call.
    """

    name: str
    body: Any
    budget: MemoryBudget
    guess: tuple[bool, ...]
    context: Context

    def __call__(self, consts: Leaves, leaves: Leaves) -> list[Any]:
        inputs = [*consts, *leaves]
        lanes = self.context.lanes.of(len(inputs), len(consts))
        call = dataclasses.replace(self, context=dataclasses.replace(self.context, lanes=lanes))
        if lanes.is_innermost and not self.body.effects and made_in(self.body) is None:
            return _lanes_p.bind(*inputs, call=call)
        return call.alone(*inputs)

    def alone(self, *inputs: Any) -> list[Any]:
        """Runs the function, differentiably, for one lane."""
        shardings = tuple(map(self.context.sharding_of, inputs))
        return Budgeted(self.name, self.body, self.budget, self.guess, shardings, self.context.lanes)(*inputs)

    def plain(self, *inputs: Any) -> list[Any]:
        """The function itself."""
        return _jax.eval_jaxpr(self.body, (), *inputs)

    def jvp(self, primals: Leaves, dots: Leaves) -> tuple[list[Any], list[Any]]:
        """The outputs and their tangents."""
        is_moving = [dot is not None for dot in dots]
        run = lambda *some: self.alone(*merge(primals, is_moving, some))
        out, dots = jax.jvp(run, pick(primals, is_moving), pick(dots, is_moving))
        return out, [dot if jnp.issubdtype(y.dtype, jnp.inexact) else None for y, dot in zip(out, dots, strict=True)]

    def of_lanes(self, lanes: dict[str, Any], operands: Leaves, axes: Leaves) -> tuple[list[Any], list[int | None]]:
        """The call of the function of all lanes."""
        differs, axes = list[bool](), tuple(axes)

        def look(*inputs: Any) -> None:
            out = self.plain(*inputs)
            with _jax.take_current_trace() as trace:
                differs.extend(_jax.is_batched(y, trace) for y in out)

        jax.eval_shape(jax.vmap(look, in_axes=axes, **lanes), *operands)
        out_axes = [0 if differ else None for differ in differs]
        together = jax.vmap(self.plain, in_axes=axes, out_axes=out_axes, **lanes)
        body, consts = _jax.without_constvars(jax.make_jaxpr(together)(*operands))
        context = dataclasses.replace(self.context, lanes=Lanes.around(operands))
        return _Call(self.name, body, self.budget, self.guess, context)(consts, operands), out_axes


_lanes_p = jex.Primitive("budget_in_lanes")
_jax.define(
    _lanes_p,
    run=lambda *inputs, call: call.alone(*inputs),
    types=lambda *inputs, call: [var.aval for var in call.body.outvars],
    jvp=lambda primals, dots, *, call: call.jvp(primals, dots),
    batch=lambda lanes, _, operands, axes, *, call: call.of_lanes(lanes, operands, axes),
)


class Budgeted:
    """A flat function and its budget.

    Args:
      name: of the function.
      body: an open jaxpr without constants.
      budget: the budget, which records what is chosen.
      guess: which outputs are expected to have cotangents.
      shardings: those of the inputs, None where they are not known or in the types.
      lanes: those in which it is called.
    """

    def __init__(
        self,
        name: str,
        body: Any,
        budget: MemoryBudget,
        guess: tuple[bool, ...],
        shardings: tuple[Any, ...],
        lanes: Lanes,
    ) -> None:
        self._name, self._body, self._guess, self._lanes = name, body, guess, lanes
        self._is_unknown = is_unknown([var.aval for var in body.invars], shardings)
        self._asked, self._budget = budget, budget.bytes
        meter = Meter(name) if budget.progress else None
        self._planners = Planners(jex.ClosedJaxpr(body, []), shardings, budget.compile, meter, budget.target)
        self._reference = made_in(body)
        self._decisions: dict[Pattern, Decision | Shortage] = {}
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
            found, passes = self.decision(pattern), self._passes(pattern)
            primals = noticed(self._lanes.axes, functools.partial(self._notice, found))(list(primals))
            if isinstance(found, Decision) and not isinstance(found.program, Emitted) and passes is None:
                out, dots = self._jvp_of(self._by_hand(pattern, found.program), moves, primals, tangents)
                return lanes_first(out), dots
            out, kept = self._first(moves)(*primals)
            return lanes_first(out), self._tangent(moves, primals, tangents, out, kept)

        run.defjvp(rule, symbolic_zeros=True)
        return list(run(*inputs))

    def _notice(self, found: Decision | Shortage, lanes: int) -> None:
        """Says that there are more lanes than were known when the gradient was planned, if they are too many."""
        size = found.least if isinstance(found, Shortage) else found.compiled or found.planned
        if lanes * size <= self._budget:
            return
        warn(
            f"checkpoint: {self._name} was planned within {format_bytes(self._budget)}, and got {lanes} lanes of "
            f"`vmap` later, each of which takes {format_bytes(size)}. A budget counts the lanes that are known where "
            "the function is called: put `jit` around `vmap`, or give a lane its part, "
            f"{format_bytes(max(self._budget // lanes, 1))}.",
            PolicyWarning,
        )

    def _with_references(self, inputs: Leaves) -> list[Any]:
        """The plain function, if it meets the budget when all that can be is differentiated."""
        moves = tuple(jnp.issubdtype(var.aval.dtype, jnp.inexact) for var in self._body.invars)
        budget = self._budget // self._lanes.count
        plain = self._planners.of(Pattern(moves, self._guess, self._lanes)).plain_bytes(budget)
        if plain is None or plain > budget:
            needed = "" if plain is None else f" ({format_bytes(plain)} of {format_bytes(budget)})"
            reason = f"The plain gradient does not fit{needed}, so that the function gets a derivative rule"
            refuse_references("checkpoint", self._reference, reason)
        return self.plain(*inputs)

    def decision(self, pattern: Pattern) -> Decision | Shortage:
        """What the budget leads to, found once for each pattern."""
        if pattern not in self._decisions:
            if self._is_unknown:
                warn(
                    f"checkpoint: where {self._name} is planned, it is not known how its arguments are sharded, so the "
                    f"budget of {format_bytes(self._budget)} counts the bytes of all devices together. Use "
                    "`transform.jit`, give the arguments to the checkpointed function as they are, or use a mesh with "
                    "explicit axes.",
                    PolicyWarning,
                )
            found = self._planners.of(pattern).decide(self._budget)
            self._decisions[pattern] = found
            if isinstance(found, Decision):
                self._record(found)
                self._warn(found)
        return self._decisions[pattern]

    def _passes(self, pattern: Pattern) -> Emitted | Pulled | None:
        """Both passes, if they are planned, or if JAX cannot push tangents through the program in lanes."""
        found = self.decision(pattern)
        if isinstance(found, Shortage):
            return None
        if isinstance(found.program, Emitted):
            return found.program
        if not self._is_reverse_only:
            return None
        pulled = Pulled(self._by_hand(pattern, found.program), pattern.inputs, pattern.outputs)
        return self._pulled.setdefault(pattern, pulled)

    def _record(self, found: Decision) -> None:
        is_plain, target = found.program is None, self._planners.target
        where = "" if target.is_here else str(target)
        chosen = FunctionChoice(self._name, found.planned, found.compiled, found.cost, is_plain, self._budget, where)
        self._asked.record(chosen)
        logger.info("checkpoint: %s", chosen)

    def _warn(self, found: Decision) -> None:
        if found.compiled is not None and found.compiled > self._budget:
            warn(excess_message(self._asked.size, found, self._planners.target), PolicyWarning)

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
            return self.plain
        # JAX differentiates a call that stays one with some arrays more than what it contains.
        return self._compiled(("by hand", pattern), lambda *xs: _jax.run(program.closed, *xs), inline=True)

    def _jvp_of(
        self, program: Callable[..., list[Any]], moves: tuple[bool, ...], primals: Leaves, tangents: Leaves
    ) -> tuple[list[Any], list[Any]]:
        which = [i for i, flag in enumerate(moves) if flag]
        fun = self._restricted(which, primals, program)
        out, dots = jax.jvp(fun, [primals[i] for i in which], [tangents[i] for i in which])
        return out, dots

    def _restricted(
        self, which: list[int], primals: Leaves, program: Callable[..., list[Any]] | None = None
    ) -> Callable[..., list[Any]]:
        def fun(*some: Any) -> list[Any]:
            whole = list(primals)
            for i, x in zip(which, some, strict=True):
                whole[i] = x
            return (program or self.plain)(*whole)

        return fun

    def _tangent(
        self, moves: tuple[bool, ...], primals: Leaves, tangents: Leaves, out: list[Any], kept: list[Any]
    ) -> list[Any]:
        """The tangents of the outputs, as one linear equation in those of the inputs."""
        n, which = len(primals), [i for i, flag in enumerate(moves) if flag]
        moving_out = [i for i, can in enumerate(self._can) if can]

        def forward_mode(residuals: Leaves, dots: Leaves) -> list[Any]:
            primals = residuals[:n]
            moved = jax.jvp(self._restricted(which, primals), [primals[i] for i in which], list(dots))[1]
            return [moved[i] for i in moving_out]

        def primal(residuals: Leaves, dots: Leaves) -> list[Any]:
            shifted = [residuals[i] + dot for i, dot in zip(which, dots, strict=True)]
            moved = self._restricted(which, residuals[:n])(*shifted)
            return [moved[i] for i in moving_out]

        def transpose(residuals: Leaves, cts: Leaves) -> list[Any]:
            return self._backward(moves)(list(residuals[:n]), list(residuals[n:]), list(cts))

        avals = tuple(self._body.outvars[i].aval.strip_weak_type() for i in moving_out)
        linear = Linear(forward_mode, transpose, avals, n + len(kept), primal)
        moved = iter(linear([*primals, *kept], [tangents[i] for i in which]))
        return [next(moved) if can else zero_tangent(y) for can, y in zip(self._can, out, strict=True)]

    def _backward(self, moves: tuple[bool, ...]) -> Callable[..., list[Any]]:
        """The cotangents of the inputs that are differentiated, differentiable in its turn."""
        which = [i for i, flag in enumerate(moves) if flag]
        moving_out = [i for i, can in enumerate(self._can) if can]

        def again(primals: Leaves, cts: Leaves) -> list[Any]:
            """The same without the plan."""
            present = [k for k, ct in enumerate(cts) if ct is not None]
            some = lambda *xs: [self._restricted(which, primals)(*xs)[moving_out[k]] for k in present]
            _, pull = jax.vjp(some, *[primals[i] for i in which])
            return list(pull([cts[k] for k in present]))

        def run(primals: Leaves, kept: Leaves, cts: Leaves) -> list[Any]:
            given = {moving_out[k]: ct for k, ct in enumerate(cts) if ct is not None}
            if not given:
                return [jnp.zeros_like(primals[i]) for i in which]
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
            fun = lambda primals, cts: again(primals, cts)
            return backward(*args), jax.jvp(fun, (primals, cts), (dots_primals, dots_cts))[1]

        backward.defjvp(rule)
        return backward

    def _pull(self, pattern: Pattern, primals: Leaves, kept: Leaves, cts: Leaves) -> list[Any]:
        found = self.decision(pattern)
        if isinstance(found, Shortage):
            raise BudgetError(shortage_message(self._asked.size, found), least=found.least)
        passes = self._passes(pattern)
        if pattern.outputs == self._guess and passes is not None:
            return self._compiled(("backward", pattern), passes.backward)(primals, kept, cts)
        # Other outputs have cotangents than was thought: what was kept does not fit, so the forward pass runs again.
        if pattern.outputs != self._guess:
            warn(
                f"checkpoint: {self._name} was planned for the gradient of its first output, a scalar, and others are "
                "differentiated, too. So its forward pass runs twice, and may need more than the budget. Return the "
                "scalar behind the others, or give `grad` a function that returns the sum.",
                PolicyWarning,
            )
        n = len(pattern.outputs)
        if isinstance(found.program, Emitted):
            step = whole(found.program, len(primals))
        else:
            step = (found.program or self._planners.of(pattern).versions.first).plain_step
        primals, cts = _jax.barrier((primals, list(cts)))
        return list(self._compiled(("step", pattern), step)(*primals, *cts)[n:])

    def _compiled(self, key: Any, fun: Callable[..., Any], inline: bool = False) -> Callable[..., Any]:
        """A function as one program for eager calls; the same object every time, so that it is compiled once."""
        return self._programs.setdefault(key, jax.jit(fun, inline=inline))


def _moving(tangents: Leaves) -> tuple[bool, ...]:
    """Which of the inputs have a tangent that is not zero for certain."""
    return tuple(not _jax.is_zero_tangent(dot) for dot in tangents)
