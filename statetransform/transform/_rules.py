"""One call of a function with a derivative rule: how it, its rule and the states meet in JAX's custom rules.

A rule says how gradients flow through the arguments only, so what the function reads of states comes in without
tangents, and what it writes is a second output, which the rule does not see.

This is a hybrid of two engines. Where JAX runs the function or its rule at once, so do we, as `Direct` does. Where JAX
stages the function, its rule is called when the program is differentiated, which may be long after, and for other
objects of equal structure. So the function and its rules are traced first, as by `Staged`, and the states that they
read become arguments, with cotangents that are zero. No trace is kept for the next call, since JAX keeps the rule.
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
    """One call, as the pure function and the rules that JAX's `custom_vjp` or `custom_jvp` takes.

    In the order of `CustomRule._call`: `stage` traces the function, if JAX may stage it; `vjp`, `jvp` or `remat` make
    JAX's rules of the user's; `take_arguments` gives what JAX's function, `run`, is called with; `finish` hands on what
    it has written. For example, if `f(k, x)` has `nondiff_argnums=0`, reads `w`, writes `n`, and is staged:

        the user's                              JAX's
        f(k, x) -> out                          run(w, x) -> (out, [n], [])
        fwd(k, x) -> out, res                   forward(w, x) -> (out, [n], []), (res, [w])
        bwd(k, res, ct_out) -> (ct_x,)          backward((res, [w]), (ct_out, [ct_n], [])) -> (0, ct_x)

    If it runs at once, `w` is no argument. The function and the forward rule read it in their frames, and the forward
    rule still leaves its value to the backward rule.

    Args:
      fun: the function.
      args: the user's arguments.
      nondiff: the positions of the fixed ones, which JAX puts first in the arguments of rules.
      symbolic_zeros: whether rules hear which arguments have a tangent. That is not known before JAX calls them.
    """

    def __init__(self, fun: Function, args: tuple[Any, ...], nondiff: tuple[int, ...], symbolic_zeros: bool) -> None:
        self._fun, self._n_args, self._called_from = fun, len(args), trace_state()
        self._fixed = {i: args[i] for i in nondiff}
        free, self._objects = hide(tuple(arg for i, arg in enumerate(args) if i not in self._fixed))
        self._free: Any = free  # the other arguments, without the objects among them; None once JAX has them
        self.n_rule_args = len(nondiff) + 2  # of a backward or forward-mode rule
        self._symbolic_zeros = symbolic_zeros
        self._staged: Call | None = None  # the trace of the function, if JAX may stage it
        self._traces_rules = False  # whether rules are traced before JAX calls them
        self._inputs: list[State] = []  # the states whose values are arguments of `run`
        self._residual_states: list[State] = []  # those whose values the forward rule leaves to the backward rule
        self._outcome: Any = None  # what the function did, or the rule in its place
        self._is_over = False

    def stage(self, traces_rules: bool) -> None:
        """Traces the function, since JAX may stage it; else JAX runs the function or its rule at once."""
        self._traces_rules = traces_rules and not self._symbolic_zeros
        pure = lambda *args: self._fun(*self._all_arguments(args))
        self._staged = self._outcome = self._trace(self._fun, pure, self._free)
        self._inputs = self._staged.reads

    def _trace(self, fun: Function, pure: Function, args: Any, copies: int = 1) -> Call:
        """The trace of the function or a rule.

        `pure` takes flat arguments. Objects that go by reference are among them `copies` times: twice for a
        forward-mode rule, as primals and as tangents.
        """
        traced = trace(as_function(fun, pure), args, {}, self._objects * copies)
        return Call(traced, traced.states, [], [], traced.objects_at(()))

    def _trace_rule(self, rule: Function, pure: Function, args: Any, copies: int = 1) -> Call | None:
        """The trace of a rule, whose reads become arguments; None for a rule that has to run where JAX calls it."""
        if not self._traces_rules:
            return None
        depth, around = _within.get()
        frame = innermost()
        if depth == _ORDER:
            while frame is not None and frame is not around:
                frame.is_kept, frame = False, frame.parent
            return None
        token = _within.set((depth + 1, frame))
        try:
            call = self._trace(rule, pure, args, copies)
        except Exception:  # JAX calls a rule only if the function is differentiated, so it is no error of this call
            return None
        finally:
            _within.reset(token)
        self._inputs = [*dict.fromkeys([*self._inputs, *call.reads])]
        return call

    def take_arguments(self) -> tuple[Any, ...]:
        """The arguments for `run`. They are not kept: JAX may hold on to the rules, and so to this object."""
        free, self._free = self._free, None
        values = dict(zip(self._inputs, look_at_all(self._inputs), strict=True))
        if self._staged is not None:
            read = {state: values[state] for state in self._staged.reads}
            seen, free = undifferentiated(read, free, self._differentiated)
            values.update(zip(read, seen, strict=True))
        return (*values.values(), *free)

    def run(self, *args: Any) -> Any:
        """The function: `(out, written, born)`."""
        values, args = self._split(args)
        if self._staged is not None:
            return self._staged.apply(args, {}, values)
        return self._run_directly(self._fun, values, self._all_arguments(args), args)[0]

    def vjp(self, forward_rule: Function, backward_rule: Function) -> list[Function]:
        """The forward rule: `((out, written, born), residuals)`, and the backward rule.

        The values of states are among the residuals.
        """
        fixed = tuple(self._fixed.values())
        traced = self._trace_rule(forward_rule, lambda *args: forward_rule(*self._all_arguments(args)), self._free)
        pair, traced_back = (None if traced is None else traced.out_avals[0]), None
        if isinstance(pair, tuple | list) and len(pair) == 2:
            pull = lambda residuals, cotangents: self._pull(backward_rule, {}, (*fixed, residuals, cotangents))
            given = pair[1], jax.tree.map(_tangent_type, pair[0])
            traced_back = self._trace_rule(backward_rule, pull, given, 0)

        def forward(*args: Any) -> Any:
            values, args = self._split(args)
            if self._symbolic_zeros:  # each leaf says if it has a tangent
                values = {state: primal_values(value) for state, value in values.items()}
            if traced is not None:
                results = self._same_writes(traced).apply(args, {}, values)
            else:
                free = primal_values(args) if self._symbolic_zeros else args
                results, entered = self._run_directly(forward_rule, values, self._all_arguments(args), free)
                values = entered if self._staged is None else values
            self._residual_states = list(values)
            return _with_states(results, lambda residuals: (residuals, list(values.values())))

        def backward(residuals: Any, cotangents: Any) -> Any:
            residuals, values = residuals
            known = dict(zip(self._residual_states, values, strict=True))
            if traced_back is not None:
                cts = traced_back.apply((residuals, cotangents[0]), {}, known)[0]
            else:
                cts = self._pull(backward_rule, known, (*fixed, residuals, cotangents[0]))
            zeros = jax.tree.map(zero_tangent, values[: len(self._inputs)])
            return (*zeros, *cts) if isinstance(cts, tuple | list) else cts

        return [as_function(forward_rule, forward), as_function(backward_rule, backward)]

    def remat(self, forward_rule: Function, rematerialization: Function, backward_rule: Function) -> list[Function]:
        """The rules of `defremat`; the second one gives the values of states to the backward rule."""

        def forward(*args: Any) -> Any:
            values, args = self._split(args)
            results, _ = self._run_directly(forward_rule, values, self._all_arguments(args), args)
            return _with_states(results, lambda residuals: residuals)

        def again(residuals: Any, *args: Any) -> Any:
            return self.vjp(functools.partial(rematerialization, residuals), backward_rule)[0](*args)

        backward = self.vjp(forward_rule, backward_rule)[1]
        return [as_function(forward_rule, forward), as_function(rematerialization, again), backward]

    def jvp(self, rule: Function) -> list[Function]:
        """The forward-mode rule; what is written has no tangent."""
        fixed, free = tuple(self._fixed.values()), self._free
        given = free, jax.tree.map(_tangent_type, free)
        traced = self._trace_rule(rule, lambda primals, tangents: rule(*fixed, primals, tangents), given, 2)

        def jvp(primals: Any, tangents: Any) -> Any:
            values, primals = self._split(primals)
            pair = primals, tuple(tangents[len(values) :])
            if traced is not None:
                results = self._same_writes(traced).apply(pair, {}, values)
            else:
                pair = [reveal(part, self._objects) for part in pair]
                results, _ = self._run_directly(rule, values, (*fixed, *pair), primals)
            return _with_states(results, lambda dots: (dots, *jax.tree.map(zero_tangent, results[1:])))

        return [as_function(rule, jvp)]

    def finish(self, inputs: Any, out: Any, written: Any, born: Any) -> Any:
        """After JAX has returned: hands the writes on and returns the output; `inputs` are the arguments of `run`."""
        self._is_over = True
        # What is written has no derivative. JAX takes all results of a rule for moving.
        return self._outcome.finish(out, *without_tangent((written, born), inputs))

    def _split(self, args: Any) -> tuple[dict[State, Any], tuple[Any, ...]]:
        """The values of the states and the free arguments, from the arguments of `run`."""
        n = len(self._inputs)
        return dict(zip(self._inputs, args[:n], strict=True)), tuple(args[n:])

    def _all_arguments(self, free: Any) -> tuple[Any, ...]:
        """The user's arguments, from those that are not fixed."""
        given = iter(reveal(free, self._objects))
        return tuple(self._fixed[i] if i in self._fixed else next(given) for i in range(self._n_args))

    def _run_directly(
        self, fun: Function, values: Mapping[State, Any], args: tuple[Any, ...], free: Any
    ) -> tuple[Any, dict[State, Any]]:
        """The results of the function or its rule, and the values of states that came from outside.

        `free` are the arguments of the function that are not fixed, the objects among them hidden.
        """
        frames: list[RuleFrame] = []  # not kept: a frame knows the one around it, whose trace ends before JAX is done

        def make() -> Frame:
            frames.append(RuleFrame(self._gone))
            return frames[-1]

        lift = Lift(fun, make, called_from=self._called_from)
        results = lift.call(values, args, {})
        outcome, frame = self._same_writes(lift.outcome), frames.pop()
        if self._staged is None:
            self._outcome = outcome
        if frame.lost and self._staged is None:
            # A rule may read more than its function does, whose derivative by such a state is zero.
            read = self._trace(self._fun, lambda *args: self._fun(*self._all_arguments(args)), free).reads
            for state in read if fun is not self._fun else frame.lost:
                if state in frame.lost:
                    raise self._differentiated(state)
        return results, frame.entered

    def _pull(self, rule: Function, known: Mapping[State, Any], args: tuple[Any, ...]) -> Any:
        """What a backward rule returns, given the values of states that are known from the forward rule."""
        written = set(self._outcome.written)
        gone = lambda state: StateTraceError.read_in_backward_rule(state) if state in written else self._gone(state)
        lift = Lift(rule, lambda: RuleFrame(gone))
        return lift.leave(*lift.call({s: value for s, value in known.items() if s not in written}, args, {}))

    def _differentiated(self, state: State) -> StateTraceError:
        """The error for a state with a tangent, for which the rule has no derivative."""
        return StateTraceError.differentiated_in_rule(name_of(self._fun), state)

    def _gone(self, state: State) -> StateTraceError | None:
        """The error for a state that a rule reads after the call is over, and the function does not; else None."""
        if self._staged is None or not self._is_over:
            return None
        return StateTraceError(
            f"The derivative rule reads {describe(state)}, which the function itself does not read. The rule runs "
            "after the call, when the value is no longer available.\n"
            "Read the state in the function as well, or pass its value as an argument."
        )

    def _same_writes(self, ruled: Any) -> Any:
        """What a rule did, if it has written the states that its function writes."""
        if self._staged is not None and ruled.written != self._staged.written:
            where = getattr(self._fun, "__qualname__", "custom rule")
            names = lambda states: ", ".join(describe(state) for state in states) or "no state"
            raise StateStructureError(
                f"{where}: the function writes {names(self._staged.written)}, but its rule writes "
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
