"""Finds the frameworks of what a function can reach, for one that runs directly: no recorder sees what it uses."""

from __future__ import annotations

import itertools
import sys
import types
from typing import Any

import numpy as np

from .._base.library import is_ours, is_users_class, is_users_function
from .._objects.lookup import instance_attribute, instance_dict, parts, slot_names
from .._objects.names import globals_of
from .._objects.plain import identity
from .adapters import cell_of
from .installing import install_for, waiting
from .state import State

#: This many objects are looked at in the life of a process, at some 4 us each.
_PATIENCE = 10_000
_looked_at = itertools.count(1)
_NAMED = (types.FunctionType, types.ModuleType, type)  # they show their framework by their names
_CLOSED = (str, bytes, int, float, complex, bool, type(None), np.ndarray, State)  # their instances lead nowhere


def install_for_all_in(fun: Any) -> None:
    """Installs the adapters to the frameworks of what a function can reach.

    Its global names, those of the user's functions that it reaches, what these close over, and what objects hold are
    looked at while there may be cells that were not met. After `_PATIENCE` objects in all, the adapters to all
    frameworks that are imported are installed instead.
    """
    left, seen, closed = [fun], set[int](), set[type](_CLOSED)
    while left:
        if next(_looked_at) > _PATIENCE:
            for framework in sys.modules.keys() & waiting:
                install_for(sys.modules[framework])
            return
        obj = left.pop()
        if type(obj) in closed or identity(obj) in seen:
            continue
        seen.add(identity(obj))
        if issubclass(type(obj), _NAMED):
            install_for(obj)
        below = _children(obj)
        if below is None:
            closed.add(type(obj))
        else:
            left += below


def _children(obj: Any) -> list[Any] | None:
    """The objects to which an object leads; None where no object of its class leads anywhere."""
    kind: Any = type(obj)
    if (below := parts(obj)) is not None:
        by_name = globals_of(obj) if kind is types.FunctionType and is_users_function(obj) else []
        return [child for _, child in (*below, *by_name)]
    if issubclass(kind, (*_NAMED, State)) or cell_of(kind) is not None:
        return []
    if is_users_class(kind):
        held = [*(instance_dict(obj) or {}).values()]
        held += [instance_attribute(obj, name) for name in slot_names(kind)]
        return [*held, *[method for base in kind.__mro__ for method in _methods(base)]]
    return [getattr(obj, "__wrapped__", None)] if is_ours(kind) else None


def _methods(cls: type) -> list[types.FunctionType]:
    if not is_users_class(cls):
        return []
    return [child for child in list(vars(cls).values()) if type(child) is types.FunctionType]
