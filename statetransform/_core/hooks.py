"""Seeing which attributes of the user's objects a trace looks up, sets and deletes.

For the time of a trace the classes of the objects at hand get a `__getattribute__`, `__setattr__` and `__delattr__`
that tell the recorders of this thread. A class gives out version tags to the interpreter's caches, of which there
are 1,000; some 500 times of putting such methods on and taking them off make its instances four times slower for
the rest of the process. So they are there only while something is traced, and after `_CYCLES` times a class is
left alone: then all attributes of its instances count.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Protocol

_CYCLES = 100
_SLOTS = ("__getattribute__", "__setattr__", "__delattr__")


class Listener(Protocol):
    """What is told of each look-up."""

    def looks_up(self, obj: Any, name: str) -> None:
        """An attribute is about to be looked up."""

    def sets(self, obj: Any, name: str) -> None:
        """An attribute is about to be set or deleted."""

    def asks(self, reader: Callable[[Any], Any]) -> None:
        """A setting of a framework is about to be read."""


class _Listening(threading.local):
    listeners: tuple[Listener, ...] = ()


listening = _Listening()
_lock = threading.Lock()
_users: dict[type, int] = {}  # hooked classes, with the number of traces that need it
_cycles: weakref.WeakKeyDictionary[type, int] = weakref.WeakKeyDictionary()


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
        if cls in _users:
            _users[cls] += 1
            return True
        if _cycles.get(cls, 0) >= _CYCLES:
            return False
        try:
            for name, method in zip(_SLOTS, _methods(cls), strict=True):
                type.__setattr__(cls, name, method)
        except TypeError:  # a class made in C
            return False
        _users[cls] = 1
        _cycles[cls] = _cycles.get(cls, 0) + 1
        return True


def unhook(cls: type) -> None:
    """Takes the methods off again when no other trace needs them."""
    with _lock:
        _users[cls] -= 1
        if _users[cls]:
            return
        del _users[cls]
        for name in _SLOTS:
            own = cls.__dict__[name].__wrapped__  # type: ignore[attr-defined]
            if own is None:
                type.__delattr__(cls, name)
            else:
                type.__setattr__(cls, name, own)


def is_hooked(cls: type) -> bool:
    """Whether a class has the methods at the moment."""
    return cls in _users


def _methods(cls: type) -> list[Callable[..., Any]]:
    get, put, delete = (_unhooked(cls, name) for name in _SLOTS)

    def __getattribute__(obj: Any, name: str) -> Any:
        for listener in listening.listeners:
            listener.looks_up(obj, name)
        return get(obj, name)

    def __setattr__(obj: Any, name: str, value: Any) -> None:
        for listener in listening.listeners:
            listener.sets(obj, name)
        put(obj, name, value)

    def __delattr__(obj: Any, name: str) -> None:
        for listener in listening.listeners:
            listener.sets(obj, name)
        delete(obj, name)

    methods = [__getattribute__, __setattr__, __delattr__]
    for name, method in zip(_SLOTS, methods, strict=True):
        method.__wrapped__ = cls.__dict__.get(name)  # type: ignore[attr-defined]
    return methods


def _unhooked(cls: type, name: str) -> Callable[..., Any]:
    """The class's own method, past those that were put on it or on its bases."""
    for base in cls.__mro__:
        method = base.__dict__.get(name)
        if base in _users and method is not None:
            method = method.__wrapped__
        if method is not None:
            return method
    return getattr(object, name)
