"""One call of a function with a derivative rule: how it, its rule and the states meet in JAX's custom rules.

Where JAX runs the function or its rule at once, so do we: what they read of states comes in as a primal, since a rule
says how gradients flow through the arguments only, and what they write is a second output, which the rule does not see.

Where JAX stages the function, its rule is called when the program is differentiated, which may be long after. So the
function and its rules are traced first, and the states that they read become arguments, with cotangents that are zero.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax

from .._jaxcompat import lowered
from .._loops.arrays import zero_tangent
from .._state.errors import StateStructureError, StateTraceError
from .._state.frame import Frame, look_at_all
from .._state.state import State
from .._trace.arguments import hide, named_like, reveal
from .._trace.lift import Lift
from .._trace.stage import trace
from .._trace.trace import Call
from .._trace.tracebacks import hide_frames

Function = Callable[..., Any]

#: Whether rules run only for what they read.
_differentiates = contextvars.ContextVar("_differentiates", default=False)


class RuleFrame(Frame):
    """A frame for a function with a rule, or for the rule.

    Args:
      refusal: gives the error for a state whose value is gone, and None for any other.

    Attributes:
      entered: the states read whose values came from outside, and the values.
    """

    def __init__(self, refusal: Callable[[State], StateTraceError | None]) -> None:
        super().__init__()
        self._refusal = refusal
        self.entered: dict[State, Any] = {}

    def enter(self, state: State) -> Any:
        if state.static:
            return super().enter(state)
        if (error := self._refusal(state)) is not None:
            raise error
        value = self.entered[state] = lowered(super().enter(state))
        return value


class RuleCall:
    """One call. JAX's function gets the values of states, where they are known, and the arguments that are not fixed.

    Args:
      nondiff: the positions of the fixed ones, which JAX puts first in the arguments of rules.
    """

    def __init__(self, fun: Function, args: tuple[Any, ...], nondiff: tuple[int, ...]) -> None:
        self._fun, self._n_args = fun, len(args)
        self._fixed = {i: args[i] for i in nondiff}
        free, self._objects = hide(tuple(arg for i, arg in enumerate(args) if i not in self._fixed))
        self.n_given = len(nondiff) + 2  # arguments of a backward or forward-mode rule
        self._inputs: list[State] = []  # the states whose values are arguments
        self._known: list[State] = []  # those whose values the forward rule leaves to the backward rule
        self._found: Call | None = None
        self._is_over = False
        self._outcome: Any = None
        self._arguments: Any = free

    def stage(self, differentiate: Function) -> None:
        """Traces the function, since JAX may stage it; else JAX runs the function or its rule at once.

        Args:
          differentiate: runs the rules for the arguments. What they read comes in with what the function reads.
        """
        fun, free = self._fun, self._arguments
        traced = trace(as_function(fun, lambda *primals: fun(*self._whole(primals))), free, {})
        self._found = Call(traced, traced.states, [], [], traced.objects_at(()))
        reads = dict.fromkeys(self._found.reads)
        if not _differentiates.get():  # a forward rule may call its own function
            token = _differentiates.set(True)
            try:
                # JAX runs a rule only if the function is differentiated, so an error of the rule is none of this call.
                with contextlib.suppress(Exception):
                    ruled = trace(as_function(fun, differentiate), free, {})
                    reads.update(dict.fromkeys(ruled.states[: ruled.n_reads]))
            finally:
                _differentiates.reset(token)
        self._inputs = self._known = [*reads]
        self._arguments = (*look_at_all(self._inputs), *free)

    def take_arguments(self) -> tuple[Any, ...]:
        """The arguments for JAX's function. They are not kept: JAX may hold on to the rules, and so to this object."""
        arguments, self._arguments = self._arguments, None
        return arguments

    def run(self, *args: Any) -> Any:
        """The function: `(out, written, born)`."""
        values, args = self._split(args)
        if self._found is not None:
            return self._found.apply(args, {}, values)
        return self._lifted(self._fun, values, self._whole(args))[0]

    def forward(self, rule: Function) -> Function:
        """The forward rule: `((out, written, born), residuals)`, with the values of states among the residuals."""

        def forward(*args: Any) -> Any:
            values, args = self._split(args)
            values = {state: jax.tree.map(_primal, value, is_leaf=_has_flag) for state, value in values.items()}
            results, entered = self._lifted(rule, values, self._whole(args))
            if self._found is None:
                self._known, values = list(entered), entered
            return _with_states(results, lambda residuals: (residuals, list(values.values())))

        return forward

    def backward(self, rule: Function) -> Function:
        """The backward rule, with the cotangents of what the function returned."""

        def backward(residuals: Any, cotangents: Any) -> Any:
            residuals, values = residuals
            written = set(self._outcome.written)
            known = {s: value for s, value in zip(self._known, values, strict=True) if s not in written}
            given = (*self._fixed.values(), residuals, cotangents[0])
            gone = lambda state: (
                StateTraceError.read_in_backward_rule(state) if state in written else self._is_gone(state)
            )
            lift = Lift(rule, lambda: RuleFrame(gone))
            cts = lift.leave(*lift.call(known, given, {}))
            zeros = jax.tree.map(zero_tangent, values[: len(self._inputs)])
            return (*zeros, *cts) if isinstance(cts, tuple | list) else cts

        return backward

    def jvp(self, rule: Function) -> Function:
        """The forward-mode rule; what is written has no tangent."""

        def jvp(primals: Any, tangents: Any) -> Any:
            values, primals = self._split(primals)
            pair = [reveal(part, self._objects) for part in (primals, tuple(tangents[len(values) :]))]
            args = (*self._fixed.values(), *pair)
            results, _ = self._lifted(rule, values, args)
            return _with_states(results, lambda dots: (dots, *jax.tree.map(zero_tangent, results[1:])))

        return jvp

    def finish(self, out: Any, written: Any, born: Any) -> Any:
        """After JAX has returned: hands the writes on and returns the output."""
        self._is_over = True
        return (self._found or self._outcome).finish(out, written, born)

    def _split(self, args: Any) -> tuple[dict[State, Any], tuple[Any, ...]]:
        """The values of the states and the user's arguments, from those of JAX's function."""
        n = len(self._inputs)
        return dict(zip(self._inputs, args[:n], strict=True)), tuple(args[n:])

    def _whole(self, primals: Any) -> tuple[Any, ...]:
        """The user's arguments."""
        given = iter(reveal(primals, self._objects))
        return tuple(self._fixed[i] if i in self._fixed else next(given) for i in range(self._n_args))

    def _is_gone(self, state: State) -> StateTraceError | None:
        """A rule that is called after the function's call is over has what was passed to it, and no more."""
        return StateTraceError.read_in_rule_only(state) if self._is_over and self._found is not None else None

    def _lifted(
        self, fun: Function, values: Mapping[State, Any], args: tuple[Any, ...]
    ) -> tuple[Any, dict[State, Any]]:
        """The results of the function or its rule, and the values of states that came from outside."""
        frames: list[RuleFrame] = []  # not kept: a frame knows the one around it, whose trace ends before JAX is done

        def make() -> Frame:
            frames.append(RuleFrame(self._is_gone))
            return frames[-1]

        lift = Lift(fun, make)
        results = lift.call(values, args, {})
        self._outcome = lift.outcome
        if self._found is not None and self._outcome.written != self._found.written:
            where = getattr(self._fun, "__qualname__", "custom rule")
            raise StateStructureError.rule(where, self._found.written, self._outcome.written)
        return results, frames.pop().entered


def _has_flag(leaf: Any) -> bool:
    """Whether an argument of a rule says if it moves, as with `symbolic_zeros`."""
    return hasattr(leaf, "perturbed")


def _primal(leaf: Any) -> Any:
    return leaf.value if _has_flag(leaf) else leaf


def _with_states(results: Any, second: Callable[[Any], Any]) -> Any:
    """What a rule gives to JAX: its output and what it did to states, and the second part of its own pair."""
    out, written, born = results
    if not isinstance(out, tuple | list) or len(out) != 2:
        return out  # JAX says what is wrong
    return (out[0], written, born), second(out[1])


def as_function(fun: Function, pure: Function) -> Function:
    """`pure` with the name and signature of `fun`; as in JAX, a partial object takes no keywords."""

    @named_like(fun)
    def named(*args: Any) -> Any:
        try:
            return pure(*args)
        except Exception as error:
            hide_frames(error)
            raise

    if isinstance(fun, functools.partial):
        del named.__wrapped__  # type: ignore[attr-defined]
    return named
