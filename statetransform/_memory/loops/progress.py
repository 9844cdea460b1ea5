"""Progress bars from inside compiled loops.

After each so many steps the program calls the host, which moves a bar of `tqdm`; a second bar moves in the backward
sweep. These calls stand between chunks of steps, never in a step: a conditional call in the body of a loop, even one
that is never taken, made XLA copy the carry in each step (1.1 to 3 times the time). So loops that are watched are loops
of loops.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ..._base.optional import progress_bar, require
from .plan import LIMIT

_UPDATES = 20  # of a bar, for a loop of known length


class ProgressBar:
    """Shows how far a loop of `n` steps is, None where that is not known: a bar forward and one backward, in each run.

    `config` is the loop's `progress`. The program calls the host after `every` steps that were run or reversed.
    """

    def __init__(self, where: str, n: int | None, config: Any) -> None:
        if isinstance(config, Mapping):
            options = dict(config)
        elif isinstance(config, str):
            options = {"desc": config}
        elif isinstance(config, bool):
            options = {}
        elif isinstance(config, int):
            options = {"every": config}
        else:
            raise TypeError(
                f"{where}: `progress` must be True, a label, a number of steps, or a mapping of options of `tqdm`, "
                f"not {config!r}"
            )
        every = options.pop("every", None)
        if every is not None and (isinstance(every, bool) or not isinstance(every, int) or every < 1):
            raise ValueError(f"{where}: progress bars are updated every so many steps, but `every` is {every!r}")
        known = {*inspect.signature(require("tqdm", "progress", "progress=").tqdm.__init__).parameters, "display"}
        if not known.issuperset(options):
            raise TypeError(f"{where}: `progress` has options that `tqdm` does not know: {sorted({*options} - known)}")
        every = every or (1000 if n is None else max(n // _UPDATES, 1))
        self.every = min(every, max(n or LIMIT, 1))
        self._tqdm = progress_bar()  # better to hear now that it is missing than in the compiled program
        self._n, self._options = n, {"desc": where, **options}
        self._lock = threading.Lock()
        self._bar: Any = None
        self._is_backward, self._last = False, 0

    def moved(self, is_backward: bool, done: Any) -> None:
        """So many steps were run, or reversed."""
        done = int(done)
        with self._lock:
            is_new_run = self._bar is not None and not is_backward and done <= self._bar.n
            if self._bar is None or is_backward != self._is_backward or is_new_run:
                if is_backward:
                    self._fill()
                self._close()
                suffix, total = (" (backward)", self._n or self._last) if is_backward else ("", self._n)
                self._bar = self._tqdm(total=total, **{**self._options, "desc": f"{self._options['desc']}{suffix}"})
            self._is_backward, self._last = is_backward, self._last if is_backward else done
            self._bar.update(done - self._bar.n)
            if done == self._bar.total:
                self._close()

    def ended(self, *_: Any) -> None:
        """The loop has ended: the call waits for its arguments. It may come once the backward sweep has begun."""
        with self._lock:
            self._fill()

    def _fill(self) -> None:
        if self._bar is not None and not self._is_backward:
            if self._bar.total:
                self._bar.update(self._bar.total - self._bar.n)
            self._close()

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
        self._bar = None


def fori_loop(
    lower: Any,
    upper: Any,
    body: Callable[[Any, Any], Any],
    init: Any,
    watch: ProgressBar | None,
    done: Callable[[Any], Any] = lambda i: i,
    is_backward: bool = False,
) -> Any:
    """:func:`jax.lax.fori_loop` in chunks, if it is watched; arguments as for `while_loop`."""
    if watch is None:
        return lax.fori_loop(lower, upper, body, init)
    count, start = (lambda state: (state[0] + 1, body(*state))), (jnp.asarray(lower, jnp.int32), init)
    return while_loop(lambda state: state[0] < upper, count, start, watch, lambda state: done(state[0]), is_backward)[1]


def while_loop(
    test: Callable[[Any], Any],
    body: Callable[[Any], Any],
    init: Any,
    watch: ProgressBar | None,
    done: Callable[[Any], Any],
    is_backward: bool = False,
) -> Any:
    """:func:`jax.lax.while_loop` in chunks, if it is watched.

    `done` gives the number of steps that are done, out of the carry.
    """
    if watch is None:
        return lax.while_loop(test, body, init)

    def chunk(state: Any) -> Any:
        until = (done(state) // watch.every + 1) * watch.every
        state = lax.while_loop(lambda state: test(state) & (done(state) < until), body, state)
        jax.debug.callback(functools.partial(watch.moved, is_backward), done(state))
        return state

    return lax.while_loop(test, chunk, init)
