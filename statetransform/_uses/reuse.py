"""Whether a trace can be used again: which edges still hold after it, and which objects it is about by identity."""

from __future__ import annotations

import functools
import types
from collections.abc import Sequence
from typing import Any, TypeAlias

from .._base.library import is_framework_class
from .._objects.plain import reference
from .._states.state import State
from .callbacks import objects_behind
from .conditions import ANOTHER, Is, Plain, Same, brief
from .edges import Edge, compare
from .recorder import Recorder
from .steps import Global, Item, Reader, ValueOf
from .structure import Structure

Trace: TypeAlias = Any  # the one of `trace`, which imports this package

_MADE_OF_PARTS = (types.MethodType, types.BuiltinFunctionType, functools.partial)


class Reuse:
    """Whether a trace can be used again, and for which structure.

    Args:
      recorder: the recorder that has listened to the trace.
      trace: the trace; it learns what structure it serves.

    Attributes:
      edges: all that was noted.
      structure: what a later call is compared with; None when the trace serves one call only.
      loose: the states in use to which no path leads.
      changed: the edge on an argument that the function itself changed, with the value before and after.
      own: the edge to a function that changed a variable of its own, so that the trace is for this very function.
    """

    def __init__(self, recorder: Recorder, trace: Trace) -> None:
        self.structure: Structure | None = None
        self.changed: tuple[Edge, str, str] | None = None
        self.own: Edge | None = None
        self.edges: Sequence[Edge] = recorder.edges
        registers: list[Any] = []
        for state in trace.states:
            register = recorder.register_of(state)
            if register is None and (reader := state._cell.way_to(state)) is not None:  # which finds it anywhere
                recorder.reach(0, Reader(reader), state)
                register = recorder.register_of(state)
            registers.append(register)
        self.loose: list[State] = [s for s, register in zip(trace.states, registers, strict=True) if register is None]
        if self.loose:
            return
        kept = self._unchanged(recorder, {*registers}, trace.jaxpr)
        if kept is not None:
            kept += [Edge(registers[i], ValueOf(), Plain(value)) for i, value in trace.statics]
            self.structure = Structure(kept, registers, recorder.objects)
            trace.allow_reuse(self.structure, recorder)

    def _unchanged(self, recorder: Recorder, used: set[int], jaxpr: Any) -> list[Edge] | None:
        """The edges that still hold. Of those that do not, the function has changed what they lead to."""
        dropped: set[int] = set()
        kept: list[Edge] = []
        pinned = dict.fromkeys(_pinned(recorder, jaxpr), ANOTHER)
        for edge in recorder.edges:
            is_below = edge.parent in dropped or (
                isinstance(edge.condition, Same) and edge.condition.register in dropped
            )
            holds_still, now = (False, None) if is_below else _still_holds(edge, recorder)
            if holds_still:
                kept.append(edge)
                continue
            if edge.register >= 0:
                dropped.add(edge.register)
            if is_below:
                continue
            variable = _variable(edge, recorder)
            if variable is None:
                self.changed = edge, edge.condition.said, brief(now)
                return None
            if not isinstance(variable.step, Global) and isinstance(
                recorder.objects[variable.parent], types.FunctionType
            ):
                # It changes its own closure: only this very function may use the trace.
                name = variable.step.text.removeprefix(".")
                pinned[variable.parent] = f"another; it changes its `{name}`: {edge.condition.said} to {brief(now)}"
        if dropped & used:
            edge = next(e for e in recorder.edges if e.register in dropped)
            self.changed = edge, edge.condition.said, brief(_still_holds(edge, recorder)[1])
            return None
        for i, edge in enumerate(kept):
            if (said := pinned.get(edge.register)) is not None:
                kept[i] = edge._replace(condition=Is(reference(recorder.objects[edge.register]), said))
                self.own = kept[i] if said != ANOTHER else self.own
        return kept


def _pinned(recorder: Recorder, jaxpr: Any) -> set[int]:
    """The objects that the program itself is about, and no other of their structure; a rule is yet to look at them."""
    conditions = {edge.register: edge.condition for edge in recorder.edges}
    place_of: Any = recorder.register_of
    is_shared = lambda obj: getattr(conditions.get(place_of(obj)), "is_shared", False)
    found: set[int] = set()
    for obj, is_rule in objects_behind(jaxpr, is_shared):
        if is_rule:
            recorder.runs_later(obj)
        if is_shared(obj):
            found.add(place_of(obj))
    return found


def _variable(edge: Edge, recorder: Recorder) -> Edge | None:
    """Follows an edge that has changed to the variable that it starts from, or attribute of a class or module.

    None if it starts from an object's attribute: the same value may be in a variable, too, so that the trace cannot be
    used again.
    """
    aliases = [e for e in recorder.edges if isinstance(e.condition, Same) and not _is_of_code(e, recorder)]
    of_objects = {alias.condition.register for alias in aliases}
    while isinstance(edge.step, Item) or _is_part(edge, recorder):
        if edge.parent in of_objects:
            return None
        edge = recorder.edge_to(edge.parent)
    return edge if _is_of_code(edge, recorder) else None


def _is_part(edge: Edge, recorder: Recorder) -> bool:
    is_members = isinstance(edge.step, Reader) and edge.register >= 0 and type(recorder.objects[edge.register]) is tuple
    return is_members or (edge.parent >= 0 and isinstance(recorder.objects[edge.parent], _MADE_OF_PARTS))


def _is_of_code(edge: Edge, recorder: Recorder) -> bool:
    """Whether an edge leads from a function, module or class; or from a framework's object, which counts cache hits."""
    parent = recorder.objects[edge.parent] if edge.parent >= 0 else None
    return isinstance(parent, types.FunctionType | types.ModuleType | type) or (
        is_framework_class(type(parent)) and edge.parent not in recorder.hidden
    )


def _still_holds(edge: Edge, recorder: Recorder) -> tuple[bool, Any]:
    parent = recorder.roots if edge.parent < 0 else recorder.objects[edge.parent]
    is_same, now = compare(edge, parent, recorder.objects)
    # A tuple may be made anew: what is in it has edges of its own.
    return is_same and (edge.register < 0 or type(now) is tuple or now is recorder.objects[edge.register]), now
