"""Seeing which attributes of the user's objects a trace looks up, sets and deletes.

For the time of a trace the classes of the objects at hand get a `__getattribute__`, `__setattr__` and `__delattr__`
that tell the recorders of this thread. CPython gives a class 1,000 version tags. Putting such methods on and taking
them off uses up two, and a class without tags has no attribute caches for the rest of the process. So a class is
listened to `_CYCLES` times. After that the attributes that count are those for which some code has a name.
"""

from __future__ import annotations

import contextlib
import threading
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

_CYCLES = 400
_SLOTS = ("__getattribute__", "__setattr__", "__delattr__")


class Listener(Protocol):
    """What is told of each look-up."""

    def looks_up(self, obj: Any, name: str) -> None:
        """An attribute is about to be looked up."""

    def sets(self, obj: Any, name: str) -> None:
        """An attribute is about to be set or deleted."""

    def starts(self, code: types.CodeType) -> None:
        """A function of this code is about to run."""

    def replays(self, structure: Any, objects: Sequence[Any]) -> None:
        """A trace is used that was made before: its structure, and the objects by register."""

    def meets_settings(self) -> None:
        """The adapter to a framework with settings was installed."""

    def asks(self, reader: Callable[[Any], Any]) -> None:
        """A setting of a framework is about to be read."""


class _Listening(threading.local):
    listeners: tuple[Listener, ...] = ()


class _Hooks:
    """What is known of a class.

    Attributes:
      users: how many traces need its methods.
      cycles: how often it got them.
      methods: by slot: the method that was put on, and the class's own.
      names: the attributes of instances that were ever looked up or set.
    """

    __slots__ = ("cycles", "methods", "names", "users")

    def __init__(self) -> None:
        self.users = self.cycles = 0
        self.methods: dict[str, tuple[Any, Any]] = {}
        self.names: set[str] = set()


listening = _Listening()
_lock = threading.Lock()
_known: weakref.WeakKeyDictionary[type, _Hooks] = weakref.WeakKeyDictionary()


@contextlib.contextmanager
def unheard() -> Iterator[None]:
    """For what this package itself looks up on an object of the user's, on which no trace depends."""
    before = listening.listeners
    listening.listeners = ()
    try:
        yield
    finally:
        listening.listeners = before


def hook(cls: type) -> bool:
    """Puts the methods on a class; False when its instances cannot be listened to."""
    with _lock:
        known = _known.setdefault(cls, _Hooks())
        if known.users:
            known.users += 1
            return True
        if known.cycles >= _CYCLES:
            return False
        methods = _methods(cls, known.names)
        try:
            for name, method in methods.items():
                known.methods[name] = method, cls.__dict__.get(name)
                type.__setattr__(cls, name, method)
        except TypeError:  # a class made in C
            known.methods.clear()
            return False
        known.users = 1
        known.cycles += 1
        return True


def unhook(cls: type) -> None:
    """Takes the methods off again when no other trace needs them; those that the user has put there stay."""
    with _lock:
        known = _known[cls]
        known.users -= 1
        if known.users:
            return
        for name, (method, own) in known.methods.items():
            if cls.__dict__.get(name) is not method:
                continue
            if own is None:
                type.__delattr__(cls, name)
            else:
                type.__setattr__(cls, name, own)
        known.methods.clear()


def is_worn_out(cls: type) -> bool:
    """Whether a class was listened to so often that it can be no more."""
    return cls in _known and _known[cls].cycles >= _CYCLES and not _known[cls].users


def names_seen(cls: type) -> set[str]:
    """The attributes of a class's instances that were looked up or set while somebody listened."""
    return set().union(*(_known[base].names for base in cls.__mro__ if base in _known))


def own_method(cls: type, name: str) -> Any:
    """What a class itself has in one of the slots, past what was put there."""
    own = cls.__dict__.get(name)
    known = _known.get(cls)
    method, before = known.methods.get(name, (None, None)) if known is not None else (None, None)
    return before if own is method and method is not None else own


def _methods(cls: type, names: set[str]) -> dict[str, Callable[..., Any]]:
    get, put, delete = (_unhooked(cls, name) for name in _SLOTS)

    def __getattribute__(obj: Any, name: str) -> Any:
        for listener in listening.listeners:
            names.add(name)
            listener.looks_up(obj, name)
        return get(obj, name)

    def __setattr__(obj: Any, name: str, value: Any) -> None:
        for listener in listening.listeners:
            names.add(name)
            listener.sets(obj, name)
        put(obj, name, value)

    def __delattr__(obj: Any, name: str) -> None:
        for listener in listening.listeners:
            names.add(name)
            listener.sets(obj, name)
        delete(obj, name)

    return dict(zip(_SLOTS, (__getattribute__, __setattr__, __delattr__), strict=True))


def _unhooked(cls: type, name: str) -> Callable[..., Any]:
    """The class's own method, past those that were put on it or on its bases."""
    return next((method for base in cls.__mro__ if (method := own_method(base, name)) is not None), None) or getattr(
        object, name
    )
