"""Tracers that a trace has left in attributes and containers of the user's objects: found, and taken out again."""

from __future__ import annotations

import collections
import types
from collections.abc import Iterable
from typing import Any

from .cells import cells_behind
from .edges import Edge
from .foreign import active, cells_of
from .frame import UNSET, peek
from .jaxcompat import has_tracer
from .lookup import class_lookup, instance_attribute
from .plain import MISSING
from .recorder import Recorder
from .state import State


def leaked(recorder: Recorder) -> tuple[Any, str, bool] | None:
    """An attribute that the trace set and that now holds a tracer, and whether it held a state before.

    All such attributes get their earlier values again, and containers their earlier contents.
    """
    found = [_leaked_onto_object(recorder), _leaked_onto_class(recorder), _leaked_into_container(recorder)]
    return next(filter(None, found), None)


def _leaked_onto_object(recorder: Recorder) -> tuple[Any, str, bool] | None:
    before: dict[tuple[int, str], Any] = {}
    for register, name, value in recorder.changes:
        before.setdefault((register, name), value)
    found = None
    for (register, name), value in before.items():
        obj = recorder.objects[register]
        if cells_behind(class_lookup(type(obj), name)) is not None:
            continue  # frames take care of it
        now = instance_attribute(obj, name)
        if now is MISSING or now is value or isinstance(now, State) or not _leaks(now):
            continue
        found = found or (obj, name, isinstance(value, State))
        if value is MISSING:
            object.__delattr__(obj, name)
        else:
            object.__setattr__(obj, name, value)
    return found


def _leaked_onto_class(recorder: Recorder) -> tuple[Any, str, bool] | None:
    """Attributes of classes and functions, of which no hook tells when they are set."""
    found, classes = None, recorder.classes
    functions = [obj for obj in recorder.objects if isinstance(obj, types.FunctionType) and obj.__dict__]
    for owner in (*classes.registers, *functions):
        before = classes.before.get(owner, {})
        for name, now in list(vars(owner).items()):
            value = before.get(name, MISSING)
            if now is value or isinstance(now, State) or not _leaks(now):
                continue
            found = found or (owner, name, isinstance(value, State))
            delattr(owner, name) if value is MISSING else setattr(owner, name, value)
    return found


def take_back(recorder: Recorder) -> None:
    """After a trace that failed: attributes that were set to states which will have no value are as before."""
    for register, name, before in reversed(recorder.changes):
        obj = recorder.objects[register]
        now = instance_attribute(obj, name)
        if not _has_no_value(now):
            continue
        if before is not MISSING:
            object.__setattr__(obj, name, before)
        elif isinstance(now, State):
            object.__delattr__(obj, name)
        else:  # a module of another framework may keep a list of what is in it
            delattr(obj, name)


def _has_no_value(obj: Any) -> bool:
    """Whether a state or a cell was made in a trace that failed."""
    if isinstance(obj, State):
        return not obj._is_foreign and peek(obj) is UNSET
    cells = cells_of(obj) if active.has_cells else None
    known = None if cells is None else cells.known(obj)
    return known is not None and peek(known) is UNSET


def _leaked_into_container(recorder: Recorder) -> tuple[Any, str, bool] | None:
    found = None
    states = _states_in_containers(recorder)
    inside: set[int] | None = None
    for edge in recorder.edges:
        if edge.what not in ("sequence", "mapping", "plains"):
            continue
        container = recorder.objects[edge.register]
        if not isinstance(container, list | dict | collections.deque):
            continue
        lost = _lost_state(recorder, states.get(edge.register, ()), container)
        if lost is None and not any(_is_new(recorder, value) for value in _values(container)):
            continue
        if lost is None and not isinstance(container, dict):
            # Outside of the arguments a list may well collect what was traced, for a test or a printout.
            inside = recorder.of_arguments() if inside is None else inside
            if edge.register not in inside:
                continue
        owner = recorder.objects[edge.parent] if edge.parent >= 0 else container
        name = edge.key if edge.how in ("attr", "dict") else f"[{edge.key!r}]"
        if edge.how in ("cell", "global"):
            owner, name = None, edge.key if edge.how == "global" else edge.key[1]
        found = found or (owner, name if lost is None else f"{name}[{lost!r}]", lost is not None)
        contents = _contents(recorder, edge)
        container.clear()
        container.update(contents) if isinstance(container, dict) else container.extend(contents)
    return found


def _states_in_containers(recorder: Recorder) -> dict[int, list[Edge]]:
    """The edges to the states that containers held when they were reached, by the container's register."""
    found: dict[int, list[Edge]] = {}
    for edge in recorder.edges:
        if edge.how == "item" and edge.what == "state":
            found.setdefault(edge.parent, []).append(edge)
    return found


def _lost_state(recorder: Recorder, edges: Iterable[Edge], container: Any) -> Any:
    """The key at which a traced value stands where a state was."""
    for edge in edges:
        try:
            now = container[edge.key]
        except LookupError:
            continue
        if now is not recorder.objects[edge.register] and not isinstance(now, State) and _leaks(now):
            return edge.key
    return None


def _is_new(recorder: Recorder, value: Any) -> bool:
    return recorder.register_of(value) is None and _leaks(value)


def _contents(recorder: Recorder, edge: Edge) -> Any:
    """What a container held when it was reached."""
    if edge.what == "plains":
        return edge.argument[1]
    inside = [e for e in recorder.edges if e.parent == edge.register and e.how in ("item", "nth", "nthvalue")]
    values = [e.argument if e.what == "plain" else recorder.objects[max(e.register, 0)] for e in inside]
    values = [recorder.objects[e.argument] if e.what == "same" else v for e, v in zip(inside, values, strict=True)]
    if edge.what == "mapping":
        return zip([e.key for e in inside], values, strict=True)
    return zip(values[::2], values[1::2], strict=True) if inside and inside[-1].how == "nthvalue" else values


def _values(container: Any) -> Iterable[Any]:
    return container.values() if isinstance(container, dict) else container


def _leaks(value: Any) -> bool:
    try:
        return has_tracer(value)
    except Exception:
        return False
