"""One trace: states become inputs when they are first read.

A transform that stages needs a pure function whose states are explicit inputs and outputs, but which
states those are is only known after the body has run. So the body is traced once, by `jax.make_jaxpr`;
the first read of a state binds a private primitive without operands *in the trace of the frame itself*,
however deep in JAX transforms the read stands; afterwards those equations become inputs of the jaxpr.

The JAX transform may stand around the body during that one trace (`around=jax.checkpoint`): states are
then operands of its equation like everything that its function closes over, and calling the record
re-binds one equation, not the body's.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.extend.core as jex

from . import keys
from .arguments import refs_in, reveal, token_of
from .concretization import CONCRETIZATION_ERRORS, Culprit
from .errors import StateTraceError, describe
from .frame import Frame, read, read_outside
from .guard import Guard
from .jaxcompat import (
    ContextDict,
    Tracer,
    close_over_inputs,
    eval_jaxpr,
    set_current_trace,
    take_current_trace,
    typeof,
)
from .log import TraceLog
from .outcome import Layout, pack
from .room import with_room
from .state import State
from .values import Token

read_p = jex.Primitive("read_state")
read_p.multiple_results = True


@read_p.def_abstract_eval
def _read_abstract(*, state: Any, avals: tuple[Any, ...]) -> list[Any]:
    del state
    return list(avals)


class StagedFrame(Frame):
    """A frame whose states become inputs of the jaxpr that is being traced."""

    def __init__(self, is_lifted: Callable[[State], bool] | None = None, unwraps_keys: bool = False) -> None:
        super().__init__()
        self._unwraps_keys = unwraps_keys
        self._body_trace: Any = None
        self.reads: dict[State, tuple[Any, tuple[Any, ...]]] = {}  # with tree definition and abstract values
        self.inputs: list[Any] = []  # what the reads gave, for the time of the trace
        self.statics: dict[State, Any] = {}
        self.constants: dict[State, list[Any]] = {}  # states left out of the lift, with their leaves
        self._is_lifted = is_lifted
        with take_current_trace() as trace:
            self._trace: Any = trace

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self.inputs = []
        self.forget()
        self._trace = self._body_trace = None  # a frame that outlives its trace must not keep it

    def enter(self, state: State) -> Any:
        value = read_outside(self, state)
        if state._static:
            self.statics[state] = value
            return value
        leaves, treedef = jax.tree.flatten(value)
        if self._is_lifted is not None and not self._is_lifted(state):
            self.constants[state] = leaves
            return value
        avals = tuple(typeof(leaf) for leaf in leaves)
        with set_current_trace(self._trace):
            inputs = read_p.bind(state=state._token, avals=avals) if leaves else []
        self.reads[state] = (treedef, avals)
        self.inputs += inputs
        value = treedef.unflatten(inputs)
        if self._unwraps_keys:
            with set_current_trace(self._trace):
                value, rewrap = keys.unwrap(value)
            with set_current_trace(self._body_trace):
                value = rewrap(value)
        return value

    @property
    def traces(self) -> tuple[Any, Any]:
        """The trace of the body, and the one around it in which the inputs are."""
        return self._body_trace, self._trace

    def runs_here(self) -> None:
        super().runs_here()
        with take_current_trace() as trace:
            self._body_trace = trace

    def write(self, state: State, value: Any, site: tuple[str, int] | None = None) -> None:
        if self._is_lifted is not None and state not in self.born and not self._is_lifted(state):
            raise StateTraceError.not_lifted(state)
        super().write(state, value, site)


class Record:
    """One trace of a function: a jaxpr from arguments and states read to results.

    Attributes:
      layout: whose values the results are.
      read_tokens: the states read, in the order of their inputs.
      read_tree: the tree definition of the list of their values.
      read_avals: the abstract values of all their leaves.
      statics, constants: tokens with the values that the trace took for granted.
      out_tree: the tree definition of the results.
      guard: finds the states again from the function and the objects among its arguments.
    """

    def __init__(self, frame: StagedFrame, layout: Layout, jaxpr: Any, consts: Any, out_tree: Any) -> None:
        self.layout: Layout = layout
        self.signature: Any = None  # the types of the arguments that it was traced for
        self.arguments: Any = None  # the same as `(args, kwargs)`, with abstract values as leaves
        self.jaxpr: Any = jaxpr
        self.consts: Any = consts
        self.out_tree: Any = out_tree
        self.read_tokens: tuple[Token[State], ...] = tuple(state._token for state in frame.reads)
        self.read_tree: Any = jax.tree.structure([treedef.unflatten(avals) for treedef, avals in frame.reads.values()])
        self.read_avals: tuple[Any, ...] = tuple(aval for _, avals in frame.reads.values() for aval in avals)
        self.statics: tuple[tuple[Token[State], Any], ...] = tuple(
            (state._token, value) for state, value in frame.statics.items()
        )
        self.constants: tuple[tuple[Token[State], list[Any]], ...] = tuple(
            (state._token, leaves) for state, leaves in frame.constants.items()
        )
        self.is_reusable: bool = layout.is_reusable and not any(
            isinstance(leaf, Tracer) for leaf in [*consts, *[x for _, xs in self.constants for x in xs]]
        )

    @property
    def created(self) -> list[State]:
        """The states that a call makes; not those of any particular call."""
        return self.layout.created

    @property
    def in_avals(self) -> list[Any]:
        """The abstract values of the inputs: the arguments' leaves, then those of the states read."""
        return [var.aval for var in self.jaxpr.invars]

    @property
    def out_avals(self) -> Any:
        """The abstract values of the results, in their structure."""
        return self.out_tree.unflatten([var.aval for var in self.jaxpr.outvars])

    @property
    def reads(self) -> list[State]:
        """The states read, in the order of their inputs."""
        return [state for token in self.read_tokens if (state := token.get()) is not None]

    @property
    def written(self) -> list[State]:
        """The states written, in the order of their values."""
        return [state for token in self.layout.written if (state := token.get()) is not None]

    def call(self, args: Any, kwargs: Any, values: Mapping[State, Any]) -> Any:
        """Runs the jaxpr with the values of the states by state, of at least those read."""
        inputs = jax.tree.leaves([values[state] for state in self.reads])
        return self.bind(jax.tree.leaves((args, kwargs)), inputs)

    def values(self) -> list[Any] | None:
        """The current leaves of the states read, or None when the trace does not fit their types."""
        states = [token.get() for token in self.read_tokens]
        if None in states:
            return None
        leaves, treedef = jax.tree.flatten([read(state) for state in states if state is not None])
        if treedef != self.read_tree or not _same_avals(leaves, self.read_avals):
            return None
        for token, value in self.statics:
            state = token.get()
            if state is None or type(now := read(state)) is not type(value) or now != value:
                return None
        for token, constant in self.constants:
            state = token.get()
            now = jax.tree.leaves(read(state)) if state is not None else []
            if len(now) != len(constant) or any(a is not b for a, b in zip(now, constant, strict=True)):
                return None
        return leaves

    def bind(self, arguments: list[Any], values: list[Any]) -> Any:
        """Runs the jaxpr: results from the leaves of the arguments and of the states read."""
        return self.out_tree.unflatten(eval_jaxpr(self.jaxpr, self.consts, *arguments, *values))


def signature_of(arguments: Any) -> Any:
    """Structure, shapes, dtypes and weak types of arguments."""
    leaves, treedef = jax.tree.flatten(arguments)
    avals = [typeof(leaf) for leaf in leaves]
    return treedef, tuple((aval.shape, aval.dtype, aval.weak_type) for aval in avals)


def _same_avals(leaves: list[Any], avals: tuple[Any, ...]) -> bool:
    for leaf, aval in zip(leaves, avals, strict=True):
        now = typeof(leaf)
        if now is not aval and now != aval:
            return False
    return True


def trace(
    fun: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    around: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None,
    is_lifted: Callable[[State], bool] | None = None,
) -> Record:
    """Traces a function once, lifting the states that it uses.

    Args:
      fun: the function.
      args, kwargs: its arguments, or their abstract values, with static ones and objects hidden.
      around: a JAX transform to apply to the body within the trace.
      is_lifted: which states are lifted; the others are constants.
    """
    seen: dict[str, Any] = {"rewrap": lambda tree: tree}
    unwraps_keys = around is not None and keys.is_checking()

    @_named_like(fun)
    def run(*args: Any, **kwargs: Any) -> Any:
        @_named_like(fun)
        def body(*args: Any, **kwargs: Any) -> Any:
            frame.runs_here()
            args, kwargs = reveal(seen["rewrap"]((args, kwargs)))
            try:
                out = fun(*args, **kwargs)
            except CONCRETIZATION_ERRORS as error:
                seen["culprit"] = Culprit(error, frame.traces)
                return seen["culprit"].tracers
            results, seen["layout"] = pack(frame, out)
            frame.forget()  # the transform around the body ends before the frame does
            return results

        seen["frame"] = frame = StagedFrame(is_lifted, unwraps_keys)
        with frame:
            if unwraps_keys:
                (args, kwargs), seen["rewrap"] = keys.unwrap((args, kwargs))
            results = (around(body) if around is not None else body)(*args, **kwargs)
            leaves, seen["tree"] = jax.tree.flatten(results)
            # The inputs are also outputs for now, so that none of them is dropped as unused.
            return leaves, frame.inputs

    try:
        with keys.check_later():
            closed = with_room(lambda: jax.make_jaxpr(run)(*args, **kwargs))
        frame = seen["frame"]
        names = [describe(state) for state, (_, avals) in frame.reads.items() for _ in avals]
        is_read = lambda eqn: eqn.primitive is read_p
        jaxpr, consts = close_over_inputs(closed, is_read, names, seen["tree"].num_leaves)
        if "culprit" in seen:
            raise seen["culprit"].explained(jaxpr, names)
        record = Record(frame, seen["layout"], jaxpr, consts, seen["tree"])
        record.signature = signature_of((args, kwargs))
        record.arguments = jax.tree.map(typeof, (args, kwargs))
        return record
    finally:
        seen.clear()  # `body` and `run` may sit in JAX's caches; what they close over must not


def _named_like(fun: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """JAX's messages and profiles name the user's function and its arguments, not ours."""
    return functools.wraps(fun, assigned=("__name__", "__qualname__", "__doc__", "__module__"), updated=())


class TraceCache:
    """The records of one function, by what the trace depended on."""

    __slots__ = ("_records", "log")

    def __init__(self) -> None:
        self._records = ContextDict()
        self.log = TraceLog()

    def call(
        self,
        fun: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        around: Callable[..., Any] | None = None,
        is_lifted: Callable[[State], bool] | None = None,
    ) -> Any:
        """Runs a function through its record: enter, re-bind, leave."""
        leaves, record, values = self.find(fun, args, kwargs, around, is_lifted)
        return record.layout.finish(*record.bind(leaves, values))

    def find(
        self,
        fun: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        around: Callable[..., Any] | None = None,
        is_lifted: Callable[[State], bool] | None = None,
    ) -> tuple[list[Any], Record, list[Any]]:
        """The leaves of the arguments, the record that fits now, and the values of the states it reads."""
        leaves, treedef = jax.tree.flatten((args, kwargs))
        key = (treedef, tuple([typeof(leaf) for leaf in leaves]), keys.is_checking())
        slot = self._records.current()
        for record, guard, refs in slot.get(key, ()):
            if guard.resolve((fun, *[ref.get() for ref in refs])) is not None:
                values = record.values()
                if values is not None:
                    return leaves, record, values
        record = trace(fun, args, kwargs, around, is_lifted)
        self.log.add(record)
        values = record.values()
        if values is None:
            raise AssertionError("a record must fit the states it was just traced with")
        if record.is_reusable:
            self._remember(slot, key, fun, record)
        return leaves, record, values

    def _remember(self, slot: dict[Any, Any], key: Any, fun: Callable[..., Any], record: Record) -> None:
        objects = refs_in(key[0])
        guard = Guard((fun, *objects), states_of(record))
        entry = (record, guard, [token_of(obj) for obj in objects])
        slot[key] = [entry, *[entry for entry in slot.get(key, ()) if entry[1].is_alive]]
        for obj in objects:  # records about an object that is gone are of no use to anybody
            with contextlib.suppress(TypeError):
                weakref.finalize(obj, slot.pop, key, None).atexit = False

    def clear(self) -> None:
        """Forgets every trace."""
        self._records.clear()
        self.log.clear()


def states_of(record: Record) -> list[State]:
    """All the states that a record has to do with."""
    tokens = [*record.read_tokens, *record.layout.written, *[token for token, _ in record.statics]]
    tokens += [token for token, _ in (*record.layout.static_written, *record.constants)]
    return [state for token in dict.fromkeys(tokens) if (state := token.get()) is not None]
