"""Progress bars from inside compiled loops.

After each so many steps the program calls the host, which moves a bar of `tqdm`; a second bar moves in the backward
sweep.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Mapping
from typing import Any

from .._loops.chunks import Watch
from .._loops.plan import LIMIT
from .._report.optional import progress_bar, require

_UPDATES = 20  # of a bar, for a loop of known length


class ProgressBar(Watch):
    """Shows how far a loop of `n` steps is; None where that is not known. `config` is the loop's `progress`."""

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
        bars = Bars(n, {"desc": where, **options})
        known = {*inspect.signature(require("tqdm", "progress", "progress=").tqdm.__init__).parameters, "display"}
        if not known.issuperset(options):
            raise TypeError(f"{where}: `progress` has options that `tqdm` does not know: {sorted({*options} - known)}")
        every = every or (1000 if n is None else max(n // _UPDATES, 1))
        super().__init__(min(every, max(n or LIMIT, 1)), bars.forward, bars.backward, bars.over)


class Bars:
    """The bars of one loop, on the host: one forward, one backward, anew for each run."""

    def __init__(self, n: int | None, options: dict[str, Any]) -> None:
        self._tqdm = progress_bar()  # better to hear now that it is missing than in the compiled program
        self._n, self._options = n, options
        self._lock = threading.Lock()
        self._bar: Any = None
        self._is_backward, self._last = False, 0

    def forward(self, done: Any) -> None:
        """So many steps were run."""
        with self._lock:
            if self._bar is None or self._is_backward or int(done) <= self._bar.n:
                self._open("", self._n)
            self._is_backward, self._last = False, int(done)
            self._move(int(done))

    def backward(self, done: Any) -> None:
        """So many steps were reversed."""
        with self._lock:
            if self._bar is None or not self._is_backward:
                self._open(" (backward)", self._n or self._last)
            self._is_backward = True
            self._move(int(done))

    def over(self, done: Any) -> None:
        """The loop has ended after so many steps, of which it was not known that they are the last."""
        with self._lock:
            if not self._is_backward:
                self._close()

    def _open(self, suffix: str, total: int | None) -> None:
        self._close()
        options = dict(self._options)
        self._bar = self._tqdm(total=total, **{**options, "desc": f"{options['desc']}{suffix}"})

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
        self._bar = None

    def _move(self, to: int) -> None:
        self._bar.update(to - self._bar.n)
        if to == self._bar.total:
            self._close()
