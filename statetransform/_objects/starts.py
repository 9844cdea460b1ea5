"""Seeing which of the user's functions start to run while something is traced.

A function that a trace could reach may look up any number of names; those of a function that does not run do not
count. From Python 3.12 on, the interpreter tells of a chosen function when it starts (`sys.monitoring`), which costs a
microsecond or two for each function and nothing once the trace is over. On Python 3.11, and where debuggers and
profilers have taken all places, every function that is reached counts as one that runs.
"""

from __future__ import annotations

import functools
import sys
import threading
import types
from typing import Any

from .hooks import listening

_monitoring: Any = getattr(sys, "monitoring", None)  # from Python 3.12 on
_lock = threading.Lock()
_watched: dict[int, tuple[types.CodeType, int]] = {}  # by identity: code is equal by content. How many traces need it


@functools.cache
def _place() -> int | None:
    """The number under which the interpreter knows this package."""
    if _monitoring is None:
        return None
    for place in (4, 3):
        if _monitoring.get_tool(place) is None:
            _monitoring.use_tool_id(place, __name__)
            _monitoring.register_callback(place, _monitoring.events.PY_START, _tell)
            return place
    return None


def can_tell() -> bool:
    """Whether somebody can tell when functions start."""
    return _place() is not None


def _tell(code: types.CodeType, offset: int) -> None:
    del offset
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
            _monitoring.set_local_events(place, code, _monitoring.events.PY_START)
        return True


def unwatch(code: types.CodeType) -> None:
    """Ends what `watch` began, unless another trace needs it."""
    with _lock:
        _, users = _watched.pop(id(code))
        if users > 1:
            _watched[id(code)] = code, users - 1
        elif (place := _place()) is not None:
            _monitoring.set_local_events(place, code, _monitoring.events.NO_EVENTS)
