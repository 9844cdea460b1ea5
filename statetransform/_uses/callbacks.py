"""Python objects that a traced program refers to: those behind callbacks and derivative rules.

A trace serves all objects of a structure. A callback is called when the program runs, with what it closes over,
so the object itself matters: a program that writes to one simulator's log must not serve another simulator.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from .._base.library import is_users_class
from .._jax import Tracer, is_jaxpr, opened
from .._objects.lookup import parts, slot_names
from .._objects.plain import identity

_LEAVES = (str, bytes, int, float, complex, type(None), type, types.ModuleType, types.CodeType, np.ndarray, np.generic,
           jax.Array, Tracer)  # fmt: skip

_NO_CALLABLES = {str, bytes, int, float, complex, bool, type(None)}


def objects_behind(jaxpr: Any, stops_at: Callable[[Any], bool]) -> Iterator[tuple[Any, bool]]:
    """The objects that a jaxpr's callbacks and rules lead to, and whether it is a rule that leads there.

    Args:
      jaxpr: the jaxpr.
      stops_at: the objects that are looked for, behind which the search does not go on. Functions are given, too.
    """
    found = list(_callables(jaxpr, set()))
    for is_rule in (False, True):
        seen: dict[int, Any] = {}
        pending = [fun for fun, is_of_rule in found if is_of_rule is is_rule]
        while pending:
            obj = pending.pop()
            if identity(obj) in seen or isinstance(obj, _LEAVES) or is_jaxpr(obj):
                continue
            seen[identity(obj)] = obj
            is_looked_for = stops_at(obj)
            if is_looked_for or isinstance(obj, types.FunctionType):
                yield obj, is_rule
            if not is_looked_for:
                pending.extend(_behind(obj))


def _behind(obj: Any) -> Iterator[Any]:
    """What an object was made with: never what a module or a library's registry has."""
    if (found := parts(obj)) is not None:
        yield from (x for part in found for x in part)  # of a mapping, the keys as well
        if isinstance(obj, types.FunctionType):
            yield getattr(obj, "__wrapped__", None)
    elif is_users_class(type(obj)) or callable(obj) or hasattr(obj, "call_wrapped"):
        attributes = getattr(obj, "__dict__", None)
        yield from attributes.values() if isinstance(attributes, dict) else ()
        yield from (getattr(obj, name, None) for name in slot_names(type(obj)))
        if not is_users_class(type(obj)):
            yield getattr(obj, "__wrapped__", None)


def _callables(jaxpr: Any, seen: set[tuple[int, bool]]) -> Iterator[tuple[Any, bool]]:
    """The parameters of equations that are functions, and whether these are rules; of equal layers only once."""
    for eqn in opened(jaxpr).eqns:
        is_rule = "custom" in eqn.primitive.name
        for name, value in eqn.params.items():
            if name == "policy":  # which is asked what to keep, and equal ones say the same
                continue
            for item in value if type(value) in (tuple, list) else (value,):
                key = identity(item), is_rule  # all of them live as long as the jaxpr
                if type(item) in _NO_CALLABLES or key in seen:
                    continue
                seen.add(key)
                if is_jaxpr(item):
                    yield from _callables(item, seen)
                elif callable(item) or hasattr(item, "call_wrapped"):
                    yield item, is_rule
