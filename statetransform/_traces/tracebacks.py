"""Tracebacks show the user's frames: those of this package are hidden where JAX hides its own.

`jax_traceback_filtering` says how: "off" shows all frames, "tracebackhide" marks those to hide for IPython and pytest,
any other mode takes them out, and "auto" is one or the other. JAX's own frames are left to JAX, whose functions do the
same; it keeps no record of the frames of this package, so that its mode "remove_frames" shows them in the cause.

As in JAX, the outermost transform does it for all within, and a `try` that meets no error costs nothing.
"""

from __future__ import annotations

import builtins
import difflib
import functools
import inspect
import re
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, TypeVar

import jax

from .._base.library import is_own_file
from .._states.frame import stack

F = TypeVar("F", bound=Callable[..., Any])

_REVERSIBLE = (
    "A loop of unknown length can be differentiated with a number of stored carries. If the loop is in library code, "
    "write `transform.checkpoint(f, policy=policies.loops(20))` around the function `f` that calls it; in a loop with "
    "`checkpoint=`, `f` is the step. In your own code, write `transform.while_loop(..., checkpoint=20)` or "
    "`transform.fori_loop(..., checkpoint=20)`."
)


_UNKNOWN = re.compile(r"\(\) got an unexpected keyword argument '(\w+)'$")
_POLICY_OF_A_LOOP = re.compile(
    r"(scan|for_loop|fori_loop|while_loop|map)\(\) got an unexpected keyword argument 'policy'"
)


def boundary(fun: F) -> F:
    """Hides what an error in a function of the user's passes through between here and there."""

    @functools.wraps(fun)
    def bounded(*args: Any, **kwargs: Any) -> Any:
        try:
            return fun(*args, **kwargs)
        except Exception as error:
            if kwargs and isinstance(error, TypeError):
                _say_what_was_meant(error, fun, kwargs)
            hide_frames(error)
            raise

    return bounded  # type: ignore[return-value]


def hide_frames(error: Exception) -> None:
    """Hides the frames of this package in an error's traceback; a bare `raise` then adds none."""
    _say_what_to_write(error)
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


def _say_what_was_meant(error: TypeError, fun: Any, given: Mapping[str, Any]) -> None:
    """Names the option that is written like one that nobody knows, as Python 3.13 does for functions of its own."""
    found = _UNKNOWN.search(text := str(error))
    if found is not None and found[1] in given and "Did you mean" not in text:
        known = inspect.signature(fun).parameters
        if found[1] not in known and (close := difflib.get_close_matches(found[1], known, n=1)):
            error.args = (f"{text}. Did you mean {close[0]!r}?",)


def _say_what_to_write(error: Exception) -> None:
    """Adds a note, once, to two errors: a loop that JAX cannot differentiate, and a loop that is given a policy."""
    note = None
    if isinstance(error, ValueError) and "does not work for lax.while_loop" in str(error):
        note = _REVERSIBLE
    elif isinstance(error, TypeError) and (found := _POLICY_OF_A_LOOP.match(str(error))):
        note = (
            f"A policy belongs to a function. Put it on the body, `transform.{found[1]}(transform.checkpoint(body, "
            "policy=...), ...)`, or choose what the loop stores with `checkpoint=`."
        )
    if note is not None and note not in getattr(error, "__notes__", ()):
        error.add_note(note)
