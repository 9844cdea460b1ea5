"""JAX's trace context: which one is active, and dicts that belong to it."""

from __future__ import annotations

import os.path
import sys
import types
import weakref
from typing import Any

import jax
import jax.core
import jax.extend.core as jex
import jax.extend.linear_util as lu

trace_state = jex.get_opaque_trace_state
take_current_trace = jex.take_current_trace
set_current_trace = jex.set_current_trace

#: The state of a thread in which no transform is active. The evaluation trace is one for all threads.
TOP_LEVEL = trace_state()


def is_top_level() -> bool:
    """Whether no JAX transform is active in this thread."""
    return trace_state() == TOP_LEVEL


#: What calls a callback, where it is compiled and where it is not.
_CALLERS = frozenset({
    "debug_callback_impl", "pure_callback_impl", "io_callback_impl", "_callback", "_wrapped_callback",
})  # fmt: skip
_CALLERS_FILES = tuple(
    os.path.join(os.path.dirname(jax.__file__), "_src", name) for name in ("callback.py", "debugging.py")
)


def is_in_callback(within: int = 0) -> bool:
    """Whether the running code is a host callback's that JAX calls in this thread.

    It runs among the traces that go on then; nothing but the Python stack tells.

    Args:
      within: the identity of the Python frame up to which to look.
    """
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and id(frame) != within:
        if frame.f_code.co_name in _CALLERS and frame.f_code.co_filename in _CALLERS_FILES:
            return True
        frame = frame.f_back
    return False


def is_jit_disabled() -> bool:
    """Whether :func:`jax.disable_jit` asks for functions to run in Python."""
    return jax.config.jax_disable_jit  # type: ignore[attr-defined]  # defined at import, unseen by type checkers


def forget_failed_calls(jitted: Any) -> None:
    """Lets a function of :func:`jax.jit` take its fast way again, with all types for which a call has raised.

    For those JAX goes through Python at every later call, also when these succeed. Traces and programs stay.
    """
    forget = getattr(jitted, "_clear_cache", None)
    if forget is not None:  # else such calls are slower, and right
        forget()


class _Context:
    """Stands for one configuration of JAX."""

    __slots__ = ("__weakref__",)


@lu.cache
def _context(anchor: Any) -> _Context:
    return _Context()


#: JAX's caches are keyed by its value, so a function that runs with one of its own finds nothing in them.
run_of_caches: Any = jax.make_user_context(None)
_NO_INFO = jex.DebugInfo("cache", "statetransform", (), ())  # without one, JAX warns


class ContextDict:
    """A dict per configuration of JAX (x64, matmul precision, mesh, named axes, ...), but for `run_of_caches`.

    What a trace yields depends on JAX's whole trace context. Its key is not public, but the caches of
    `jax.extend.linear_util` are keyed by it, so one of them hands out an object for each context. The dicts
    themselves are kept here, where the garbage collector can see that they refer back to their owner; but
    `jax.clear_caches()` empties them all the same.
    """

    __slots__ = ("_anchor", "_dicts")

    def __init__(self) -> None:
        self.clear()

    def current(self) -> dict[Any, Any]:
        """The dict that belongs to the trace context of this moment."""
        with run_of_caches(None):
            context = _context(self._anchor)
        found = self._dicts.get(context)
        if found is None:
            found = self._dicts[context] = {}
        return found

    def dicts(self) -> list[dict[Any, Any]]:
        """The dicts of all contexts."""
        contexts = [context for ref in self._dicts.keyrefs() if (context := ref()) is not None]
        return [found for context in contexts if (found := self._dicts.get(context)) is not None]

    def clear(self) -> None:
        """Forgets everything, in every context."""
        self._anchor = lu.wrap_init(lambda: None, debug_info=_NO_INFO)
        self._dicts: weakref.WeakKeyDictionary[_Context, dict[Any, Any]] = weakref.WeakKeyDictionary()
