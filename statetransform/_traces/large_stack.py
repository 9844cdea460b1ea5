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


class _Thread(threading.local):
    has_large_stack = False  # whether it is in such a frame already


thread = _Thread()


def with_large_stack(fun: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
    """Calls a function that traces, with room on the stack; at once where there is some already."""
    if thread.has_large_stack:
        return fun(*args, **kwargs)
    thread.has_large_stack = True
    try:
        return _roomy(fun, args, kwargs)
    finally:
        thread.has_large_stack = False


def _roomy(fun: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> T:
    return fun(*args, **kwargs)


_roomy.__code__ = _roomy.__code__.replace(co_stacksize=_SLOTS)
