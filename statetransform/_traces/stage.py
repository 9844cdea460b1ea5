"""One trace: states become inputs when they are first read.

A transform that stages needs a pure function whose states are explicit inputs and outputs, but which
states those are is only known after the body has run. So the body is traced once, by `jax.make_jaxpr`;
the first read of a state binds a private primitive without operands *in the trace of the frame itself*,
however deep in JAX transforms the read stands; afterwards those equations become inputs of the jaxpr.

A JAX transform that gives the body values of other types is applied to the body, within that one trace (`around=`):
states are then operands of its equation like everything that its function closes over. A checkpoint does not, so it is
applied to the program, after the trace (`around_program=`): nested ones take less of Python's stack. In both cases,
calling the trace re-binds one equation, not the body's.
"""

from __future__ import annotations

import contextlib
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend.core as jex

from .._base.errors import StateTraceError, describe
from .._base.functions import code_of, name_of, named_like
from .._jax import bind_in, close_over_inputs, named_as, take_current_trace, trace_state, typeof
from .._states import pytrees
from .._states.adapters import as_state
from .._states.frame import Frame, innermost, trace_around
from .._states.raw_reads import Fresh
from .._states.state import State
from .arguments import reveal
from .concretization import CONCRETIZATION_ERRORS, Culprit
from .large_stack import thread, with_large_stack
from .outcome import pack
from .shardings import Places, sharding_of
from .trace import Trace

read_p = jex.Primitive("read_state")
read_p.multiple_results = True


@read_p.def_abstract_eval
def _read_abstract(*, position: int, avals: tuple[Any, ...]) -> list[Any]:
    return list(avals)


class StagedFrame(Frame):
    """A frame whose states become inputs of the jaxpr that is being traced."""

    def __init__(self, is_lifted: Callable[[State], bool] | None = None, places: Places | None = None) -> None:
        super().__init__()
        self.reads: dict[State, tuple[Any, tuple[Any, ...]]] = {}  # with tree definition and abstract values
        self.statics: dict[State, Any] = {}
        self.leaves: list[Any] = []  # of the states read
        self.placed: list[Any] = []  # the same, or what stands for them where the transform puts them somewhere
        self.constants: dict[State, list[Any]] = {}  # states left out of the lift, with their leaves
        self._is_lifted, self._places = is_lifted, places

    def enter(self, state: State) -> Any:
        # As `super().enter`, which would be a frame of Python's stack for each transform that the read goes through.
        value = state._cell.read_around(self, state)
        if state._static:
            self.statics[state] = value
            return value
        leaves, treedef = jax.tree.flatten(value)
        if self._is_lifted is not None and not self._is_lifted(state):
            self.constants[state] = leaves
            return value
        avals = tuple([self.type_of_input(leaf) for leaf in leaves])
        inputs = bind_in(self.trace, read_p, avals, position=len(self.reads)) if leaves else []
        placed = leaves if self._places is None else self._places.of_state(state, value)
        self.outside.update(zip(map(id, inputs), placed, strict=True))
        self.leaves += leaves
        self.placed += placed
        self.reads[state] = (treedef, avals)
        return treedef.unflatten(inputs)

    def type_of_input(self, leaf: Any) -> Any:
        """The type of the input that stands for a leaf of a state's value."""
        return typeof(leaf)

    def over_reads(self, closed: Any) -> tuple[Any, Any, list[str]]:
        """A jaxpr from the frame's trace, of which the states read are inputs; its constants, and their names."""
        names = [name for state, (_, avals) in self.reads.items() for name in [describe(state)] * len(avals)]
        return *close_over_inputs(closed, read_p, [avals for _, avals in self.reads.values()], names), names

    def check_write(self, state: State) -> None:
        super().check_write(state)
        if self._is_lifted is not None and state not in self.born and not self._is_lifted(state):
            raise StateTraceError(
                f"{describe(state)} is written inside a function whose `states=` argument does not include it, "
                "so its value is a constant of the call. Nothing was changed.\n"
                "Add the state (or its kind) to `states=`, or leave `states=` out to lift every state."
            )


def trace(
    fun: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    objects: Sequence[Any] = (),
    around: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None,
    around_program: Callable[[Any, Any, Any], Callable[..., list[Any]]] | None = None,
    is_lifted: Callable[[State], bool] | None = None,
    is_pure: bool = False,
    places: Places | None = None,
) -> Trace:
    """Traces a function once, lifting the states that it uses.

    Args:
      fun: the function.
      args, kwargs: its arguments, or their abstract values, with static ones and objects hidden.
      objects: the hidden objects.
      around: a JAX transform to apply to the body within the trace.
      around_program: one to apply to what was traced: it takes a closed jaxpr from the leaves of the arguments and
        states read, `(args, kwargs)` and the results, both with abstract values as leaves, and gives a flat function.
      is_lifted: which states are lifted; the others are constants.
      is_pure: whether the caller threads the values explicitly.
      places: where the transform puts arguments and states; None for one that leaves them where they are.
    """
    attempt = Fresh(fun, innermost())
    while True:
        with attempt as is_fresh:
            tracing = _Tracing(fun, objects, around, around_program, is_lifted, is_pure, places, is_fresh)
            try:
                # Nested transforms come through here once for each, so the run stands in no function of its own.
                make = jax.make_jaxpr(tracing.runner(args, kwargs))
                try:
                    # States are no inputs yet, so JAX would take keys in them for used ones; it checks the trace later.
                    checks_keys = jax.config.jax_debug_key_reuse  # type: ignore[attr-defined]  # defined at import
                    with jax.debug_key_reuse(False) if checks_keys else contextlib.nullcontext():
                        # `with_large_stack` is itself a frame or two.
                        closed = (
                            make(*args, **kwargs) if thread.has_large_stack else with_large_stack(make, *args, **kwargs)
                        )
                except Exception as error:
                    tracing.refuse(error)
                    raise
                return tracing.trace_of(closed, args, kwargs)
            finally:
                vars(tracing).clear()  # the functions that JAX has traced may sit in its caches; this must not


class _Tracing:
    """One run of a function in a trace, with the transform around it."""

    frame: StagedFrame
    outcome: Any
    tree: Any  # the structure of what the body gives
    _leaves: list[Any]  # of the arguments
    _placed: list[Any]  # the same, or what stands for them where the transform puts them somewhere
    _over: tuple[Any, ...]  # weak references to JAX's traces of the body

    def __init__(
        self,
        fun: Any,
        objects: Sequence[Any],
        around: Any,
        around_program: Any,
        is_lifted: Any,
        is_pure: bool,
        places: Places | None,
        is_fresh: bool,
    ) -> None:
        self._fun, self._objects, self._places = fun, objects, places
        self._around, self._around_program = around, around_program
        self._is_lifted, self._is_fresh, self._is_pure = is_lifted, is_fresh, is_pure
        self._outer, self._called_from = trace_around(), trace_state()
        self._culprit: Culprit | None = None

    def refuse(self, error: Exception) -> None:
        """Raises what is to be said instead of an error, where the transform met no result of the body."""
        if self._culprit is not None and error is not self._culprit.error:
            raise self._culprit.annotated() from None

    def trace_of(self, closed: Any, args: Any, kwargs: Any) -> Trace:
        """The trace, from what JAX has traced."""
        if self.frame.constants and not self.frame.reads:
            _warn_of_nothing_lifted(self._fun, self.frame.constants)
        jaxpr, consts, names = self.frame.over_reads(closed)
        if self._culprit is not None:
            raise self._culprit.explained(jaxpr, names)
        arguments = jax.tree.map(typeof, (args, kwargs))
        if self._around_program is not None:
            jaxpr, consts = self._transformed(jaxpr, consts, arguments)
        trace = Trace(self.frame, self.outcome, arguments, jaxpr, consts, self.tree, self._over)
        if self.frame.depends_on_shardings:
            trace.shardings = tuple(map(sharding_of, [*self._leaves, *self.frame.leaves]))
        for state in map(as_state, consts):
            if any(state is other for other in trace.states):
                raise StateTraceError(
                    f"{describe(state)} is an argument of a raw JAX transform, inside a function that reads or "
                    "writes it as well: neither would see what the other writes. Nothing was changed.\n"
                    "Use the transform of the same name from `statetransform.transform` (`transform.jit`, ...) in "
                    "place of the `jax` one."
                )
        return trace

    def _transformed(self, jaxpr: Any, consts: Sequence[Any], arguments: Any) -> tuple[Any, Any]:
        """What the transform makes of a jaxpr with these constants: another one, and its constants."""
        placed = [*self._placed, *self.frame.placed]
        results = self.tree.unflatten([var.aval for var in jaxpr.outvars])
        closed = jex.ClosedJaxpr(jaxpr, list(consts))  # pyright: ignore[reportPrivateImportUsage]
        transformed = self._around_program(closed, arguments, results)

        def run(*inputs: Any) -> list[Any]:
            with Frame() as frame:
                frame.outside.update(zip(map(id, inputs), placed, strict=True))
                out = transformed(*inputs)
                self.frame.depends_on_shardings |= frame.depends_on_shardings
            return out

        new = jax.make_jaxpr(run)(*[var.aval for var in jaxpr.invars])
        return named_as(jaxpr, new.jaxpr), new.consts

    def runner(self, args: Any, kwargs: Any) -> Callable[..., Any]:
        """What JAX traces for these arguments: the transform around the body, in the frame."""
        self._leaves = self._placed = jax.tree.leaves((args, kwargs))
        if self._places is not None:
            self._placed = jax.tree.leaves((self._places.of_arguments(args), kwargs))

        @named_like(self._fun)
        def run(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = pytrees.detached((args, kwargs))
            self.frame = frame = StagedFrame(self._is_lifted, self._places)
            frame.is_fresh, frame.is_pure = self._is_fresh, self._is_pure
            with frame:
                frame.outer, frame.called_from = self._outer, self._called_from
                frame.outside.update(zip(map(id, jax.tree.leaves((args, kwargs))), self._placed, strict=True))
                body = self._body()
                results = (self._around(body) if self._around is not None else body)(*args, **kwargs)
                leaves, self.tree = jax.tree.flatten(results)
                return leaves

        return run

    def _body(self) -> Callable[..., Any]:
        """The user's function, with what it writes as further results."""
        fun = self._fun

        @named_like(self._fun)
        def body(*args: Any, **kwargs: Any) -> Any:
            is_over = not hasattr(self, "frame")
            if is_over or (hasattr(self, "outcome") and (self.frame.reads or self.frame.sites)):
                raise TypeError(
                    f"{name_of(fun)} is called a second time by the transform around it. `lift` takes transforms that "
                    "call their function once, since the states come in and go out with that call. Write "
                    "`transform.functionalize(f)`, and pass the values of the states as arguments."
                )
            frame = self.frame
            frame.runs_here()
            with take_current_trace() as here:
                traces = [here] if here is frame.trace else [here, frame.trace]
                del here
            args, kwargs = reveal((args, kwargs), self._objects)
            try:
                out = [self._fun(*args, **kwargs)]
            except CONCRETIZATION_ERRORS as error:
                self._culprit = Culprit(error, traces)
                return self._culprit.tracers
            del args, kwargs
            self._over = tuple(map(weakref.ref, traces))
            traces.clear()
            results, self.outcome = pack(frame, out.pop(), code_of(self._fun))
            frame.forget()  # the transform around the body ends before the frame does
            return results

        return body


def _warn_of_nothing_lifted(fun: Any, constants: Any) -> None:
    """Says that `states=` of a transform matches none of the states that a function reads."""
    used = ", ".join(map(describe, constants))
    text = f"`states=` matches none of the states that {name_of(fun)} reads, so all of them are constants: {used}."
    warnings.warn(text, stacklevel=2)
