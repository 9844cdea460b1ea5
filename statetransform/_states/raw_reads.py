"""Reads of states within raw JAX transforms, whose traces JAX keeps by the identity of functions alone."""

from __future__ import annotations

import contextlib
import itertools
import threading
import warnings
import weakref
from collections.abc import Callable
from typing import Any, TypeAlias

from .._base.errors import StaleReadWarning, describe
from .._base.functions import code_of
from .._base.sites import is_shown, user_site
from .._jax import ContextDict, run_of_caches

Frame: TypeAlias = Any  # the one of `frame`, which imports this module
State: TypeAlias = Any  # the one of `state`, which imports this module


class ReadInRawTransform(BaseException):
    """Leaves a run in which a raw JAX transform that stages is about to read a state, and to cache what it traces.

    Args:
      frame: the frame of the run, within which the raw transform stands.
    """

    def __init__(self, frame: Frame) -> None:
        super().__init__()
        self.around: Frame | None = frame.parent


_runs = itertools.count(1)
_readers: weakref.WeakSet[Any] = weakref.WeakSet()  # code in which raw transforms read states


#: Not empty once a raw transform has read a state at the top level: JAX's caches may then hold old values.
_outside = ContextDict()


def renewed() -> Any:
    """A context in which nothing is found that JAX has cached until now."""
    return run_of_caches(next(_runs))


class _Clean(threading.local):
    """A context value of a thread's own, in which no raw transform has read a state; None once one has."""

    run: int | None = None


_clean = _Clean()


def note_read() -> None:
    """Notes that JAX's caches may hold a state's value from now on. Later runs must not use them."""
    _clean.run = None


def is_clean() -> bool:
    """Whether nothing that JAX has cached in this run, one with fresh caches, knows the value of a state."""
    return _clean.run is not None and run_of_caches.value == _clean.run


class Fresh:
    """A context in which a function runs such that no raw JAX transform in it finds what it has traced in another run.

    JAX caches the traces of `jax.jit`, `jax.lax.scan` and the like by the identity of their function, with whatever
    that closes over as it was: the values of states, too. In a run with a context value of its own nothing is found.
    But then JAX traces and compiles again whatever is jitted, so it is done only for functions in which such a read
    was seen, and these begin again at the first one. Where such a read was seen outside of all runs, any function may
    find what it has left; those without a read of their own then share a context value, and what JAX caches there.

    It is entered in a loop, whose second round begins the run again. As a context it takes no frame of Python's stack,
    which nested transforms would take each.

    Args:
      fun: the function.
      around: the frame around it.

    >>> attempt = Fresh(len, None)
    >>> while True:
    ...     with attempt as is_fresh:  # whether JAX's caches are fresh
    ...         break
    """

    def __init__(self, fun: Callable[..., Any], around: Frame | None) -> None:
        self._code, self._around = code_of(fun), around
        self._begins_again = False

    def __enter__(self) -> bool:
        self._caches, self._is_fresh = self._chosen()
        self._caches.__enter__()
        return self._is_fresh

    def _chosen(self) -> tuple[contextlib.AbstractContextManager[Any], bool]:
        around = self._around
        is_reader = self._begins_again or (self._code is not None and self._code in _readers)
        is_suspect = bool(_outside.current())
        if not (is_suspect or is_reader):
            return contextlib.nullcontext(), False
        if not is_reader:
            if around is not None and around.is_fresh and is_clean():
                return contextlib.nullcontext(), True
            if around is None:
                _clean.run = next(_runs) if _clean.run is None else _clean.run
                return run_of_caches(_clean.run), True
        return renewed(), True

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> bool:
        self._caches.__exit__(kind, error, traceback)
        # Else the raw transform stands around this run, or it is one with fresh caches already.
        is_own = isinstance(error, ReadInRawTransform) and error.around is self._around
        if not is_own or self._is_fresh:
            return False
        self._begins_again = True
        if self._code is not None:
            _readers.add(self._code)
        return True


_warned: weakref.WeakKeyDictionary[State, set[tuple[str, int]]] = weakref.WeakKeyDictionary()


def warn_of_stale(state: State) -> None:
    """Once for each state and place; a static value is nobody's to follow, and a program that is shown is not run."""
    if state._static:
        return
    _outside.current()["is_read"] = True
    if is_shown():
        return
    site = user_site()
    places = _warned.setdefault(state, set())
    if site not in places:
        text = (
            f"{describe(state)} is read inside a raw JAX transform that stages (`jax.jit`, `jax.lax.scan`, "
            "`jax.checkpoint`, ...). Its current value becomes a constant there, so a later call may not see a "
            "new value. Use the transform of the same name from `statetransform.transform`, or pass the value "
            "as an argument."
        )
        warnings.warn_explicit(text, StaleReadWarning, *site)
        places.add(site)
