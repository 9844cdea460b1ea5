"""What is kept for a function, and for how long.

A trace belongs to a structure, so what is kept is found by the *code* of a function: functions that are made anew, such
as a lambda made in each `__init__`, find what another one has left. It lives as long as one of these functions, or a
wrapper. Loops and branches are handed functions that live for one call, so of what is kept for these the last few
hundred stay. Nothing of it holds a model, a state or a function.
"""

from __future__ import annotations

import functools
import types
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

from .library import is_users_class
from .plain import identity
from .traces import TraceCache

T = TypeVar("T")

_BOUND = 512  # of loops and branches, most of which have two: traces, and programs in eager mode
_WAYS = 64  # to transform one function


class Unshared:
    """A key like no other: of options by which nothing can be found again."""


class Holder(Generic[T]):
    """Keeps something alive, with the object whose identity leads to it, so that no address is used twice."""

    __slots__ = ("__weakref__", "anchor", "content")

    def __init__(self, anchor: Any, content: T) -> None:
        self.anchor, self.content = anchor, content


_holders: weakref.WeakValueDictionary[Any, Holder[Any]] = weakref.WeakValueDictionary()
_of_functions: dict[int, tuple[weakref.ref[Any], OrderedDict[Any, Holder[Any]]]] = {}
_recent: OrderedDict[Any, Holder[Any]] = OrderedDict()


def kept(fun: Callable[..., Any], way: Hashable, make: Callable[[], T]) -> Holder[T]:
    """What is kept for a function and one way of transforming it, made if there is none; to be held by the wrapper.

    Args:
      fun: the function.
      way: the transform and its options.
      make: makes what is to be kept.
    """
    anchor, wrappers, root = _anchor(fun)
    key = identity(anchor), wrappers, way
    try:
        holder = _holders.get(key)
    except TypeError:  # options that cannot be hashed
        return Holder(anchor, make())
    if holder is None:
        holder = _holders.setdefault(key, Holder(anchor, make()))
    if not any(isinstance(part, Unshared) for part in (way if isinstance(way, tuple) else (way,))):
        _tie(holder, key, root)
    return holder


def cache_of(fun: Callable[..., Any], where: str) -> TraceCache:
    """The traces of a function that a loop or branch was given."""
    return recent(fun, where, TraceCache)


def recent(fun: Callable[..., Any], way: Hashable, make: Callable[[], T]) -> T:
    """As `kept`, for a function that may be gone after the call.

    Raises:
      TypeError: `way` cannot be hashed.
    """
    anchor, wrappers, root = _anchor(fun)
    key = identity(anchor), wrappers, way
    holder = _recent.get(key)
    if holder is None:
        holder = kept(fun, way, make)
    elif (entry := _of_functions.get(identity(root))) is None or key not in entry[1]:
        _tie(holder, key, root)
    _remember(_recent, key, holder, _BOUND)
    return holder.content


def _tie(holder: Holder[Any], key: Any, root: Any) -> None:
    """Lets it live as long as the function, for wrappers that are made anew."""
    place, dies = identity(root), _of_functions.pop
    entry = _of_functions.get(place)
    if entry is None:
        try:
            entry = weakref.ref(root, lambda _: dies(place, None)), OrderedDict()
        except TypeError:  # nothing can be told when it dies
            return
        _of_functions[place] = entry
    _remember(entry[1], key, holder, _WAYS)


def _remember(among: OrderedDict[Any, Holder[Any]], key: Any, holder: Holder[Any], bound: int) -> None:
    among.pop(key, None)  # and not `move_to_end`, which fails where another thread has dropped it
    among[key] = holder
    while len(among) > bound:
        among.popitem(last=False)


def _anchor(fun: Any) -> tuple[Any, tuple[type, ...], Any]:
    """What functions have in common that differ in what they close over; how they are wrapped; and the function."""
    wrappers: list[type] = []
    while True:
        if isinstance(fun, types.FunctionType):
            return fun.__code__, tuple(wrappers), fun
        if isinstance(fun, type):
            return fun, tuple(wrappers), fun
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
                return fun, tuple(wrappers), fun
            fun = method
