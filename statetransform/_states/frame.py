"""The stack of frames: traced values never enter a `State`.

A `State` holds only its committed value. Each active transform pushes a *frame*; reading a state asks
the innermost frame, which asks its parent for what it does not know; writing stays in the innermost
frame. When the transform is done, what its frame wrote goes to the frame around it or, at the bottom,
into the states, all at once. A frame that is dropped by an exception takes everything with it.

The stack is thread-local because JAX's own trace context is: a context variable would show the values
of a trace to a thread that was started with a copy of the context and in which that trace is not
active. Asynchronous tasks cannot meet: nothing awaits between the push and the pop of a frame.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias, TypeVar

import jax
import numpy as np

from .._base.errors import StateTraceError, describe
from .._base.sites import user_site
from .._jax import TOP_LEVEL, has_tracer, is_in_callback, is_top_level, staging_trace, take_current_trace, trace_state
from .._objects.plain import MISSING
from .raw_reads import is_clean, renewed, warn_of_stale

State: TypeAlias = Any  # the one of `state`, which imports this module

T = TypeVar("T")

UNSET = object()  # the committed value of a state that was created in a frame which is still open
_ARRAY_TYPES = (jax.Array, float, int, complex)

#: States whose containers raw transforms have read, and may put tracers into.
_lent: weakref.WeakSet[State] = weakref.WeakSet()

#: Adapters that note something of their framework when a frame is entered.
on_entering: list[Callable[[Frame], None]] = []


class _Stack(threading.local):
    frame: Frame | None = None


stack = _Stack()
#: One entry for each open frame, of all threads. A compiled call only checks whether it is empty.
active: list[None] = []


def own_arrays(value: Any) -> Any:
    """`value` with copies of the NumPy arrays in it; without any, `value` itself."""
    if isinstance(value, _ARRAY_TYPES) or not any(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(value)):
        return value
    return jax.tree.map(_own, value)


def _own(leaf: Any) -> Any:
    return leaf.copy() if isinstance(leaf, np.ndarray) else leaf


def _is_same(a: Any, b: Any) -> bool:
    """Whether a leaf is the one that it was; the second is a copy if it is a NumPy array."""
    if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray):
        return a is b
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


class Frame:
    """What one active transform knows of the states: the values it was given, has read and written."""

    def __init__(self) -> None:
        # The frames around, and what Python and JAX are at where this one is entered.
        self.parent: Frame | None = None
        self._below: Frame | None = None  # the parent, but in a host callback
        self.runner: int = 0  # the Python frame that runs the function, which lives as long as this is entered
        self.trace: Any = None  # JAX's, in which the frame was entered
        self.outer: Any = None  # the raw JAX trace around, of an outermost frame
        self.called_from: Any = None  # the state of JAX's traces where the transform was called
        self.is_in_raw = False  # whether a raw JAX transform that stages stands between this frame and the one around
        # Where the function runs, see `runs_here`.
        self.here: Any = None  # the state of JAX's traces
        self._stage: Any = None  # the innermost trace that stages
        self.is_eager: bool = False  # whether it runs outside of all traces, as a host callback in it does
        # States.
        self.values: dict[State, Any] = {}
        self.sites: dict[State, tuple[str, int]] = {}  # the written states, and where
        #: States that were made here. They are held weakly, to see whether they outlive the function.
        self.born: weakref.WeakKeyDictionary[State, Any] = weakref.WeakKeyDictionary()
        self._containers: dict[State, tuple[list[Any], Any]] = {}  # as they were when they were read
        # What the run is for.
        self.is_pure = False  # whether what is written goes to the caller as values, and into no state
        self.is_fresh = False  # whether what JAX caches meanwhile is for this run only
        self._renewed: contextlib.ExitStack | None = None  # contexts with caches of their own, since a write
        self.is_kept = True  # whether other calls may use a trace of the function
        # What others note.
        self.notes: Any = None  # of an adapter, see `on_entering`
        self.outside: dict[int, Any] = {}  # what the inputs of its trace stand for, by their `id`, see `shardings`
        self.depends_on_shardings = False  # whether the trace depends on where its inputs are

    def __enter__(self) -> Frame:
        self._below, self.parent = stack.frame, innermost()
        self.runner = id(sys._getframe(1))
        with take_current_trace() as trace:
            self.trace = trace
        stack.frame = self
        active.append(None)
        try:
            for note in on_entering:
                note(self)
            self.runs_here()
        except BaseException:  # Ctrl-C, too
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: Any) -> None:
        stack.frame = self._below
        active.pop()
        # A frame that outlives its trace must not keep it.
        self._below = self.here = self._stage = self.outer = self.called_from = self.trace = None
        self.forget()
        self.outside.clear()
        if self._renewed is not None:
            self._renewed.close()

    def runs_here(self) -> None:
        """Says that the function runs in the present JAX trace: writes from any other are refused."""
        self.here, self._stage = trace_state(), staging_trace()
        self.is_eager = self.here == TOP_LEVEL

    def is_below_raw(self) -> bool:
        """Whether a raw JAX transform that stages stands between the function and the present place."""
        return trace_state() != self.here and staging_trace() is not self._stage

    def is_here(self) -> bool:
        """Whether the function runs in the frame's own trace at the moment, not in one within it."""
        return trace_state() == self.here

    def read(self, state: State) -> Any:
        """The one rule of reading: what this frame knows, or else what the frame around it says."""
        value = self.values.get(state, MISSING)
        if value is MISSING:
            value = self.born.get(state, MISSING)
        if value is MISSING:
            value = self.enter(state)
            if not isinstance(value, _ARRAY_TYPES):  # changed in place, it must change no other
                value = jax.tree.map(_own, value)
            self.seed(state, value)
        return value

    def peek(self, state: State) -> Any:
        """Like `read`, but lifts nothing."""
        unknowing = self.unknowing(state)
        frame = unknowing[0].parent if unknowing else self
        return state._value if frame is None else frame.values.get(state, frame.born.get(state))

    def unknowing(self, state: State) -> list[Frame]:
        """This frame and those around it that do not know a state yet, up to one that does; the outermost first.

        Who reads in this order does not nest as deeply as transforms do.
        """
        frames: list[Frame] = []
        frame: Frame | None = self
        while frame is not None and state not in frame.values and state not in frame.born:
            frames.append(frame)
            frame = frame.parent
        return frames[::-1]

    def enter(self, state: State) -> Any:
        """How the value of a state that this frame does not know comes in."""
        return state._cell.read_around(self, state)

    def seed(self, state: State, value: Any) -> None:
        """Makes `value` the state's value on entry."""
        self.values[state] = value
        if not isinstance(value, _ARRAY_TYPES):
            leaves, tree = jax.tree.flatten(value)
            self._containers[state] = [_own(leaf) for leaf in leaves], tree

    def write(self, state: State, value: Any, site: tuple[str, int] | None = None) -> None:
        """The one rule of writing: into the innermost frame, from the trace in which it runs."""
        self.check_write(state)
        if self.is_fresh and not is_clean():  # what was cached until now knows the old value
            self._renewed = self._renewed or contextlib.ExitStack()
            self._renewed.enter_context(renewed())
        if state in self.born:
            self.born[state] = value
            return
        self.values[state] = value
        self.sites[state] = site or user_site()

    def check_write(self, state: State) -> None:
        """Refuses a write that cannot be carried out of here."""
        if not self.is_here():
            raise StateTraceError.raw_write(state)

    def written(self) -> dict[State, Any]:
        """The states whose values changed, with their new values, in the order of the first write.

        A container or a NumPy array that was read and then changed in place counts as written: outside of a transform
        that would have changed the state as well.
        """
        for state, (leaves, tree) in self._containers.items():
            if state not in self.sites:
                now, tree_now = jax.tree.flatten(self.values[state])
                if tree_now != tree or not all(map(_is_same, now, leaves)):
                    self.sites[state] = user_site()
        return {state: self.values[state] for state in self.sites}

    def forget(self) -> None:
        """Drops all values; the function has ended, and its results are in other hands."""
        self.values.clear()
        self.born.clear()
        self._containers.clear()

    def abandon(self) -> None:
        """After an error: what the function has made keeps its value outside of all transforms, as without them."""
        for state, value in self.born.items() if self.parent is None else ():
            if state._value is UNSET and not has_tracer(value):
                state._value = value


class Onlooker(Frame):
    """The frame in which a predicate on states runs: it may look at values, and none is lifted for that."""

    def read(self, state: State) -> Any:
        return self.peek(state)


@contextlib.contextmanager
def kept_by_nobody() -> Iterator[None]:
    """For a raw trace that is only looked at: JAX does not keep it, so nothing that is read in it can become stale."""
    with Frame() as frame:
        frame.is_fresh = True
        yield


def innermost() -> Frame | None:
    """The frame that the running code belongs to; None outside of all transforms, where a host callback runs, too.

    JAX calls callbacks in this very thread where nothing is compiled, and sometimes where it is.
    """
    frame = stack.frame
    is_ours = frame is None or (frame.is_here() and not frame.is_eager) or not is_in_callback(frame.runner)
    return frame if is_ours else None


@contextlib.contextmanager
def no_frame() -> Iterator[None]:
    """As if no transform of this package were active."""
    frame, stack.frame = stack.frame, None
    try:
        yield
    finally:
        stack.frame = frame


def trace_around() -> Any:
    """The raw JAX trace in which a transform is called; None at the top level, or within a frame."""
    if innermost() is not None or is_top_level():
        return None
    with take_current_trace() as trace:
        return trace


def read(state: State) -> Any:
    """A state's value as the running function sees it."""
    frame = innermost()
    return committed(state) if frame is None else state._cell.read_in(frame, state)


def committed(state: State) -> Any:
    """The value outside of all transforms."""
    value = state._value
    if value is UNSET:
        raise StateTraceError.lost(state)
    if _lent and state in _lent:
        if has_tracer(value):
            raise StateTraceError(
                f"{describe(state)} holds a tracer: inside a raw JAX transform, something was put into the container "
                "that is its value. Give the state a value again.\n"
                "Use the transform of the same name from `statetransform.transform`: it sees what its function changes "
                "in place."
            )
        if is_top_level():
            _lent.discard(state)
    return value


def look_at(state: State) -> Any:
    """Like `read`, for what is to be used: says where the value becomes a constant of a raw transform."""
    frame = innermost()
    if frame is not None:
        return state._cell.read_in(frame, state)
    if not is_top_level() and state._cell.goes_stale:
        if staging_trace() is not None:
            warn_of_stale(state)
        if not state._static and not isinstance(state._value, _ARRAY_TYPES):
            _lent.add(state)
    return committed(state)


def look_at_all(states: Iterable[State]) -> list[Any]:
    """The values of several states, as `look_at` gives them."""
    look = committed if innermost() is None and is_top_level() else look_at
    return [look(state) for state in states]


def peek(state: State) -> Any:
    """Like `read`, but lifts nothing."""
    frame = innermost()
    return state._value if frame is None else frame.peek(state)


def refuse_tracers(written: Iterable[tuple[State, Any]]) -> None:
    """Refuses values that belong to a raw JAX transform around; any other may be stored."""
    for state, value in written:
        if not state._static and has_tracer(value) and not state._cell.takes_tracers(state):
            raise StateTraceError.raw_write(state)


def leave(
    written: Iterable[tuple[State, Any]],
    born: Iterable[tuple[State, Any]] = (),
    sites: dict[State, tuple[str, int]] | None = None,
) -> None:
    """Hands what a finished transform wrote and made to the frame around it, or commits it.

    Called after the JAX call has returned, so that nothing ever has to be restored.
    """
    frame = innermost()
    written, born = list(written), list(born)
    if frame is None:
        if not is_top_level():
            refuse_tracers(written)
        _commit([*written, *born])
        return
    for state, value in written:
        state._cell.check_write(frame, state, value)
    frame.born.update(born)
    for state, value in written:
        state._cell.receive(frame, state, value, sites.get(state) if sites else None)


def _commit(pairs: Sequence[tuple[State, Any]]) -> None:
    """Stores values outside of all transforms: all of them or none.

    States get theirs from within C, where no signal (Ctrl-C) is handled. The cells of other frameworks run code of
    their own; all get back what they had if it fails.
    """
    states, values = [state for state, _ in pairs], [value for _, value in pairs]
    store = lambda values: deque(map(setattr, states, itertools.repeat("_value"), values), maxlen=0)
    if not any(state._is_elsewhere for state in states):
        store(values)
        return
    before = [state._value for state in states]
    try:
        store(values)
    except BaseException:
        store(before)
        raise


def only_births(finish: Callable[[], Any]) -> Any:
    """What `finish` returns. States that it makes go on, with the shapes that it gives them; its writes do not."""
    with Frame() as frame:
        out = finish()
        born = dict(frame.born)
    leave((), born.items())
    return out
