"""Tracers that a trace has left behind: in attributes, containers, objects made inside, globals, closures, classes.

A function that is staged has a recorder, which knows the places that it may have changed. A function that runs directly
has none. But a trace that is over and still alive is in some tracer's hands, which a weak reference tells at once; only
then is the tracer looked for.
"""

from __future__ import annotations

import collections
import functools
import types
from collections import deque
from collections.abc import Iterator
from typing import Any

import jax

from ..._jaxcompat import Tracer, has_tracer, is_tracer_of
from ..._objects.library import is_users_class, is_users_function
from ..._objects.lookup import class_lookup, contents, instance_attribute, instance_dict, slot_names
from ..._objects.names import names_of
from ..._objects.plain import MISSING, identity, is_plain
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


def left_by(trace: Any, fun: Any) -> tuple[Any, str, str, bool, str] | None:
    """Where a trace that is over has left a tracer, as `leaked` gives it, and the whole way there.

    Looked for from a function on. A list that it closes over may collect what was traced.
    """
    waiting: deque[tuple[Any, str, str, str, Any]] = deque([(None, "", "", "", fun)])
    seen: dict[int, Any] = {}
    while waiting:
        owner, name, inner, path, obj = waiting.popleft()
        if is_tracer_of(obj, trace):
            return owner, name, inner, False, path
        if identity(obj) in seen or is_plain(obj) or isinstance(obj, State | jax.Array):
            continue
        seen[identity(obj)] = obj
        below: list[tuple[str, Any]] = []  # what the same place leads to
        attributes: list[tuple[str, Any]] = []
        if isinstance(obj, types.FunctionType):
            attributes = list(obj.__dict__.items())
            variables = list(_variables(obj))
            below = [(f".{key}", child) for key, child in variables] if owner is not None else []
            waiting += [(None, key, "", key, child) for key, child in variables if owner is None]
        elif isinstance(obj, types.MethodType | functools.partial):
            is_method = isinstance(obj, types.MethodType)
            parts = (obj.__self__, obj.__func__) if is_method else (obj.func, *obj.args)
            waiting += [(None, "", "", "self" if is_method else "", child) for child in parts]
        elif isinstance(obj, dict):
            below = [(f"[{key!r}]", child) for key, child in obj.items()]
        elif isinstance(obj, _CONTAINERS):
            if owner is not None or inner or isinstance(obj, tuple):
                below = [(f"[{i}]", child) for i, child in enumerate(obj)]
        elif isinstance(obj, type) and is_users_class(obj):
            attributes = [item for base in obj.__mro__ if is_users_class(base) for item in vars(base).items()]
        elif is_users_class(type(obj)) and adapters.cell_of(type(obj)) is None:
            names = [*(instance_dict(obj) or ()), *slot_names(type(obj))]
            attributes = [(key, instance_attribute(obj, key)) for key in names]
            waiting.append((None, "", "", type(obj).__name__, type(obj)))
        else:
            wrapped = getattr(obj, "__wrapped__", getattr(obj, "__func__", None))
            below = [] if wrapped is None else [("", wrapped)]
        waiting += [(owner, name, inner + step, path + step, child) for step, child in below]
        waiting += [(obj, key, "", f"{path}.{key}".lstrip("."), child) for key, child in attributes]
    return None


def _variables(fun: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """What a function closes over, its defaults, and what the names of its module mean."""
    code, defaults = fun.__code__, fun.__defaults__ or ()
    yield from zip(code.co_freevars, map(contents, fun.__closure__ or ()), strict=True)
    yield from zip(code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount], defaults, strict=True)
    yield from (fun.__kwdefaults__ or {}).items()
    if is_users_function(fun):
        looked_up, _, stored = names_of(code)
        yield from ((name, fun.__globals__[name]) for name in {*looked_up, *stored} if name in fun.__globals__)


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
