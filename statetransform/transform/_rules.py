"""One call of a function with a derivative rule: how it, its rule and the states meet in JAX's custom rules.

Where JAX runs the function or its rule at once, so do we: what they read of states comes in as a primal, since a rule
says how gradients flow through the arguments only, and what they write is a second output, which the rule does not see.

Where JAX stages the function, its rule is called when the program is differentiated, which may be long after, and for
other objects of equal structure. So the function and its rules are traced first, and the states that they read become
arguments, with cotangents that are zero.

So this is a hybrid of two engines: it runs a function as `Direct` does where JAX runs it, and traces it as `Staged`
does where JAX stages it, but keeps no traces, since JAX keeps the rule.
"""

from __future__ import annotations

import contextvars
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax.custom_derivatives import custom_vjp_primal_tree_values as primal_values

from .._base.errors import StateStructureError, StateTraceError, describe
from .._base.functions import name_of, named_like
from .._jax import is_differentiable, trace_state, typeof, without_tangent, zero_tangent
from .._states.frame import Frame, innermost, look_at_all
from .._states.state import State
from .._traces.arguments import hide, reveal
from .._traces.lift import Lift
from .._traces.stage import trace
from .._traces.trace import Call
from .._traces.tracebacks import hide_frames
from ._rule_states import RuleFrame, undifferentiated

Function = Callable[..., Any]

#: How many rules are being traced before JAX calls them, one within the other, and the frame around the innermost one.
_within = contextvars.ContextVar[tuple[int, Any]]("_within", default=(0, None))
_ORDER = 2  # rules are traced ahead to this depth; a rule may call its own function, so there has to be a limit


class RuleCall:
    """One call. JAX's function gets the values of states, where they are known, and the arguments that are not fixed.

    Args:
      nondiff: the positions of the fixed ones, which JAX puts first in the arguments of rules.
      has_flags: whether rules hear which arguments move. That is not known before JAX calls them.
    """

    def __init__(self, fun: Function, args: tuple[Any, ...], nondiff: tuple[int, ...], has_flags: bool) -> None:
        self._fun, self._n_args, self._called_from = fun, len(args), trace_state()
        self._fixed = {i: args[i] for i in nondiff}
        free, self._objects = hide(tuple(arg for i, arg in enumerate(args) if i not in self._fixed))
        self.n_given = len(nondiff) + 2  # arguments of a backward or forward-mode rule
        self._inputs: list[State] = []  # the states whose values are arguments
        self._known: list[State] = []  # those whose values the forward rule leaves to the backward rule
        self._found: Call | None = None  # the trace of the function, if JAX may stage it
        self._has_flags, self._rules_ahead = has_flags, False
        self._is_over = False
        self._outcome: Any = None
        self._arguments: Any = free

    def stage(self, rules_ahead: bool) -> None:
        """Traces the function, since JAX may stage it; else JAX runs the function or its rule at once."""
        self._rules_ahead = rules_ahead and not self._has_flags
        self._found = self._traced(self._fun, lambda *args: self._fun(*self._whole(args)), self._arguments)

    def _traced(self, fun: Function, pure: Function, args: Any, copies: int = 1) -> Call:
        """The trace of the function or a rule, whose reads become arguments.

        `pure` takes flat arguments. Objects that go by reference are among them `copies` times: twice for a
        forward-mode rule, as primals and as tangents.
        """
        call = self._call(fun, pure, args, copies)
        self._inputs = [*dict.fromkeys([*self._inputs, *call.reads])]
        return call

    def _call(self, fun: Function, pure: Function, args: Any, copies: int = 1) -> Call:
        traced = trace(as_function(fun, pure), args, {}, self._objects * copies)
        return Call(traced, traced.states, [], [], traced.objects_at(()))

    def _ahead(self, *options: Any) -> Call | None:
        """The trace of a rule of a function that may be staged; None for one that has to run where JAX calls it."""
        if not self._rules_ahead:
            return None
        depth, around = _within.get()
        frame = innermost()
        if depth == _ORDER:
            while frame is not None and frame is not around:
                frame.is_kept, frame = False, frame.parent
            return None
        token = _within.set((depth + 1, frame))
        try:
            return self._traced(*options)
        except Exception:  # JAX calls a rule only if the function is differentiated, so it is no error of this call
            return None
        finally:
            _within.reset(token)

    def take_arguments(self) -> tuple[Any, ...]:
        """The arguments for JAX's function. They are not kept: JAX may hold on to the rules, and so to this object."""
        free, self._arguments = self._arguments, None
        values = dict(zip(self._inputs, look_at_all(self._inputs), strict=True))
        if self._found is not None:
            read = {state: values[state] for state in self._found.reads}
            seen, free = undifferentiated(read, free, self._refusal)
            values.update(zip(read, seen, strict=True))
        return (*values.values(), *free)

    def _refusal(self, state: State) -> StateTraceError:
        return StateTraceError.differentiated_in_rule(name_of(self._fun), state)

    def run(self, *args: Any) -> Any:
        """The function: `(out, written, born)`."""
        values, args = self._split(args)
        if self._found is not None:
            return self._found.apply(args, {}, values)
        return self._lifted(self._fun, values, self._whole(args), args)[0]

    def vjp(self, forward_rule: Function, backward_rule: Function) -> list[Function]:
        """The forward rule: `((out, written, born), residuals)`, and the backward rule.

        The values of states are among the residuals.
        """
        fixed = tuple(self._fixed.values())
        ahead = self._ahead(forward_rule, lambda *args: forward_rule(*self._whole(args)), self._arguments)
        pair, pulled = (None if ahead is None else ahead.out_avals[0]), None
        if isinstance(pair, tuple | list) and len(pair) == 2:
            pull = lambda residuals, cotangents: self._pull(backward_rule, {}, (*fixed, residuals, cotangents))
            pulled = self._ahead(backward_rule, pull, (pair[1], jax.tree.map(_tangent_type, pair[0])), 0)

        def forward(*args: Any) -> Any:
            values, args = self._split(args)
            if self._has_flags:  # as with `symbolic_zeros`, each leaf says if it moves
                values = {state: primal_values(value) for state, value in values.items()}
            if ahead is not None:
                results = self._checked(ahead).apply(args, {}, values)
            else:
                free = primal_values(args) if self._has_flags else args
                results, entered = self._lifted(forward_rule, values, self._whole(args), free)
                values = entered if self._found is None else values
            self._known = list(values)
            return _with_states(results, lambda residuals: (residuals, list(values.values())))

        def backward(residuals: Any, cotangents: Any) -> Any:
            residuals, values = residuals
            known = dict(zip(self._known, values, strict=True))
            if pulled is not None:
                cts = pulled.apply((residuals, cotangents[0]), {}, known)[0]
            else:
                cts = self._pull(backward_rule, known, (*fixed, residuals, cotangents[0]))
            zeros = jax.tree.map(zero_tangent, values[: len(self._inputs)])
            return (*zeros, *cts) if isinstance(cts, tuple | list) else cts

        return [as_function(forward_rule, forward), as_function(backward_rule, backward)]

    def remat(self, forward_rule: Function, rematerialization: Function, backward_rule: Function) -> list[Function]:
        """The rules of `defremat`; the second one gives the values of states to the backward rule."""

        def forward(*args: Any) -> Any:
            values, args = self._split(args)
            results, _ = self._lifted(forward_rule, values, self._whole(args), args)
            return _with_states(results, lambda residuals: residuals)

        def again(residuals: Any, *args: Any) -> Any:
            return self.vjp(functools.partial(rematerialization, residuals), backward_rule)[0](*args)

        backward = self.vjp(forward_rule, backward_rule)[1]
        return [as_function(forward_rule, forward), as_function(rematerialization, again), backward]

    def _pull(self, rule: Function, known: Mapping[State, Any], args: tuple[Any, ...]) -> Any:
        """What a backward rule returns."""
        written = set((self._found or self._outcome).written)
        gone = lambda state: StateTraceError.read_in_backward_rule(state) if state in written else self._is_gone(state)
        lift = Lift(rule, lambda: RuleFrame(gone))
        return lift.leave(*lift.call({s: value for s, value in known.items() if s not in written}, args, {}))

    def jvp(self, rule: Function) -> list[Function]:
        """The forward-mode rule; what is written has no tangent."""
        fixed, free = tuple(self._fixed.values()), self._arguments
        given = free, jax.tree.map(_tangent_type, free)
        ahead = self._ahead(rule, lambda primals, tangents: rule(*fixed, primals, tangents), given, 2)

        def jvp(primals: Any, tangents: Any) -> Any:
            values, primals = self._split(primals)
            pair = primals, tuple(tangents[len(values) :])
            if ahead is not None:
                results = self._checked(ahead).apply(pair, {}, values)
            else:
                pair = [reveal(part, self._objects) for part in pair]
                results, _ = self._lifted(rule, values, (*fixed, *pair), primals)
            return _with_states(results, lambda dots: (dots, *jax.tree.map(zero_tangent, results[1:])))

        return [as_function(rule, jvp)]

    def finish(self, inputs: Any, out: Any, written: Any, born: Any) -> Any:
        """After JAX has returned: hands the writes on and returns the output; `inputs` are those of JAX's function."""
        self._is_over = True
        # What is written has no derivative. JAX takes all results of a rule for moving.
        return (self._found or self._outcome).finish(out, *without_tangent((written, born), inputs))

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
        if self._found is None or not self._is_over:
            return None
        return StateTraceError(
            f"The derivative rule reads {describe(state)}, which the function itself does not read. The rule runs "
            "after the call, when the value is no longer available.\n"
            "Read the state in the function as well, or pass its value as an argument."
        )

    def _lifted(
        self, fun: Function, values: Mapping[State, Any], args: tuple[Any, ...], free: Any
    ) -> tuple[Any, dict[State, Any]]:
        """The results of the function or its rule, and the values of states that came from outside.

        `free` are the arguments of the function that are not fixed, the objects among them hidden.
        """
        frames: list[RuleFrame] = []  # not kept: a frame knows the one around it, whose trace ends before JAX is done

        def make() -> Frame:
            frames.append(RuleFrame(self._is_gone))
            return frames[-1]

        lift = Lift(fun, make, called_from=self._called_from)
        results = lift.call(values, args, {})
        self._outcome = self._checked(lift.outcome)
        frame = frames.pop()
        if frame.lost and self._found is None:
            # A rule may read more than its function does, whose derivative by such a state is zero.
            read = self._call(self._fun, lambda *args: self._fun(*self._whole(args)), free).reads
            for state in read if fun is not self._fun else frame.lost:
                if state in frame.lost:
                    raise self._refusal(state)
        return results, frame.entered

    def _checked(self, ruled: Any) -> Any:
        """What a rule did, if it has written the states that its function writes."""
        if self._found is not None and ruled.written != self._found.written:
            where = getattr(self._fun, "__qualname__", "custom rule")
            names = lambda states: ", ".join(describe(state) for state in states) or "no state"
            raise StateStructureError(
                f"{where}: the function writes {names(self._found.written)}, but its rule writes "
                f"{names(ruled.written)}. The rule runs in place of the function, so it has to "
                "write the same states: call the function's own helper in both."
            )
        return ruled


def _tangent_type(x: Any) -> Any:
    """The type of a tangent or cotangent of an argument or output."""
    return typeof(x) if is_differentiable(x) else np.zeros(np.shape(x), jax.dtypes.float0)


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
