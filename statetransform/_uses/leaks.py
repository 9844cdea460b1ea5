"""Tracers that a trace has left behind: in attributes, containers, globals, closures and classes.

A trace that is over and still alive is in some tracer's hands. A weak reference tells that at once; only then is the
tracer looked for.
"""

from __future__ import annotations

import functools
import types
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from .._base.errors import StateTraceError
from .._base.library import HOLDERS, is_users_class, is_users_function
from .._jax import belongs_to
from .._objects.lookup import CONTAINERS, instance_attribute, instance_dict, parts, slot_names
from .._objects.names import names_of
from .._objects.plain import MISSING, identity, is_plain
from .._states.adapters import as_state
from .._states.frame import UNSET, peek
from .._states.state import State
from .recorder import Recorder


def refuse_leaks(
    trace: Any, roots: Sequence[Any], names: Sequence[str] = ("",), recorder: Recorder | None = None
) -> None:
    """Refuses a tracer that a trace which is over has left behind: in what the function and its objects lead to.

    A list that a function closes over may collect tracers, as people do to print them. JAX says where one is used.

    Args:
      trace: the trace.
      roots: the function and the objects.
      names: how the user calls them.
      recorder: what has listened to the trace, if it was staged.

    Raises:
      StateTraceError: names the place.
    """
    waiting = deque((_Place(path=path), root) for root, path in zip(roots, names, strict=False))
    seen: dict[int, Any] = {}
    collecting: set[int] = set()  # lists of closures, and containers in them
    while waiting:
        place, obj = waiting.popleft()
        if belongs_to(obj, trace):
            was_state = recorder is not None and place.holder is not None and recorder.led_to_state(*place.holder)
            raise StateTraceError.kept_tracer(place.owner, place.name, place.inner, was_state, place.path)
        if identity(obj) in seen or is_plain(obj) or isinstance(obj, jax.Array):
            continue
        seen[identity(obj)] = obj
        waiting += _below(place, obj, trace, collecting)


class _Place(NamedTuple):
    """A place where a tracer may be, as messages show it.

    Attributes:
      owner, name: what has an attribute of this name; None for a variable, or a root.
      inner: the way from that attribute or variable on.
      path: the whole way.
      holder: the object one step before, and the key or attribute of that step; None for a variable.
    """

    owner: Any = None
    name: str = ""
    inner: str = ""
    path: str = ""
    holder: tuple[Any, Any] | None = None

    def attribute(self, obj: Any, name: str) -> _Place:
        """An attribute of the object at this place."""
        return _Place(obj, name, "", f"{self.path}.{name}".lstrip("."), (obj, name))

    def further(self, obj: Any, step: str, key: Any) -> _Place:
        """What the object at this place has in it."""
        return self._replace(inner=self.inner + step, path=self.path + step, holder=(obj, key))


def _below(place: _Place, obj: Any, trace: Any, collecting: set[int]) -> list[tuple[_Place, Any]]:
    """What an object leads to, each with its place; `collecting`, containers that may have tracers, gets more."""
    found: list[tuple[_Place, Any]] = []
    inside: list[tuple[str, Any, Any]] = []  # step, child, key
    attributes: list[tuple[str, Any]] = []
    if isinstance(obj, types.FunctionType):
        attributes = list(obj.__dict__.items())
        variables = _variables(obj, collecting)
        if place.owner is None:
            found = [(_Place(name=name, path=name), child) for name, child in variables]
        else:
            inside = [(f".{name}", child, name) for name, child in variables]
    elif isinstance(obj, types.MethodType | functools.partial):
        shown = "self" if isinstance(obj, types.MethodType) else ""
        found = [(_Place(path=shown), child) for _, child in parts(obj) or ()]
    elif isinstance(obj, CONTAINERS):
        children = parts(obj) or ()
        if identity(obj) in collecting:
            children = [(key, child) for key, child in children if not belongs_to(child, trace)]
            collecting |= {identity(child) for _, child in children if isinstance(child, CONTAINERS)}
        inside = [(f"[{key!r}]", child, key) for key, child in children]
    elif isinstance(obj, np.ndarray):
        inside = [(f".flat[{i}]", child, i) for i, child in enumerate(obj.flat if obj.dtype.hasobject else ())]
    elif isinstance(obj, types.ModuleType):  # not what they lead to, as that is much
        attributes = [(key, child) for key, child in list(vars(obj).items()) if belongs_to(child, trace)]
    elif isinstance(obj, type) and is_users_class(obj):
        attributes = [item for base in obj.__mro__ if is_users_class(base) for item in list(vars(base).items())]
    elif (is_users_class(type(obj)) or isinstance(obj, HOLDERS)) and as_state(obj) is obj:
        own = slot_names(State) if isinstance(obj, State) else ()
        names = [*(instance_dict(obj) or ()), *(name for name in slot_names(type(obj)) if name not in own)]
        attributes = [(key, instance_attribute(obj, key)) for key in names]
        found.append((_Place(path=type(obj).__name__), type(obj)))
    elif isinstance(obj, types.GeneratorType):
        variables = obj.gi_frame.f_locals.items() if obj.gi_frame else ()
        inside = [(f".gi_frame.f_locals[{key!r}]", child, None) for key, child in variables]
    elif as_state(obj) is obj:  # a cell would be read
        behind = [getattr(obj, name) for name in ("__wrapped__", "__func__", "__self__") if hasattr(obj, name)]
        inside = [("", child, None) for child in behind[:1]]
    if isinstance(obj, BaseException):
        inside += [(f".args[{i}]", child, None) for i, child in enumerate(obj.args)]
    found += [(place.further(obj, step, key), child) for step, child, key in inside]
    return found + [(place.attribute(obj, key), child) for key, child in attributes]


def _variables(fun: types.FunctionType, collecting: set[int]) -> list[tuple[str, Any]]:
    """What a function closes over, its defaults, and the global names that it uses."""
    found, free = list(parts(fun) or ()), fun.__code__.co_freevars
    collecting |= {identity(child) for name, child in found if name in free and type(child) is list}
    if is_users_function(fun):
        names = names_of(fun.__code__).used
        found += [(name, fun.__globals__[name]) for name in names if name in fun.__globals__]
    return found


def take_back(recorder: Recorder) -> None:
    """After a trace that failed: attributes that were set to states which will have no value are as before."""
    for register, name, before in reversed(recorder.changes):
        obj = recorder.objects[register]
        now = instance_attribute(obj, name)
        state = as_state(now)
        if not isinstance(state, State) or peek(state) is not UNSET:
            continue  # it was not made in the trace that failed
        if before is not MISSING:
            object.__setattr__(obj, name, before)
        elif isinstance(now, State):
            object.__delattr__(obj, name)
        else:  # a module of another framework may keep a list of what is in it
            delattr(obj, name)
