"""Tracers that a trace has left behind: in attributes, containers, objects made inside, globals, closures, classes."""

from __future__ import annotations

import collections
import types
from collections.abc import Iterator
from typing import Any

from ..._jaxcompat import Tracer, has_tracer
from ..._objects.library import is_users_class
from ..._objects.lookup import class_lookup, contents, instance_attribute, instance_dict, slot_names
from ..._objects.plain import MISSING, identity
from ..._state import adapters
from ..._state.cell import cell_behind
from ..._state.frame import UNSET, peek
from ..._state.state import State
from .recorder import Recorder

_CONTAINERS = (list, tuple, dict, set, frozenset, collections.deque)


def leaked(recorder: Recorder) -> tuple[Any, str, str, bool] | None:
    """Where a tracer was left: object, name of the place, the way from there, whether a state was there before."""
    for owner, name, place, before, now in _changes(recorder):
        if now is before or isinstance(now, State):
            continue
        path = _path_to_tracer(recorder, now)
        if path is not None:
            return owner, name, place + path, isinstance(before, State)
    return None


def _changes(recorder: Recorder) -> Iterator[tuple[Any, str, str, Any, Any]]:
    """What the trace may have put somewhere: the object, place, way from there, before, now."""
    first: dict[tuple[int, str], Any] = {}
    for register, name, before in recorder.changes:
        first.setdefault((register, name), before)
    for (register, name), before in first.items():
        obj = recorder.objects[register]
        if cell_behind(class_lookup(type(obj), name)) is None:  # frames take care of cells
            yield obj, name, "", before, instance_attribute(obj, name)
    functions = {obj: {} for obj in recorder.objects if isinstance(obj, types.FunctionType) and obj.__dict__}
    for owner, before in {**functions, **recorder.classes.before}.items():
        yield from ((owner, name, "", before.get(name, MISSING), now) for name, now in list(vars(owner).items()))
    for namespace, name, before in recorder.globals:
        yield None, name, "", before, namespace.get(name, MISSING)
    for cell, name, before in recorder.cells_of_functions:
        yield None, name, "", before, contents(cell)
    yield from _changes_of_containers(recorder)


def _changes_of_containers(recorder: Recorder) -> Iterator[tuple[Any, str, str, Any, Any]]:
    inside: set[int] | None = None
    states = {(e.parent, e.key): recorder.objects[e.register] for e in recorder.edges if e.what == "state"}
    for edge in recorder.edges:
        if edge.what not in ("sequence", "mapping", "plains"):
            continue
        container = recorder.objects[edge.register]
        if not isinstance(container, list | dict | collections.deque):
            continue
        owner = recorder.objects[edge.parent] if edge.parent >= 0 else container
        name = edge.key if edge.how in ("attr", "dict") else f"[{edge.key!r}]"
        if edge.how in ("cell", "global"):
            owner, name = None, edge.key if edge.how == "global" else edge.key[1]
        items = container.items() if isinstance(container, dict) else enumerate(container)
        for key, now in list(items):
            before = states.get((edge.register, key), MISSING)
            if recorder.register_of(now) is not None:
                continue
            if before is MISSING and not isinstance(container, dict):
                # Outside of the arguments a list may well collect what was traced, for a test or a printout.
                inside = recorder.of_arguments() if inside is None else inside
                if edge.register not in inside:
                    break
            yield owner, str(name), f"[{key!r}]", before, now


def _path_to_tracer(recorder: Recorder, value: Any) -> str | None:
    """The way from a value to a tracer in it, through containers and objects that were made inside."""
    waiting, seen = [("", value)], dict[int, Any]()
    while waiting:
        path, obj = waiting.pop()
        if isinstance(obj, Tracer):
            return path
        if identity(obj) in seen or isinstance(obj, State) or recorder.register_of(obj) is not None:
            continue
        seen[identity(obj)] = obj
        if isinstance(obj, dict):
            waiting += [(f"{path}[{key!r}]", child) for key, child in obj.items()]
        elif isinstance(obj, _CONTAINERS):
            waiting += [(f"{path}[{i}]", child) for i, child in enumerate(obj)]
        elif isinstance(obj, types.FunctionType):
            cells = zip(obj.__code__.co_freevars, obj.__closure__ or (), strict=True)
            waiting += [(f"{path}.{name}", contents(cell)) for name, cell in cells]
        elif is_users_class(type(obj)) and adapters.cell_of(type(obj)) is None:
            waiting += [(f"{path}.{name}", child) for name, child in (instance_dict(obj) or {}).items()]
            waiting += [(f"{path}.{name}", instance_attribute(obj, name)) for name in slot_names(type(obj))]
        elif _has_tracer(obj):
            return path
    return None


def _has_tracer(value: Any) -> bool:
    try:
        return has_tracer(value)
    except Exception:
        return False


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
    state = adapters.handle(obj)
    return isinstance(state, State) and peek(state) is UNSET
