"""Seeing which attributes of the user's objects a trace looks up, sets and deletes, and which functions it runs.

For the time of a trace the classes of the objects at hand get a `__getattribute__`, `__setattr__` and `__delattr__`
that tell the recorders of this thread. CPython gives a class 1,000 version tags. Putting such methods on and taking
them off uses up two, so a class that was traced some 500 times has no attribute caches for the rest of the process.

A function that a trace could reach may look up any number of names; those of a function that does not run do not
count. From Python 3.12 on, the interpreter tells of a chosen function when it starts (`sys.monitoring`), which costs a
microsecond or two for each function and nothing once the trace is over. On Python 3.11, and where debuggers and
profilers have taken all places, every function that is reached counts as one that runs.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

_MONITORING: Any = getattr(sys, "monitoring", None)  # from Python 3.12 on
_SLOTS = ("__getattribute__", "__setattr__", "__delattr__")


#: What reads all settings of some framework, which are no attributes of any object: a mapping by name.
settings: list[Callable[[], Mapping[Any, Any]]] = []


class _Listening(threading.local):
    listeners: tuple[Any, ...] = ()  # recorders, told by `looks_up`, `sets` and `starts`, and by `asks` and `replays`


listening = _Listening()
_lock = threading.Lock()
#: By identity, as code is equal by content: how many traces need to know when it starts.
_watched: dict[int, tuple[types.CodeType, int]] = {}
#: How many traces need the methods of a class.
_users: weakref.WeakKeyDictionary[type, int] = weakref.WeakKeyDictionary()
_BEFORE = "_before_statetransform"  # an attribute of the methods that are put on a class: the class's own


@contextlib.contextmanager
def not_recorded() -> Iterator[None]:
    """Within this context our own look-ups on the user's objects are not recorded."""
    before = listening.listeners
    listening.listeners = ()
    try:
        yield
    finally:
        listening.listeners = before


def hook(cls: type) -> bool:
    """Puts the methods on a class; False when its instances cannot be listened to."""
    with _lock:
        users = _users.get(cls, 0)
        if not users:
            try:
                for name, method in zip(_SLOTS, _methods(cls), strict=True):
                    setattr(method, _BEFORE, cls.__dict__.get(name))
                    type.__setattr__(cls, name, method)
            except TypeError:  # a class made in C
                return False
        _users[cls] = users + 1
        return True


def unhook(cls: type) -> None:
    """Takes the methods off again when no other trace needs them; those that the user has put there stay."""
    with _lock:
        _users[cls] -= 1
        if _users[cls]:
            return
        for name in _SLOTS:
            own = own_method(cls, name)
            if own is None and name in cls.__dict__:
                type.__delattr__(cls, name)
            elif own is not cls.__dict__.get(name):
                type.__setattr__(cls, name, own)


def own_method(cls: type, name: str) -> Any:
    """What a class itself has in one of the slots, past what was put there."""
    own = cls.__dict__.get(name)
    return vars(own).get(_BEFORE) if isinstance(own, types.FunctionType) and _BEFORE in vars(own) else own


def _methods(cls: type) -> tuple[Callable[..., Any], ...]:
    """What is put on a class, each calling what the class has without this package."""
    own = [[method for base in cls.__mro__ if (method := own_method(base, name)) is not None] for name in _SLOTS]
    get, put, delete = [methods[0] for methods in own]

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

    return __getattribute__, __setattr__, __delattr__


@functools.cache
def _place() -> int | None:
    """The number under which the interpreter knows this package."""
    if _MONITORING is None:
        return None
    for place in (4, 3):
        if _MONITORING.get_tool(place) is None:
            _MONITORING.use_tool_id(place, __name__)
            _MONITORING.register_callback(place, _MONITORING.events.PY_START, _tell)
            return place
    return None


def can_tell() -> bool:
    """Whether somebody can tell when functions start."""
    return _place() is not None


def _tell(code: types.CodeType, offset: int) -> None:
    for listener in listening.listeners:
        listener.starts(code)


def watch(code: types.CodeType) -> bool:
    """Has the recorders of a thread told when a function of this code starts there; False if nobody can tell."""
    with _lock:
        place = _place()
        if place is None:
            return False
        _, users = _watched.get(id(code), (code, 0))
        _watched[id(code)] = code, users + 1
        if not users:
            _MONITORING.set_local_events(place, code, _MONITORING.events.PY_START)
        return True


def unwatch(code: types.CodeType) -> None:
    """Ends what `watch` began, unless another trace needs it."""
    with _lock:
        _, users = _watched.pop(id(code))
        if users > 1:
            _watched[id(code)] = code, users - 1
        elif (place := _place()) is not None:
            _MONITORING.set_local_events(place, code, _MONITORING.events.NO_EVENTS)
