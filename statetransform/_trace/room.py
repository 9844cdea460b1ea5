"""Room on the interpreter's stack for tracing.

CPython keeps Python frames in chunks of 16 KiB and gives a chunk back as soon as its first frame returns.
Tracing nests deeply, and wherever a hot function happens to be called across the end of a chunk, each
of its calls maps and unmaps memory: tracing and lowering a gradient of 1000 equations took 0.72 to 1.5
times as long depending on nothing but the depth of the stack at the call. A frame that itself asks for more
than a chunk gets a larger one, with room behind it for all frames below, and the effect is gone.

Only time depends on this. An interpreter that lays out its stack in another way ignores it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

_SLOTS = 1 << 17  # a frame of 1 MiB; its chunk has 2 MiB, of which the system only backs what is touched


class _Room(threading.local):
    is_made = False


_room = _Room()


def has_room() -> bool:
    """Whether there is room on the stack already."""
    return _room.is_made


def with_room(fun: Callable[..., T], *args: Any) -> T:
    """Calls a function that traces, with room on the stack; at once where there is some already."""
    if _room.is_made:
        return fun(*args)
    _room.is_made = True
    try:
        return _roomy(fun, args)
    finally:
        _room.is_made = False


def _roomy(fun: Callable[..., T], args: tuple[Any, ...]) -> T:
    return fun(*args)


_roomy.__code__ = _roomy.__code__.replace(co_stacksize=_SLOTS)
