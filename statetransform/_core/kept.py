"""What is kept for a function, and for how long.

A trace belongs to a structure, so what is kept belongs to the *code* of a function: functions that are made anew, be
they lambdas in a loop or methods of a class, find what the last one has left. It lives as long as a wrapper holds it;
of what no wrapper holds, the last few hundred are kept. Nothing of it holds a model, a state or a function.
"""

from __future__ import annotations

import functools
import types
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from .library import is_users_class
from .stage import TraceCache
from .structure import identity

T = TypeVar("T")

_BOUND = 256


class Unshared:
    """A key like no other: of options by which nothing can be found again."""


class _Holder:
    """What is kept, with the key whose identity leads to it, so that no address is used twice."""

    __slots__ = ("__weakref__", "anchor", "content")

    def __init__(self, anchor: Any, content: Any) -> None:
        self.anchor, self.content = anchor, content


_holders: weakref.WeakValueDictionary[Any, _Holder] = weakref.WeakValueDictionary()
_recent: OrderedDict[Any, _Holder] = OrderedDict()


def kept(fun: Callable[..., Any], way: Hashable, make: Callable[[], T]) -> tuple[T, Any]:
    """What is kept for a function and one way of transforming it, made if there is none.

    Args:
      fun: the function.
      way: the transform and its options.
      make: makes what is to be kept.

    Returns:
      It, and what keeps it alive.
    """
    anchor, wrappers = _anchor(fun)
    try:
        key = identity(anchor), wrappers, way
        holder = _holders.get(key)
    except TypeError:  # options that cannot be hashed
        holder = _Holder(anchor, make())
        return holder.content, holder
    if holder is None:
        holder = _holders.setdefault(key, _Holder(anchor, make()))
    if not any(isinstance(part, Unshared) for part in (way if isinstance(way, tuple) else (way,))):
        _recent[key] = holder
        _recent.move_to_end(key)
        while len(_recent) > _BOUND:
            _recent.popitem(last=False)
    return holder.content, holder


def cache_of(fun: Callable[..., Any], way: Hashable) -> TraceCache:
    """The traces of a function under one transform."""
    cache, holder = kept(fun, way, TraceCache)
    cache.holder = holder
    return cache


def _anchor(fun: Any) -> tuple[Any, tuple[type, ...]]:
    """What functions have in common that differ in what they close over; and how they are wrapped."""
    wrappers: list[type] = []
    while True:
        if isinstance(fun, types.FunctionType):
            return fun.__code__, tuple(wrappers)
        if isinstance(fun, type):
            return fun, tuple(wrappers)
        wrappers.append(type(fun))
        if isinstance(fun, functools.partial):
            fun = fun.func
        elif isinstance(fun, types.MethodType):
            fun = fun.__func__
        elif hasattr(fun, "__wrapped__"):
            fun = fun.__wrapped__
        else:
            method = next((vars(base)["__call__"] for base in type(fun).__mro__ if "__call__" in vars(base)), None)
            if not is_users_class(type(fun)) or method is None:
                return fun, tuple(wrappers)
            fun = method
