"""Tracebacks show the user's frames: those of this package are hidden where JAX hides its own.

`jax_traceback_filtering` says how: "off" shows all frames, "tracebackhide" marks those to hide for IPython and pytest,
any other mode takes them out, and "auto" is one or the other. JAX's own frames are left to JAX, whose functions do the
same; it keeps no record of the frames of this package, so that its mode "remove_frames" shows them in the cause.

As in JAX, the outermost transform does it for all within, and a `try` that meets no error costs nothing.
"""

from __future__ import annotations

import builtins
import functools
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

import jax

from .._base.library import is_own_file
from .._states.frame import stack
from .explain import explain, explain_call

F = TypeVar("F", bound=Callable[..., Any])


def boundary(fun: F) -> F:
    """Hides what an error in a function of the user's passes through between here and there."""

    @functools.wraps(fun)
    def bounded(*args: Any, **kwargs: Any) -> Any:
        try:
            return fun(*args, **kwargs)
        except Exception as error:
            explain_call(error, fun, args, kwargs)
            hide_frames(error)
            raise

    return bounded  # type: ignore[return-value]


def hide_frames(error: Exception) -> None:
    """Hides the frames of this package in an error's traceback; a bare `raise` then adds none."""
    explain(error)
    mode: str = jax.config.jax_traceback_filtering  # type: ignore[attr-defined]  # defined at import
    if stack.frame is not None or mode == "off":
        return
    is_marked = mode == "tracebackhide" or (mode == "auto" and hasattr(builtins, "get_ipython"))
    shown: list[TracebackType] = []
    tb = error.__traceback__
    while tb is not None:
        if not is_own_file(tb.tb_frame.f_code.co_filename):
            shown.append(tb)
        elif is_marked:
            tb.tb_frame.f_locals["__tracebackhide__"] = True
        tb = tb.tb_next
    if not is_marked:
        rest: TracebackType | None = None
        for entry in reversed(shown):
            rest = TracebackType(rest, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
        error.__traceback__ = rest
