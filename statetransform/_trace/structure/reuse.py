"""Whether a trace can be used again: which edges still hold after it, and which objects it is about by identity."""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import Any, TypeAlias

from ..._objects.library import is_framework_class
from ..._objects.plain import reference
from ..._state.state import State
from .callbacks import objects_behind
from .edges import Edge, brief, compare, said_of
from .recorder import Recorder
from .structure import Structure
from .visits import BY_CLASS

Trace: TypeAlias = Any  # the one of `trace`, which imports this package

_SHARED = ("object", "sequence", "mapping", "plains", "state", "array")


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
    """

    def __init__(self, recorder: Recorder, trace: Trace) -> None:
        self.structure: Structure | None = None
        self.changed: tuple[Edge, str, str] | None = None
        self.edges: Sequence[Edge] = recorder.edges
        registers: list[Any] = []
        for state in trace.states:
            register = recorder.register_of(state)
            if register is None and (reader := state._cell.way_to(state)) is not None:  # which finds it anywhere
                recorder.reach(0, "reader", reader, state)
                register = recorder.register_of(state)
            registers.append(register)
        self.loose: list[State] = [s for s, register in zip(trace.states, registers, strict=True) if register is None]
        if self.loose:
            return
        kept = self._unchanged(recorder, {*registers}, trace.jaxpr)
        if kept is not None:
            kept += [Edge(registers[i], "value", None, "plain", value, -1) for i, value in trace.statics]
            self.structure = Structure(kept, registers, recorder.objects)
            trace.serve(self.structure, recorder)

    def _unchanged(self, recorder: Recorder, used: set[int], jaxpr: Any) -> list[Edge] | None:
        """The edges that still hold. Of those that do not, the function has changed what they lead to."""
        dropped: set[int] = set()
        kept: list[Edge] = []
        inside: set[int] | None = None
        self._pinned: set[int] = set()
        is_shared = lambda obj: (
            (place := recorder.register_of(obj)) is not None
            and (whats.get(place) in _SHARED or (whats.get(place) == "type" and isinstance(obj, BY_CLASS)))
        )
        whats = {edge.register: edge.what for edge in recorder.edges}
        for obj, is_rule in objects_behind(jaxpr, is_shared):
            # The program is about this object, and no other of its structure; a rule is yet to look at it.
            register: Any = recorder.register_of(obj)
            if is_rule and (isinstance(obj, types.FunctionType) or whats.get(register) == "object"):
                recorder.runs_later(obj)
            if is_shared(obj):
                self._pinned.add(register)
        self._by_register = {edge.register: edge for edge in recorder.edges if edge.register >= 0}
        for edge in recorder.edges:
            if edge.parent in dropped or (edge.what == "same" and edge.argument in dropped):
                if edge.register >= 0:
                    dropped.add(edge.register)
                continue
            holds_still, now = _still_holds(edge, recorder)
            if holds_still:
                kept.append(edge)
                continue
            if inside is None:
                inside = recorder.of_arguments()
            is_argument = edge.key > 0 if edge.parent < 0 else edge.parent in inside
            if is_argument or _is_attribute(edge, now, recorder):
                self.changed = edge, said_of(edge), brief(now)
                return None
            if edge.register >= 0:
                dropped.add(edge.register)
            self._pin(edge, recorder)
        if dropped & used:
            edge = next(e for e in recorder.edges if e.register in dropped)
            self.changed = edge, said_of(edge), brief(_still_holds(edge, recorder)[1])
            return None
        return [
            edge._replace(what="is", argument=reference(recorder.objects[edge.register]))
            if edge.register in self._pinned
            else edge
            for edge in kept
        ]

    def _pin(self, edge: Edge, recorder: Recorder) -> None:
        """A function that changes its own closure: only this very function may use the trace."""
        while edge.parent >= 0 and edge.how not in ("global", "class"):
            if isinstance(recorder.objects[edge.parent], types.FunctionType):
                self._pinned.add(edge.parent)
                return
            edge = self._by_register[edge.parent]


def _is_attribute(edge: Edge, now: Any, recorder: Recorder) -> bool:
    """Whether the attribute of an object is another, and not only what a container in it holds."""
    parent = recorder.objects[edge.parent] if edge.parent >= 0 else None
    if edge.how not in ("attr", "dict") or isinstance(parent, type | types.FunctionType | types.ModuleType):
        return False
    if is_framework_class(type(parent)) and edge.parent not in recorder.hidden:  # which counts the hits of its caches
        return False
    is_container = edge.key != "__dict__" and edge.register >= 0 and now is recorder.objects[edge.register]
    return not is_container and not isinstance(parent, dict)


def _still_holds(edge: Edge, recorder: Recorder) -> tuple[bool, Any]:
    parent = recorder.roots if edge.parent < 0 else recorder.objects[edge.parent]
    is_same, now = compare(edge, parent, recorder.objects[edge.argument] if edge.what == "same" else None)
    is_made_anew = edge.register < 0 or edge.how == "members"
    return is_same and (is_made_anew or now is recorder.objects[edge.register]), now
