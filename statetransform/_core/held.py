"""What a traced program itself holds of Python: the objects behind callbacks and derivative rules.

A trace serves all objects of a structure. A callback is called when the program runs, with whatever it closes over,
so there the object itself matters: a program that writes to one simulator's log must not serve another simulator.
"""

from __future__ import annotations

import functools
import gc
import types
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from .jaxcompat import Tracer, is_jaxpr, opened
from .plain import identity

_AT_MOST = 10_000  # objects; what is farther away is not looked at
_LEAVES = (str, bytes, int, float, complex, type(None), type, types.ModuleType, types.CodeType, np.ndarray, np.generic,
           types.BuiltinFunctionType, jax.Array)  # fmt: skip

_no_callables = {str, bytes, int, float, complex, bool, type(None)}  # grows by classes of JAX and NumPy


def held_by(jaxpr: Any, stops_at: Callable[[Any], bool]) -> Iterator[tuple[Any, bool]]:
    """The objects that a jaxpr's callbacks and rules lead to, and whether it is a rule that leads there.

    Args:
      jaxpr: the jaxpr.
      stops_at: the objects that are looked for, behind which the search does not go on.
    """
    found = list(_callables(jaxpr, set()))
    for is_rule in (False, True):
        for obj in _reached([fun for fun, is_of_rule in found if is_of_rule is is_rule], stops_at):
            yield obj, is_rule


def _reached(pending: list[Any], stops_at: Callable[[Any], bool]) -> Iterator[Any]:
    seen: dict[int, Any] = {}
    while pending and len(seen) < _AT_MOST:
        obj = pending.pop()
        if identity(obj) in seen or isinstance(obj, (*_LEAVES, Tracer)) or is_jaxpr(obj):
            continue
        seen[identity(obj)] = obj
        if stops_at(obj):
            yield obj
        else:
            pending.extend(_referents(obj))


def _callables(jaxpr: Any, seen: set[tuple[int, bool]]) -> Iterator[tuple[Any, bool]]:
    """The parameters of equations that are functions, and whether these are rules; of equal layers only once."""
    for eqn in opened(jaxpr).eqns:
        is_rule = "custom" in eqn.primitive.name
        for name, value in eqn.params.items():
            kind = type(value)
            if kind in _no_callables or name == "policy":  # which is asked what to keep, and equal ones say the same
                continue
            for item in value if kind is tuple or kind is list else (value,):
                kind = type(item)
                if kind in _no_callables:
                    continue
                if not (is_jaxpr(item) or callable(item) or hasattr(item, "call_wrapped")):
                    if kind.__module__.partition(".")[0] in ("jax", "jaxlib", "numpy"):
                        _no_callables.add(kind)
                    continue
                key = identity(item), is_rule  # all of them live as long as the jaxpr
                if key in seen:
                    continue
                seen.add(key)
                if is_jaxpr(item):
                    yield from _callables(item, seen)
                else:
                    yield item, is_rule


def _referents(obj: Any) -> list[Any]:
    if isinstance(obj, types.FunctionType):
        return [*(obj.__closure__ or ()), obj.__defaults__, obj.__kwdefaults__, *vars(obj).values()]
    if isinstance(obj, functools.partial):
        return [obj.func, obj.args, obj.keywords]
    return gc.get_referents(obj)
