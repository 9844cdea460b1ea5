"""Which functions find each other's traces, and for how long these are kept.

A trace belongs to a structure, so functions of the same *code* that are transformed in the same way can share it: a
lambda made in each `__init__` finds what another one has left. They are a `Family`. Each function keeps the traces and
programs that it uses itself, for as long as it lives or something wraps it; a family holds its members' only weakly,
but for the last few. So what nobody can call any more is freed at once, and a sweep over a thousand functions that all
live traces each of them once.

Loops and branches are handed functions that live for one call, so the traces that these used last are kept as well.
"""

from __future__ import annotations

import functools
import types
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

from .._base.library import is_users_class
from .._jax import ContextDict
from .._objects.plain import identity
from .log import LogEntry

T = TypeVar("T")

_RECENT = 128  # traces of loops and branches
_LOGGED = 200  # entries of `explain_retrace`; so many show the pattern
_WAYS = 64  # to transform one function
_SEARCHED = 64  # members' traces that a function looks through
_SPARE = 8  # traces and programs of members that are gone, for functions that are made one after the other
_LAST: Any = object()  # the key under which these are


class Unshared:
    """An option that equals no other, so that the functions that have it are no family."""


NEVER: Any = None, (), 0  #: The value of `repeats` after a call that found a trace.


class Family:
    """The functions of one code that are transformed in one way.

    Attributes:
      log: what the last traces that were made for them depended on, oldest first.
      repeats: the edge that had one of them traced again last, its objects, and at how many calls in a row.
      said: the warnings given.

    Args:
      anchor: the object by whose identity the family is found; held, so that its address is not used twice.
    """

    __slots__ = ("__weakref__", "_anchor", "_found", "log", "repeats", "said")

    def __init__(self, anchor: Any = None) -> None:
        self._anchor = anchor
        self.log: deque[LogEntry] = deque(maxlen=_LOGGED)
        self._found = ContextDict()
        self.forget()

    def forget(self) -> None:
        """Forgets what the members have made."""
        self._found.clear()
        self.log.clear()
        self.repeats: tuple[str | None, Sequence[Callable[[], Any]], int] = NEVER
        self.said: set[str] = set()

    def log_of(self, fun: Any) -> list[LogEntry]:
        """The part of the log that is about a function itself."""
        return [entry for entry in tuple(self.log) if entry.fun() is fun]

    def known(self, key: Any) -> list[Any]:
        """What members that live have for a key, the last made first."""
        return [item for ref in self._found.current().get(key, ()) if (item := ref()) is not None]

    def add(self, key: Any, item: Any) -> None:
        """Lets the other members find what one of them has made."""
        current = self._found.current()
        known = [ref for ref in current.get(key, ()) if (other := ref()) is not None and other is not item]
        current[key] = (weakref.ref(item), *known)[:_SEARCHED]
        current.setdefault(_LAST, deque(maxlen=_SPARE)).append(item)

    def discard(self, item: Any) -> None:
        """Keeps it no longer."""
        for current in self._found.dicts():
            if item in (spare := current.get(_LAST, ())):
                spare.remove(item)
        for current in _recent.dicts():
            current.pop(item, None)


_families: weakref.WeakValueDictionary[Any, Family] = weakref.WeakValueDictionary()
_of_functions: dict[int, tuple[weakref.ref[Any], dict[Any, Any]]] = {}
_recent = ContextDict()


def cache_of(fun: Callable[..., Any], way: Hashable, make: Callable[[Family], T]) -> T:
    """What a function keeps for one way of transforming it, made if there is nothing; to be held by its wrapper.

    Args:
      fun: the function.
      way: the transform and its options.
      make: makes what is to be kept, for a family.
    """
    anchor, wrappers, root = _anchor(fun)
    key = wrappers, way
    try:
        family = _families.get((identity(anchor), *key))
    except TypeError:  # options that cannot be hashed
        return make(Family())
    if family is None:
        family = _families.setdefault((identity(anchor), *key), Family(anchor))
    if any(isinstance(part, Unshared) for part in (way if isinstance(way, tuple) else (way,))):
        return make(family)
    among = _kept_of(root)
    content = among.get(key)
    if content is None:
        content = make(family)
    remember(among, key, content, _WAYS)
    return content


def keep_recent(item: Any, family: Family) -> None:
    """Keeps what a loop or branch has used, whose function may be gone after the call, and where others find it."""
    remember(_recent.current(), item, family, _RECENT)


def _kept_of(root: Any) -> dict[Any, Any]:
    """What a function keeps, by how it is transformed."""
    place, dies = identity(root), _of_functions.pop
    entry = _of_functions.get(place)
    if entry is None:
        try:
            entry = weakref.ref(root, lambda _: dies(place, None)), {}
        except TypeError:  # nothing can be told when it dies
            return {}
        _of_functions[place] = entry
    return entry[1]


def remember(among: dict[Any, Any], key: Any, item: Any, bound: int) -> None:
    """Puts an item behind the others, of which the first go when there are too many."""
    among.pop(key, None)  # and not `move_to_end`, which fails where another thread has dropped it
    among[key] = item
    if (surplus := len(among) - bound) > 0:
        for oldest in [*among][:surplus]:  # a copy, since another thread may add to it
            among.pop(oldest, None)


def _anchor(fun: Any) -> tuple[Any, tuple[type, ...], Any]:
    """What functions have in common that differ in what they close over; how they are wrapped; and the function."""
    wrappers: list[type] = []
    root: Any = None
    while True:
        if isinstance(fun, types.FunctionType):
            return fun.__code__, tuple(wrappers), fun if root is None else root
        if isinstance(fun, type):
            return fun, tuple(wrappers), fun if root is None else root
        wrappers.append(type(fun))
        if isinstance(fun, types.MethodType):
            fun = fun.__func__
        elif isinstance(fun, functools.partial):
            fun, root = fun.func, fun if root is None else root
        elif hasattr(fun, "__wrapped__"):
            fun = fun.__wrapped__
        else:
            method = next((vars(base)["__call__"] for base in type(fun).__mro__ if "__call__" in vars(base)), None)
            root = fun if root is None else root
            if not is_users_class(type(fun)) or method is None:
                return fun, tuple(wrappers), root
            fun = method
