"""The traces of one function: which one fits a call, and whether another is made.

This is the place where a retrace is decided: `TraceCache.find`. A trace fits a call if all of this holds:

1. The arguments have the types and the tree definition that it was made for (the key of the slot).
2. JAX's settings and contexts are those of then (`ContextDict`), and the trace holds nothing that JAX cached before
   this run (`Trace.is_current`).
3. The objects have its structure (`Structure.match` of `_uses`).
4. The states have its types, and those that `states=` leaves out hold the same arrays (`Trace.values`).
5. If it has a plan for a budget, its inputs are where the plan takes them to be (`Trace.is_for`).

Everything before it only saves a look, and leads here when in doubt: for `jit`, the generated way in of a program
(`transform/_way_in.py`), then `Jitted.run`, which asks `Program.match` and `Program.is_for`; a compiled program whose
types are new to JAX leaves it by `Untraced`, so that `Jitted.run` asks here, and `Program.takes` says whether it can
have the trace. A loop or branch in eager mode asks here for its functions, and then its options, and for a budget lanes
and shardings, for the program that is kept with their traces (`transform/_eager_loops.py`).

A trace that was made is kept for one call only if `Reuse` finds that it cannot serve another. It may
also be gone: `families` has the bounds, and `Trace.expires_with` the lives that it depends on. A loop traces its body
a second time where the carry loses a weak type (`Body` in `transform/_bodies.py`), as JAX does, and `Fresh`
(`_states/raw_reads.py`) begins a run again in which a raw transform reads a state for the first time. What runs
directly (`Lift`) and custom rules (`transform/_rules.py`) keep no traces.
"""

from __future__ import annotations

import functools
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax

from .._base.errors import RetraceWarning, StateTraceError, describe
from .._base.library import is_users_class
from .._base.sites import user_site
from .._jax import ContextDict, run_of_caches, typeof
from .._objects.hooks import not_recorded
from .._objects.plain import MISSING
from .._states.state import State
from .._uses.conditions import ArrayLike, Plain, StateOf, brief
from .._uses.edges import Edge, show_path
from .._uses.leaks import refuse_leaks, take_back
from .._uses.recorder import Recorder
from .._uses.reuse import Reuse
from .._uses.steps import ValueOf
from .._uses.structure import Mismatch, Structure
from . import stage
from .arguments import NO_SELF, hide_self, is_reference, named_arguments
from .explain import refused
from .families import NEVER, Family, cache_of, keep_recent
from .log import log_entry
from .shardings import Places, depend_on_shardings
from .trace import Call, Trace
from .wrapper import unbound

_MUCH = 8 << 20  # bytes: a comparison takes about a millisecond


class TraceCache:
    """The traces of one function, by what the trace depended on.

    Each slot, for the types of the arguments and JAX's configuration, has the traces of different structures, the
    one used last first.

    Args:
      family: the functions that share their traces with this one.
      forbids_new_states: the loop or branch, for messages, in which no state can be made that outlives the function.
      **options: `around`, `is_lifted` and `is_pure` of each trace, as in `stage.trace`.
    """

    __slots__ = ("__weakref__", "_loop", "_options", "_slots", "family")

    _BOUND = 64  # traces in a slot

    def __init__(self, family: Family, forbids_new_states: str = "", **options: Any) -> None:
        self._loop, self._options = forbids_new_states, options
        self._slots = ContextDict()
        self.family = family

    def find(
        self,
        fun: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        objects: Sequence[Any] = (),
        places: Places | None = None,
    ) -> Call:
        """The call through the trace that fits now, traced if there is none.

        Args:
          fun: the function.
          args, kwargs: the arguments, with static ones and objects hidden.
          objects: the hidden objects.
          places: where the transform puts them, the same for all calls.
        """
        leaves, treedef = jax.tree.flatten((args, kwargs))
        try:
            avals = tuple([typeof(leaf) for leaf in leaves])
        except TypeError as error:
            raise refused(fun, args, kwargs) from error
        key, roots = (treedef, avals), (fun, *objects)
        slot = self._slots.current()
        found, known = self._known(slot, key, roots, leaves)
        if found is not None:
            return found
        why = self._why(known, roots, fun, args, kwargs) if known else None
        recorder = Recorder(roots)
        try:
            with recorder:
                recorder.takes_pytrees((args, kwargs))
                # Here, not in a function of its own: nested transforms come through here once for each.
                trace = stage.trace(fun, args, kwargs, objects, places=places, **self._options)
            self._check(trace, roots, (fun, args, kwargs), recorder)
        except BaseException:
            take_back(recorder)
            raise
        with not_recorded():
            reuse = Reuse(recorder, trace)
        own = reuse.own and (show_path(reuse.edges, reuse.own, root_names(fun, args, kwargs)), reuse.own.condition.said)
        self.family.log.append(log_entry(trace, fun, why, own))
        self._warn(fun, args, kwargs, objects, reuse, why)
        states = trace.states
        values = trace.values(states, is_new=True)
        if values is None:  # another thread gave a state a new type meanwhile
            return self.find(fun, args, kwargs, objects, places)
        call = Call(trace, states, leaves, values, trace.objects_at(roots))
        if trace.structure is not None:
            self._keep(slot, key, trace)
            self.family.add(key, trace)
            if self._loop:  # a function that may be gone after the call, while others that are like it come
                trace.let_go()
            self._expire(trace, roots)
            trace.states, trace.objects = [], None
        return call

    def _known(
        self, slot: dict[Any, Any], key: Any, roots: Sequence[Any], leaves: list[Any]
    ) -> tuple[Call | None, Sequence[Trace]]:
        """The call through a trace that is there and fits; or None, and the traces that do not fit."""
        run = run_of_caches.value
        own = [trace for trace in slot.get(key, ()) if trace.is_current(run)]
        found, others = _first_fitting(own, roots, leaves), []
        if found is None:
            others = [other for other in self.family.known(key) if other not in own and other.is_current(run)]
            found = _first_fitting(others, roots, leaves)
        if found is None:
            return None, (*own, *others)
        trace, states, values = found
        if trace.shardings is not None:
            depend_on_shardings()
        self.family.repeats = NEVER
        self._keep(slot, key, trace)
        if trace not in own:
            self._expire(trace, roots)
        return Call(trace, states, leaves, values, trace.objects_at(roots)), ()

    def _keep(self, slot: dict[Any, Any], key: Any, trace: Trace) -> None:
        """Puts a trace in front of its slot."""
        mine = slot.get(key, ())
        if not mine or mine[0] is not trace:
            slot[key] = (trace, *[other for other in mine if other is not trace])[: self._BOUND]

    def _expire(self, trace: Trace, roots: Sequence[Any]) -> None:
        """Has a trace forgotten when an object dies whose arrays it holds; the function may be gone before that."""
        if trace.holds_arrays and trace.structure is not None and trace.structure.by_identity:
            trace.expires_with(roots, weakref.WeakMethod(self.discard), weakref.WeakMethod(self.family.discard))

    def discard(self, trace: Trace) -> None:
        """Keeps a trace no longer."""
        for slot in self._slots.dicts():
            for key in [*slot]:
                if trace in (traces := slot.get(key, ())):
                    slot[key] = tuple(other for other in traces if other is not trace)
        self.family.discard(trace)

    def _check(self, made: Trace, roots: Sequence[Any], call: tuple[Any, Any, Any], recorder: Recorder) -> None:
        """Refuses what a function must not leave behind; `call` is the function with its arguments, for messages."""
        for alive in filter(None, [over() for over in made.over]):
            refuse_leaks(alive, roots, root_names(*call), recorder)
        if self._loop and made.created:
            raise StateTraceError(
                f"{self._loop}: {describe(made.created[0])} is created inside a function that may run any "
                "number of times, or not at all, and outlives it. Nothing was changed.\n"
                f"Create the state before the {self._loop} and write it inside, or return its value."
            )

    def _why(self, known: Sequence[Trace], roots: Sequence[Any], fun: Any, args: Any, kwargs: Any) -> Any:
        """Where the objects differ from those of the trace that goes with them farthest: path, before, now."""
        farthest: tuple[int, Any] = (-1, None)
        for trace in known:
            structure = trace.structure
            assert structure is not None
            try:
                structure.registers_at(roots)
                return None  # it was the type of a state, or a static value
            except Mismatch as other:
                if isinstance(other.edge.step, ValueOf):
                    return None
                place = structure.edges.index(other.edge)
                if place > farthest[0]:
                    farthest = place, other.explained(structure.edges, root_names(fun, args, kwargs))
                structure.forget_in_raw(roots)
        return farthest[1]

    def _warn(self, fun: Any, args: Any, kwargs: Any, objects: Sequence[Any], reuse: Reuse, why: Any) -> None:
        name = getattr(fun, "__qualname__", type(fun).__qualname__)
        for state in reuse.loose:
            self._warn_once(
                f"{name} uses {describe(state)}, but the state cannot be reached from the function or its arguments by "
                "a path that can be checked, so the trace is used for this call only and every call traces the "
                "function again. Pass the state as an argument, or make it an attribute of an object that the function "
                "takes or closes over."
            )
        for edge in reuse.structure.edges if reuse.structure is not None else ():
            if isinstance(edge.condition, ArrayLike) and edge.condition.content.compared >= _MUCH:
                path = show_path(reuse.edges, edge, root_names(fun, args, kwargs))
                size = edge.condition.content.compared >> 20
                self._warn_once(
                    f"{name} compares `{path}`, a NumPy array of {size} MiB, at every call, because it may have "
                    "changed in place. That takes more than a millisecond. Make it read-only "
                    "(`array.flags.writeable = False`), a JAX array or a `State`."
                )
        if reuse.changed is not None:
            edge, before, after = reuse.changed
            why = show_path(reuse.edges, edge, root_names(fun, args, kwargs)), before, after
            if self._loop and _is_rebound(edge, after):
                happens = f"{self._loop}: {name} runs once, while it is traced, but changes `{why[0]}`, which it reads"
                self._warn_once(f"{happens}: {_change(before, after)}", why[0])
        names = () if why is None else tuple(filter(None, root_names(fun, args, kwargs)))
        if why is None or why[0] in names or (reuse.changed is None and not why[0].startswith(names)):
            self.family.repeats = NEVER
            return
        path, before, after = why
        # The same edge of the same objects: layers that differ from one another are traced once each.
        last, refs, count = self.family.repeats
        is_same = last == path and [*map(id, objects)] == [id(ref()) for ref in refs]
        count = count + 1 if is_same else 1
        self.family.repeats = path, [*map(_weakly, objects)], count
        if count >= 3:
            text = f"{name} is retraced at every call because `{path}` changes: {_change(before, after)}"
            self._warn_once(text, path)

    def _warn_once(self, text: str, key: str | None = None) -> None:
        if (key or text) not in self.family.said:
            self.family.said.add(key or text)
            warnings.warn_explicit(text, RetraceWarning, *user_site())

    def clear(self) -> None:
        """Forgets every trace."""
        self._slots.clear()
        self.family.forget()


def _change(before: str, after: str) -> str:
    """How an attribute has changed, and what to write instead."""
    if before == after:
        return f"it is now another {after}. Change what it holds instead: assign to the `.value` of a `State`."
    return (
        f"it was {before} and is now {after}. Make it a `State`, whose value is not part of the trace, or keep it "
        "where the function does not read it."
    )


def _is_rebound(edge: Edge, after: str) -> bool:
    """Whether a plain value or a state was replaced; the cells of other frameworks are, by their own transforms."""
    kind = edge.condition.reference() if isinstance(edge.condition, StateOf) else None
    is_own = kind is not None and (getattr(kind, "__module__", None) == State.__module__ or is_users_class(kind))
    return (isinstance(edge.condition, Plain) or is_own) and after != brief(MISSING)


def _weakly(obj: Any) -> Callable[[], Any]:
    """A reference that holds nothing; to what cannot be referred to weakly, one that is dead."""
    try:
        return weakref.ref(obj)
    except TypeError:
        return lambda: None


def _first_fitting(
    traces: Sequence[Trace], roots: Sequence[Any], leaves: Sequence[Any]
) -> tuple[Trace, Sequence[State], list[Any]] | None:
    """The first trace that fits a call, with the states that the call has found and the leaves of their values."""
    for trace in traces:
        structure = trace.structure
        assert structure is not None
        states = structure.match(roots)
        if states is not None and (values := trace.values(states)) is not None and trace.is_for(leaves, values):
            return trace, states, values
    return None


def find_for_once(
    where: str, fun: Callable[..., Any], args: Any, kwargs: Any, objects: Sequence[Any], **options: Any
) -> Call:
    """The call of a function that a loop or branch was given, and that may be gone after it.

    Args:
      where: the loop or branch, or another transform.
      fun: the function, which may be a bound method.
      args, kwargs, objects: as in `TraceCache.find`.
      **options: those of the `TraceCache`, the same for each call with `where`.
    """
    fun, obj = unbound(fun)
    instance, owners = hide_self(obj) if obj is not NO_SELF else (None, [])
    leading = () if obj is NO_SELF else (instance,)
    cache = cache_of(fun, where, functools.partial(TraceCache, **options))
    call = cache.find(fun, (*leading, *args), kwargs, [*owners, *objects])
    if call.trace.structure is not None:
        keep_recent(call.trace, cache.family)
    call.leading = leading
    return call


def difference(structure: Structure, roots: Sequence[Any], fun: Any, args: Any, kwargs: Any) -> str:
    """Where the objects of a call first differ from a structure, for messages; "" where they do not."""
    try:
        structure.registers_at(roots)
        return ""
    except Mismatch as other:
        path, before, now = other.explained(structure.edges, root_names(fun, args, kwargs))
        return f"`{path}` was {before} and is {now}"


def root_names(fun: Any, args: Any, kwargs: Any) -> list[str]:
    """How the user calls the roots: the function, and the objects among the arguments."""
    named = named_arguments(fun, args, kwargs, is_leaf=is_reference)
    return ["", *(name for name, leaf in named if is_reference(leaf))]
