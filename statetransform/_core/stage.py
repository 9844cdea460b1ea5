"""One trace: states become inputs when they are first read; and what is kept of it.

A transform that stages needs a pure function whose states are explicit inputs and outputs, but which
states those are is only known after the body has run. So the body is traced once, by `jax.make_jaxpr`;
the first read of a state binds a private primitive without operands *in the trace of the frame itself*,
however deep in JAX transforms the read stands; afterwards those equations become inputs of the jaxpr.

The JAX transform may stand around the body during that one trace (`around=jax.checkpoint`): states are
then operands of its equation like everything that its function closes over, and calling the record
re-binds one equation, not the body's.

A `Record` knows positions and no objects, so it serves all objects of the structure that it was traced for: it numbers
the states in use, those read first. A `Call` is a record together with the states that one call has found.
"""

from __future__ import annotations

import functools
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.extend.core as jex

from . import keys
from .arguments import is_reference, named_arguments, reveal
from .concretization import CONCRETIZATION_ERRORS, Culprit
from .errors import RetraceWarning, StateTraceError, describe
from .frame import Frame, as_ever, fresh, leave, read, read_outside, trace_around, user_site
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
from .match import Other, Settled, Structure, brief, said_of
from .outcome import Outcome, pack, reveal_output
from .room import with_room
from .state import State
from .structure import Recorder, identity, same_plain

read_p = jex.Primitive("read_state")
read_p.multiple_results = True


@read_p.def_abstract_eval
def _read_abstract(*, position: int, avals: tuple[Any, ...]) -> list[Any]:
    del position
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
            inputs = read_p.bind(position=len(self.reads), avals=avals) if leaves else []
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

    def check_write(self, state: State) -> None:
        super().check_write(state)
        if self._is_lifted is not None and state not in self.born and not self._is_lifted(state):
            raise StateTraceError.not_lifted(state)


class Record:
    """One trace of a function: a jaxpr from arguments and states read to results.

    Positions count the states in use; the first `len(read_trees)` of them are read.

    Attributes:
      signature: the types of the arguments that it was traced for.
      arguments: the same as `(args, kwargs)`, with abstract values as leaves.
      read_tree, read_avals: the tree definition of the list of the values read, and the abstract values of its leaves.
      written: the positions of the written states, in the order of their values.
      sites: where each of them was written.
      static_written, statics: positions with values that the trace wrote, or took for granted.
      constants: positions of states left out of the lift, with the leaves that the trace took for granted.
      out_tree: the tree definition of the results.
      out_objects: the registers of the objects in the output.
      structure: of the objects that it serves; None when it serves one call only.
      kept: what transforms keep with it.
    """

    def __init__(self, frame: StagedFrame, outcome: Outcome, jaxpr: Any, consts: Any, out_tree: Any) -> None:
        self.signature: Any = None
        self.arguments: Any = None
        self.jaxpr: Any = jaxpr
        self.consts: Any = consts
        self.out_tree: Any = out_tree
        self.n_reads: int = len(frame.reads)
        self.read_tree: Any = jax.tree.structure([treedef.unflatten(avals) for treedef, avals in frame.reads.values()])
        self.read_avals: tuple[Any, ...] = tuple(aval for _, avals in frame.reads.values() for aval in avals)
        others = [*outcome.written, *frame.statics, *[s for s, _ in outcome.static_written], *frame.constants]
        #: The states of the call that traced; `settle` lets go of them.
        self.states: list[State] = list(dict.fromkeys([*frame.reads, *others]))
        position = {state: i for i, state in enumerate(self.states)}
        self.written: tuple[int, ...] = tuple(position[state] for state in outcome.written)
        self.sites: dict[int, Any] = {position[s]: site for s, site in outcome.sites.items() if s in position}
        self.static_written: tuple[tuple[int, Any], ...] = tuple(
            (position[state], value) for state, value in outcome.static_written
        )
        self.statics: tuple[tuple[int, Any], ...] = tuple(
            (position[state], value) for state, value in frame.statics.items()
        )
        self.constants: tuple[tuple[int, list[Any]], ...] = tuple(
            (position[state], leaves) for state, leaves in frame.constants.items()
        )
        self.has_nodes: bool = outcome.has_nodes
        self.is_closed: bool = outcome.is_closed
        self._firsts: list[list[State]] = [outcome.born]
        self._blanks = [state._blank() for state in outcome.born]
        self.out_objects: tuple[int, ...] = ()
        self._objects: list[Any] | None = outcome.objects
        self.structure: Structure | None = None
        self.kept: dict[Any, Any] = {}
        self._out_avals: Any = None
        self._owners: list[Any] = []

    @property
    def has_births(self) -> bool:
        """Whether a call makes states."""
        return bool(self._blanks)

    @property
    def is_plain(self) -> bool:
        """Whether nothing but ordinary values of written states comes out."""
        return not (self._blanks or self.static_written or self.has_nodes)

    @property
    def created(self) -> list[State]:
        """The states that a call makes; not those of any particular call."""
        return list(self._firsts[0] if self._firsts else self._blanks)

    @property
    def in_avals(self) -> list[Any]:
        """The abstract values of the inputs: the arguments' leaves, then those of the states read."""
        return [var.aval for var in self.jaxpr.invars]

    @property
    def out_avals(self) -> Any:
        """The abstract values of the results, in their structure."""
        if self._out_avals is None:
            self._out_avals = self.out_tree.unflatten([var.aval for var in self.jaxpr.outvars])
        return self._out_avals

    def values(self, states: Sequence[State]) -> list[Any] | None:
        """The current leaves of the states read, or None when the trace does not fit their types."""
        leaves, treedef = jax.tree.flatten([read(state) for state in states[: self.n_reads]])
        if treedef != self.read_tree or not _same_avals(leaves, self.read_avals):
            return None
        if any(not same_plain_static(read(states[i]), value) for i, value in self.statics):
            return None
        for i, constant in self.constants:
            now = jax.tree.leaves(read(states[i]))
            if len(now) != len(constant) or any(a is not b for a, b in zip(now, constant, strict=True)):
                return None
        return leaves

    def bind(self, arguments: list[Any], values: list[Any]) -> Any:
        """Runs the jaxpr: results from the leaves of the arguments and of the states read."""
        return self.out_tree.unflatten(eval_jaxpr(self.jaxpr, self.consts, *arguments, *values))

    def settle(self, recorder: Recorder) -> Settled:
        """Decides after the trace whether it may be kept, and for which structure."""
        settled = Settled(recorder, self.states, self.jaxpr)
        structure = settled.structure
        if structure is None or not self.is_closed or self._has_tracers():
            return settled
        registers = [recorder.register_of(obj) for obj in self._objects or ()]
        if None not in registers:
            self.structure = structure
            self.out_objects = tuple(registers)  # type: ignore[arg-type]
        return settled

    def let_go(self) -> None:
        """Forgets the objects of the call that traced."""
        if self.structure is not None:
            self.states, self._objects = [], None

    def expires_with(self, roots: Sequence[Any], forget: Callable[[Record], None]) -> None:
        """Has the record forgotten when an object dies whose arrays are constants of the trace.

        The trace holds these arrays, so it would keep alive what nobody else can reach.
        """
        if self.structure is None or not (owners := self.structure.owners_of_arrays(roots)):
            return
        this = weakref.ref(self)

        def died(_: Any) -> None:
            record = this()
            if record is not None:
                forget(record)

        self._owners += [weakref.ref(owner, died) for owner in owners]

    def _has_tracers(self) -> bool:
        constants = [leaf for _, leaves in self.constants for leaf in leaves]
        return any(isinstance(leaf, Tracer) for leaf in [*self.consts, *constants])

    def objects_at(self, roots: Sequence[Any]) -> list[Any]:
        """The objects that stand in the output of a call."""
        if self._objects is not None:
            return self._objects
        if not self.out_objects:
            return []
        assert self.structure is not None
        found = self.structure.registers_at(roots)
        return [found[i] for i in self.out_objects]

    def births(self) -> list[State]:
        """The states that one call makes, without their values."""
        try:
            return self._firsts.pop()
        except IndexError:
            return [blank._blank() for blank in self._blanks]


class Call:
    """One call of a function through its record.

    Attributes:
      record: the trace.
      states: the states in use, by position.
      leaves: those of the arguments.
      values: the leaves of the states read.
      objects: those that stand in the output.
    """

    __slots__ = ("__weakref__", "leaves", "objects", "record", "states", "values")

    def __init__(
        self, record: Record, states: Sequence[State], leaves: list[Any], values: list[Any], objects: list[Any]
    ) -> None:
        self.record: Record = record
        self.states: Sequence[State] = states
        self.leaves: list[Any] = leaves
        self.values: list[Any] = values
        self.objects: list[Any] = objects

    def __repr__(self) -> str:
        made = f", {len(self.created)} created" if self.created else ""
        states = f"{len(self.reads)} states read, {len(self.written)} written{made}"
        return f"<trace of {len(self.record.in_avals)} inputs: {states}>"

    @property
    def reads(self) -> list[State]:
        """The states read, in the order of their inputs."""
        return list(self.states[: self.record.n_reads])

    @property
    def written(self) -> list[State]:
        """The states written, in the order of their values."""
        return [self.states[i] for i in self.record.written]

    @property
    def created(self) -> list[State]:
        """The states that a call makes; not those of any particular call."""
        return self.record.created

    @property
    def jaxpr(self) -> Any:
        """The jaxpr, from the arguments' leaves and the values read to the results."""
        return self.record.jaxpr

    @property
    def consts(self) -> Any:
        """The values of the jaxpr's constant variables."""
        return self.record.consts

    @property
    def in_avals(self) -> list[Any]:
        """The abstract values of the inputs: the arguments' leaves, then those of the states read."""
        return self.record.in_avals

    @property
    def out_avals(self) -> Any:
        """The abstract values of the results, in their structure."""
        return self.record.out_avals

    @property
    def sites(self) -> dict[State, Any]:
        """Where each written state was written."""
        return {self.states[i]: site for i, site in self.record.sites.items()}

    def apply(self, args: Any, kwargs: Any, values: Mapping[State, Any]) -> Any:
        """Runs the jaxpr with the values of the states by state, of at least those read."""
        inputs = jax.tree.leaves([values[state] for state in self.reads])
        return self.record.bind(jax.tree.leaves((args, kwargs)), inputs)

    def run(self) -> Any:
        """Binds the jaxpr, leaves the states to whoever is outside and returns the output."""
        return self.finish(*self.record.bind(self.leaves, self.values))

    def finish(self, out: Any, written: Sequence[Any], born: Sequence[Any]) -> Any:
        """Leaves the states to whoever is outside and returns the output; once for each call."""
        record, states = self.record, self.states
        births = record.births() if record.has_births else []
        pairs = [(states[i], value) for i, value in zip(record.written, written, strict=True)]
        pairs += [(states[i], value) for i, value in record.static_written]
        leave(pairs, zip(births, born, strict=True), self.sites)
        return reveal_output(out, births, self.objects) if record.has_nodes else out


def same_plain_static(x: Any, y: Any) -> bool:
    """Whether a static state's value is the one that a trace took for granted."""
    return x is y or same_plain(x, y)


def signature_of(arguments: Any) -> Any:
    """Structure, shapes, dtypes, weak types and shardings of arguments."""
    leaves, treedef = jax.tree.flatten(arguments)
    return treedef, tuple([typeof(leaf) for leaf in leaves])


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
    objects: Sequence[Any] = (),
    around: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None,
    is_lifted: Callable[[State], bool] | None = None,
) -> Record:
    """Traces a function once, lifting the states that it uses.

    Args:
      fun: the function.
      args, kwargs: its arguments, or their abstract values, with static ones and objects hidden.
      objects: the hidden objects.
      around: a JAX transform to apply to the body within the trace.
      is_lifted: which states are lifted; the others are constants.
    """
    return fresh(fun, lambda is_fresh: _trace(fun, args, kwargs, objects, around, is_lifted, is_fresh))


def _trace(
    fun: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    objects: Sequence[Any],
    around: Callable[[Callable[..., Any]], Callable[..., Any]] | None,
    is_lifted: Callable[[State], bool] | None,
    is_fresh: bool,
) -> Record:
    seen: dict[str, Any] = {"outer": trace_around(), "rewrap": lambda tree: tree}
    unwraps_keys = around is not None and keys.is_checking()

    @_named_like(fun)
    def run(*args: Any, **kwargs: Any) -> Any:
        @_named_like(fun)
        def body(*args: Any, **kwargs: Any) -> Any:
            frame.runs_here()
            args, kwargs = reveal(seen["rewrap"]((args, kwargs)), objects)
            try:
                out = fun(*args, **kwargs)
            except CONCRETIZATION_ERRORS as error:
                seen["culprit"] = Culprit(error, frame.traces)
                return seen["culprit"].tracers
            results, seen["outcome"] = pack(frame, out)
            frame.forget()  # the transform around the body ends before the frame does
            return results

        seen["frame"] = frame = StagedFrame(is_lifted, unwraps_keys)
        frame.is_fresh = is_fresh
        with frame:
            frame.outer = seen["outer"]
            if unwraps_keys:
                (args, kwargs), seen["rewrap"] = keys.unwrap((args, kwargs))
            results = (around(body) if around is not None else body)(*args, **kwargs)
            leaves, seen["tree"] = jax.tree.flatten(results)
            # The inputs are also outputs for now, so that none of them is dropped as unused.
            return leaves, frame.inputs

    try:
        try:
            with keys.check_later():
                closed = with_room(lambda: jax.make_jaxpr(run)(*args, **kwargs))
        except Exception as error:
            # The transform around the body met what the body gave it in place of a result.
            if "culprit" in seen and error is not seen["culprit"].error:
                raise seen["culprit"].unexplained() from None
            raise
        frame = seen["frame"]
        names = [name for state, (_, avals) in frame.reads.items() for name in [describe(state)] * len(avals)]
        is_read = lambda eqn: eqn.primitive is read_p
        jaxpr, consts = close_over_inputs(closed, is_read, names, seen["tree"].num_leaves)
        if "culprit" in seen:
            raise seen["culprit"].explained(jaxpr, names)
        record = Record(frame, seen["outcome"], jaxpr, consts, seen["tree"])
        record.signature = signature_of((args, kwargs))
        record.arguments = jax.tree.map(typeof, (args, kwargs))
        return record
    finally:
        seen.clear()  # `body` and `run` may sit in JAX's caches; what they close over must not


def _named_like(fun: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """JAX's messages and profiles name the user's function and its arguments, not ours."""
    return functools.wraps(fun, assigned=("__name__", "__qualname__", "__doc__", "__module__"), updated=())


class TraceCache:
    """The records of one function, by what the trace depended on.

    Each slot, for the types of the arguments and JAX's configuration, has the records of different structures, the
    one used last first.
    """

    __slots__ = ("__weakref__", "_records", "_repeats", "_said", "log")

    _BOUND = 64  # records in a slot

    def __init__(self) -> None:
        self._records = ContextDict()
        self.log = TraceLog()
        self._repeats: tuple[tuple[Any, ...], int] = ((), 0)  # for which edge it was traced again, how often in a row
        self._said: set[str] = set()

    def find(
        self,
        fun: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        objects: Sequence[Any] = (),
        around: Callable[..., Any] | None = None,
        is_lifted: Callable[[State], bool] | None = None,
    ) -> Call:
        """The call through the record that fits now, traced if there is none.

        Args:
          fun, around, is_lifted: as in `trace`.
          args, kwargs: the arguments, with static ones and objects hidden.
          objects: the hidden objects.
        """
        leaves, treedef = jax.tree.flatten((args, kwargs))
        try:
            avals = tuple([typeof(leaf) for leaf in leaves])
        except TypeError as error:
            raise refused(fun, args, kwargs) from error
        key = (treedef, avals, keys.is_checking())
        roots = (fun, *objects)
        with as_ever():
            slot = self._records.current()
        known = slot.get(key, ())
        for i, record in enumerate(known):
            states = record.structure.match(roots)
            if states is not None:
                values = record.values(states)
                if values is not None:
                    if i:
                        slot[key] = (record, *known[:i], *known[i + 1 :])
                    return Call(record, states, leaves, values, record.objects_at(roots))
        record = self.trace(fun, args, kwargs, objects, around, is_lifted, known)
        states = record.states
        values = record.values(states)
        if values is None:  # another thread gave a state a new type meanwhile
            return self.find(fun, args, kwargs, objects, around, is_lifted)
        found = Call(record, states, leaves, values, record.objects_at(roots))
        if record.structure is not None:
            slot[key] = (record, *slot.get(key, ()))[: self._BOUND]
            record.expires_with(roots, functools.partial(_drop, weakref.ref(self), slot, key))
        record.let_go()
        return found

    def trace(
        self,
        fun: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        objects: Sequence[Any],
        around: Callable[..., Any] | None = None,
        is_lifted: Callable[[State], bool] | None = None,
        known: Sequence[Record] = (),
    ) -> Record:
        """Traces, and says of what will make it trace again; `known` are the records that did not fit."""
        roots = (fun, *objects)
        why = self._why(known, roots, fun, args, kwargs)
        recorder = Recorder(roots)
        with recorder:
            record = trace(fun, args, kwargs, objects, around, is_lifted)
        leak = recorder.leaked()
        if leak is not None:
            raise StateTraceError.kept_tracer(*leak)
        settled = record.settle(recorder)
        self.log.add(record, fun, why)
        self._warn(fun, args, kwargs, objects, settled, why)
        return record

    def _why(self, known: Sequence[Record], roots: Sequence[Any], fun: Any, args: Any, kwargs: Any) -> Any:
        """Where the objects differ from those of the record that goes with them farthest: path, before, now."""
        farthest: tuple[int, Any] = (-1, None)
        for record in known:
            structure = record.structure
            assert structure is not None
            try:
                structure.registers_at(roots)
            except Other as other:
                place = structure.edges.index(other.edge)
                if place > farthest[0]:
                    now = other.now if isinstance(other.now, str) and other.is_alias else brief(other.now)
                    path = structure.path(other.edge, root_names(fun, args, kwargs))
                    farthest = place, (path, said_of(other.edge), now)
        return farthest[1]

    def _warn(self, fun: Any, args: Any, kwargs: Any, objects: Sequence[Any], settled: Settled, why: Any) -> None:
        name = getattr(fun, "__qualname__", type(fun).__qualname__)
        for state in settled.loose:
            text = RetraceWarning.loose(name, state)
            if text not in self._said:
                self._said.add(text)
                warnings.warn_explicit(text, RetraceWarning, *user_site())
        if settled.changed is not None:
            edge, before, after = settled.changed
            path = settled.path(edge, root_names(fun, args, kwargs))
            why = path, before, after
        names = tuple(filter(None, root_names(fun, args, kwargs)))
        if why is None or why[0] in names or not why[0].startswith(names):
            self._repeats = ((), 0)
            return
        path, before, after = why
        # The same edge of the same objects: layers that differ from one another are traced once each.
        this = (path, *map(identity, objects))
        count = self._repeats[1] + 1 if self._repeats[0] == this else 1
        self._repeats = (this, count)
        if count >= 3 and path not in self._said:
            self._said.add(path)
            warnings.warn_explicit(RetraceWarning.repeated(name, path, before, after), RetraceWarning, *user_site())

    def clear(self) -> None:
        """Forgets every trace."""
        self._records.clear()
        self.log.clear()
        self._repeats = ((), 0)


def _drop(cache: Callable[[], Any], slot: dict[Any, Any], key: Any, record: Record) -> None:
    if cache() is not None:
        slot[key] = tuple(r for r in slot.get(key, ()) if r is not record)


def refused(fun: Any, args: Any, kwargs: Any) -> TypeError:
    """The error for an argument that is neither an array nor an object of the user's."""
    for name, leaf in named_arguments(fun, args, kwargs):
        try:
            typeof(leaf)
        except TypeError:
            called, kind = getattr(fun, "__qualname__", type(fun).__qualname__), type(leaf).__name__
            return TypeError(
                f"{called}: argument `{name}` is {leaf!r} of type {kind}, which is not a valid JAX type. "
                "List it in `static_argnums` or `static_argnames` if Python is to see its value."
            )
    return TypeError("an argument is not a valid JAX type")


def root_names(fun: Any, args: Any, kwargs: Any) -> list[str]:
    """How the user calls the roots: the function, and the objects among the arguments."""
    named = named_arguments(fun, args, kwargs, is_leaf=is_reference)
    return ["", *(name for name, leaf in named if is_reference(leaf))]
