"""One call of a function with a derivative rule: how it, its rule and the states meet in JAX's custom rules.

Where JAX runs the function or its rule at once, so do we: what they read of states comes in as a primal, since a rule
says how gradients flow through the arguments only, and what they write is a second output, which the rule does not see.

Where JAX stages the function, its rule is called when the program is differentiated, which may be long after. So the
function is traced first, and the states that it reads become arguments, with cotangents that are zero.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from .._jaxcompat import has_tracer, lowered, typeof
from .._state.errors import StateStructureError, StateTraceError
from .._state.frame import Frame, leave
from .._state.state import State
from .._trace.arguments import is_by_reference
from .._trace.lift import Lift
from .._trace.record import Call
from .._trace.stage import trace
from .._trace.tracebacks import hide_frames

Function = Callable[..., Any]


@jax.tree_util.register_static
class Held:
    """In the place of an object among the arguments, for the time of one call."""

    __slots__ = ("obj",)

    def __init__(self, obj: Any) -> None:
        self.obj = obj

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Held) and self.obj is other.obj

    def __hash__(self) -> int:
        return id(self.obj)


def hold(args: Any) -> Any:
    """Arguments with a `Held` in the place of each object."""
    return jax.tree.map(lambda leaf: Held(leaf) if is_by_reference(leaf) else leaf, args)


def release(args: Any) -> Any:
    """The reverse."""
    is_held = lambda leaf: isinstance(leaf, Held)
    return jax.tree.map(lambda leaf: leaf.obj if is_held(leaf) else leaf, args, is_leaf=is_held)


class RuleFrame(Frame):
    """A frame for a function or a rule that JAX runs at once; `entered` are the states read and their values."""

    def __init__(self) -> None:
        super().__init__()
        self.entered: dict[State, Any] = {}

    def enter(self, state: State) -> Any:
        value = super().enter(state)
        if not state.static:
            value = self.entered[state] = lowered(value)
        return value


class LateFrame(Frame):
    """A frame for a rule that is called after the function's call is over: what was not passed to it is gone."""

    def enter(self, state: State) -> Any:
        if not state.static:
            raise StateTraceError.read_in_rule_only(state)
        return super().enter(state)


class BackwardFrame(Frame):
    """A frame for a backward rule.

    Args:
      values: what the forward rule knew of states.
      written: the states that the call wrote; what they hold now is another value.
    """

    def __init__(self, values: dict[State, Any], written: set[State]) -> None:
        super().__init__()
        self._values, self._written = values, written

    def enter(self, state: State) -> Any:
        if state in self._written:
            raise StateTraceError.read_in_backward_rule(state)
        return self._values[state] if state in self._values else super().enter(state)


class RuleCall:
    """A call that JAX runs at once; its arguments are those of the user.

    Args:
      fun: the function.
      n_fixed: how many arguments `nondiff_argnums` names; JAX puts them first in the arguments of rules.
    """

    def __init__(self, fun: Function, n_fixed: int) -> None:
        self._fun, self._n_fixed = fun, n_fixed
        self._reads: list[State] = []
        self._written: set[State] = set()
        self._outcome: Any = None

    def run(self, *args: Any) -> Any:
        """The function: `(out, written, born)`."""
        return self._lifted(self._fun, args, {}, RuleFrame)[0]

    def forward(self, rule: Function) -> Function:
        """The forward rule: `((out, written, born), residuals)`, with the values of states among the residuals."""

        def forward(*args: Any) -> Any:
            results, frame = self._lifted(rule, args, {}, RuleFrame)
            assert isinstance(frame, RuleFrame)
            self._reads = list(frame.entered)
            return _forward(results, list(frame.entered.values()))

        return forward

    def backward(self, rule: Function) -> Function:
        """The backward rule, with the cotangents of what the function returned."""
        n = self._n_fixed
        return lambda *args: self._back(rule, args[:n], args[n], args[n + 1 :])

    def jvp(self, rule: Function) -> Function:
        """The forward-mode rule; what is written has no tangent."""
        return lambda *args: _tangents(self._lifted(rule, args, {}, RuleFrame)[0])

    def finish(self, out: Any, written: Any, born: Any) -> Any:
        """After JAX has returned: hands the writes on and returns the output."""
        return self._outcome.finish(out, written, born)

    def _lifted(self, fun: Function, args: tuple[Any, ...], values: Any, kind: type[Frame]) -> tuple[Any, Frame]:
        frames: list[Frame] = []  # not kept: a frame knows the one around it, whose trace ends before JAX lets us go

        def make() -> Frame:
            frames.append(kind())
            return frames[0]

        lift = Lift(fun, make)
        results = lift.call(values, release(args), {})
        assert lift.outcome is not None
        self._outcome = lift.outcome
        self._written = set(lift.outcome.written)
        return results, frames.pop()

    def _back(self, rule: Function, fixed: tuple[Any, ...], residuals: Any, rest: tuple[Any, ...]) -> Any:
        residuals, values = residuals
        cotangents, *accumulators = rest
        with BackwardFrame(dict(zip(self._reads, values, strict=True)), self._written) as frame:
            out = rule(*release(fixed), residuals, cotangents[0], *accumulators)
        leave(frame.written().items(), frame.survivors().items(), frame.sites)
        return out


class StagedRuleCall(RuleCall):
    """A call that JAX may stage; its arguments are the values of the states, and those that are not fixed.

    Args:
      fun: the function, called with all arguments.
      args: these.
      nondiff: the positions of the fixed ones.
    """

    def __init__(self, fun: Function, args: tuple[Any, ...], nondiff: tuple[int, ...]) -> None:
        super().__init__(fun, len(nondiff))
        self._n_args = len(args)
        self._fixed = {i: args[i] for i in nondiff}
        free = hold(tuple(arg for i, arg in enumerate(args) if i not in self._fixed))
        self._concrete = [None if has_tracer(leaf) else leaf for leaf in jax.tree.leaves(free)]
        record = trace(as_function(fun, lambda *primals: fun(*self._whole(primals))), free, {})
        values: Any = record.values(record.states)
        self._record = Call(record, record.states, [], [], record.objects_at(()))
        self._reads = self._record.reads
        self._is_over = False
        self._arguments: Any = (jax.tree.unflatten(record.read_tree, values), *free)

    def take_arguments(self) -> tuple[Any, ...]:
        """The arguments for JAX's function. They are not kept: JAX may hold on to the rules, and so to this object."""
        arguments, self._arguments = self._arguments, None
        return arguments

    def _whole(self, primals: Any) -> tuple[Any, ...]:
        """The user's arguments. Python may decide on those that are known, as where JAX runs a rule at once."""
        leaves, treedef = jax.tree.flatten(tuple(primals))
        pairs = zip(leaves, self._concrete, strict=True)
        leaves = [leaf if known is None or hasattr(leaf, "perturbed") else known for leaf, known in pairs]
        given = iter(release(treedef.unflatten(leaves)))
        return tuple(self._fixed[i] if i in self._fixed else next(given) for i in range(self._n_args))

    def run(self, *args: Any) -> Any:
        values, *primals = args
        return self._record.apply(tuple(primals), {}, dict(zip(self._reads, values, strict=True)))

    def _with(self, rule: Function, args: tuple[Any, ...], values: list[Any]) -> Any:
        states = dict(zip(self._reads, values, strict=True))
        results, _ = self._lifted(rule, args, states, LateFrame if self._is_over else RuleFrame)
        if self._outcome.written != self._record.written:
            where = getattr(self._fun, "__qualname__", "custom rule")
            raise StateStructureError.rule(where, self._record.written, self._outcome.written)
        return results

    def forward(self, rule: Function) -> Function:
        def forward(values: Any, *primals: Any) -> Any:
            values = [getattr(value, "value", value) for value in values]  # with symbolic zeros
            return _forward(self._with(rule, self._whole(primals), values), values)

        return forward

    def backward(self, rule: Function) -> Function:
        def backward(residuals: Any, *rest: Any) -> Any:
            cotangents, *accumulators = rest
            cts = self._back(rule, tuple(self._fixed.values()), residuals, (cotangents, *accumulators[1:]))
            zeros = jax.tree.map(zero, residuals[1])
            return (zeros, *cts) if isinstance(cts, tuple | list) else cts

        return backward

    def jvp(self, rule: Function) -> Function:
        def jvp(primals: Any, tangents: Any) -> Any:
            values, *primals = primals
            args = (*self._fixed.values(), release(tuple(primals)), release(tuple(tangents[1:])))
            return _tangents(self._with(rule, args, values))

        return jvp

    def finish(self, out: Any, written: Any, born: Any) -> Any:
        self._is_over = True
        return self._record.finish(out, written, born)


def _forward(results: Any, values: list[Any]) -> Any:
    out, written, born = results
    if not isinstance(out, tuple | list) or len(out) != 2:
        return out  # JAX says what is wrong
    return (out[0], written, born), (out[1], values)


def _tangents(results: Any) -> Any:
    out, written, born = results
    if not isinstance(out, tuple | list) or len(out) != 2:
        return out  # JAX says what is wrong
    return (out[0], written, born), (out[1], *jax.tree.map(zero, (written, born)))


def zero(value: Any) -> Any:
    """A zero tangent; float0 for a dtype that has no tangent."""
    aval = typeof(value)
    if jax.numpy.issubdtype(aval.dtype, jax.numpy.inexact):
        return jax.numpy.zeros(aval.shape, aval.dtype)
    return np.zeros(aval.shape, jax.dtypes.float0)


def as_function(fun: Function, pure: Function) -> Function:
    """`pure` with the name and signature of `fun`; as in JAX, a partial object takes no keywords."""

    @functools.wraps(fun, assigned=("__name__", "__qualname__", "__doc__", "__module__"), updated=())
    def named(*args: Any) -> Any:
        try:
            return pure(*args)
        except Exception as error:
            hide_frames(error)
            raise

    if isinstance(fun, functools.partial):
        del named.__wrapped__  # type: ignore[attr-defined]
    return named
