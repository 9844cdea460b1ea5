"""Counting what JAX does."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax

_open: list[list[str]] = []


def _listen(event: str, duration: float, **more: Any) -> None:
    if event == "/jax/core/compile/backend_compile_duration":
        for events in _open:
            events.append(event)


jax.monitoring.register_event_duration_secs_listener(_listen)  # type: ignore[arg-type]


@contextlib.contextmanager
def compilations() -> Iterator[list[str]]:
    """A list to which each compilation adds an entry."""
    events: list[str] = []
    _open.append(events)
    try:
        yield events
    finally:
        _open.remove(events)


def python_calls(run: Callable[[], Any], name: str) -> int:
    """How often Python functions of this name are called while something runs."""
    names: list[str] = []
    sys.setprofile(lambda frame, event, arg: names.append(frame.f_code.co_name) if event == "call" else None)
    try:
        run()
    finally:
        sys.setprofile(None)
    return names.count(name)
