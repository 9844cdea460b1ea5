"""Tracers that a trace has left behind: in attributes, containers, globals, closures and classes.

A trace that is over and still alive is in some tracer's hands. A weak reference tells that at once; only then is the
tracer looked for.
"""

from __future__ import annotations

import functools
import types
from collections import deque
from collections.abc import Sequence
from typing import Any

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
    """Refuses a tracer that a trace which is over has left behind.

    A list that a function closes over may collect tracers, as people do to print them. JAX says where one is used.

    Looked for from the function and the objects among its arguments on.

    Args:
      trace: the trace.
      roots: the function and the objects.
      names: how the user calls them.
      recorder: what has listened to the trace, if it was staged.

    Raises:
      StateTraceError: names the place.
    """
    waiting: deque[tuple[Any, str, str, str, Any, Any]] = deque(
        (None, "", "", path, root, None) for root, path in zip(roots, names, strict=False)
    )
    seen: dict[int, Any] = {}
    collecting: set[int] = set()  # lists of closures, and containers in them
    while waiting:
        owner, name, inner, path, obj, holder = waiting.popleft()
        if belongs_to(obj, trace):
            was_state = recorder is not None and holder is not None and recorder.led_to_state(*holder)
            raise StateTraceError.kept_tracer(owner, name, inner, was_state, path)
        if identity(obj) in seen or is_plain(obj) or isinstance(obj, jax.Array):
            continue
        seen[identity(obj)] = obj
        below: list[tuple[str, Any, Any]] = []  # what the same place leads to: step, child, key
        attributes: list[tuple[str, Any]] = []
        if isinstance(obj, types.FunctionType):
            attributes = list(obj.__dict__.items())
            variables = list(parts(obj) or ())
            free = obj.__code__.co_freevars
            collecting |= {identity(child) for key, child in variables if key in free and type(child) is list}
            if is_users_function(obj):
                names_used = names_of(obj.__code__).used
                variables += [(key, obj.__globals__[key]) for key in names_used if key in obj.__globals__]
            below = [(f".{key}", child, key) for key, child in variables] if owner is not None else []
            waiting += [(None, key, "", key, child, None) for key, child in variables if owner is None]
        elif isinstance(obj, types.MethodType | functools.partial):
            shown = "self" if isinstance(obj, types.MethodType) else ""
            waiting += [(None, "", "", shown, child, None) for _, child in parts(obj) or ()]
        elif isinstance(obj, CONTAINERS):
            children = parts(obj) or ()
            if identity(obj) in collecting:
                children = [(key, child) for key, child in children if not belongs_to(child, trace)]
                collecting |= {identity(child) for _, child in children if isinstance(child, CONTAINERS)}
            below = [(f"[{key!r}]", child, key) for key, child in children]
        elif isinstance(obj, np.ndarray):
            below = [(f".flat[{i}]", child, i) for i, child in enumerate(obj.flat if obj.dtype.hasobject else ())]
        elif isinstance(obj, types.ModuleType):  # not what they lead to, as that is much
            attributes = [(key, child) for key, child in list(vars(obj).items()) if belongs_to(child, trace)]
        elif isinstance(obj, type) and is_users_class(obj):
            attributes = [item for base in obj.__mro__ if is_users_class(base) for item in list(vars(base).items())]
        elif (is_users_class(type(obj)) or isinstance(obj, HOLDERS)) and as_state(obj) is obj:
            own = slot_names(State) if isinstance(obj, State) else ()
            names = [*(instance_dict(obj) or ()), *(name for name in slot_names(type(obj)) if name not in own)]
            attributes = [(key, instance_attribute(obj, key)) for key in names]
            waiting.append((None, "", "", type(obj).__name__, type(obj), None))
        elif isinstance(obj, types.GeneratorType):
            frame = obj.gi_frame
            below = (
                [(f".gi_frame.f_locals[{key!r}]", child, None) for key, child in frame.f_locals.items()]
                if frame
                else []
            )
        elif as_state(obj) is obj:  # a cell would be read
            behind = [getattr(obj, name) for name in ("__wrapped__", "__func__", "__self__") if hasattr(obj, name)]
            below = [("", child, None) for child in behind[:1]]
        if isinstance(obj, BaseException):
            below += [(f".args[{i}]", child, None) for i, child in enumerate(obj.args)]
        waiting += [(owner, name, inner + step, path + step, child, (obj, key)) for step, child, key in below]
        waiting += [(obj, key, "", f"{path}.{key}".lstrip("."), child, (obj, key)) for key, child in attributes]


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
