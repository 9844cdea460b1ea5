"""Progress bars from inside compiled loops.

Each so many steps the program calls the host, which moves a bar of `tqdm`. In the backward sweep a second bar moves:
the carry passes through a linear identity whose transpose makes the call. Values pass untouched.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np

from .._binomial.linear import Linear
from .._binomial.sweep import is_differentiable

_UPDATES = 50  # of a bar, for a loop of known length


class Meter:
    """Watches one loop.

    Args:
      where: the loop's name.
      n: the number of steps, None if it is not known.
      config: True, a label, a number of steps between updates, or a mapping of `every`, `desc` and other arguments of
        `tqdm.tqdm`.

    Raises:
      TypeError: `config` is none of these.
      ImportError: `tqdm` is missing.
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
        every = options.pop("every", max((n or 100 * _UPDATES) // _UPDATES, 1))
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise ValueError(f"{where}: progress bars are updated every so many steps, but `every` is {every!r}")
        self._n, self._every = n, every
        self._bars = Bars(n, {"desc": where, **options})

    def over_inputs(self, step: Callable[..., Any], xs: Any, is_reversed: bool) -> tuple[Callable[..., Any], Any]:
        """A step of a scan and its inputs, with the number of the step among them."""
        if not self._n:
            return step, xs
        numbers = jnp.arange(self._n, dtype=jnp.int32)

        def watched(carry: Any, x: Any) -> Any:
            x, i = x
            carry, y = step(carry, x)
            return self.mark(i, carry), y

        return watched, (xs, numbers[::-1] if is_reversed else numbers)

    def over_steps(self, step: Callable[[Any, Any], Any], lower: Any) -> Callable[[Any, Any], Any]:
        """A step of a `fori_loop`."""
        return lambda i, carry: self.mark(i - lower, step(i, carry))

    def over_carry(self, test: Any, step: Any, init: Any) -> Any:
        """Condition, step and initial carry of a `while_loop`, with a counter in the carry."""
        counted = lambda state: (state[0] + 1, self.mark(state[0], step(state[1])))
        return lambda state: test(state[1]), counted, (jnp.int32(0), init)

    def finish(self, n: Any) -> None:
        """After a loop whose length was not known: it was `n`."""
        jax.debug.callback(self._bars.finish, n)

    def mark(self, i: Any, carry: Any) -> Any:
        """The carry after step `i`, unchanged."""
        last = -1 if self._n is None else self._n - 1
        is_due = (i % self._every == 0) | (i == last)

        def call(host: Callable[[Any], None], i: Any, is_due: Any) -> None:
            jax.lax.cond(is_due, lambda i: jax.debug.callback(host, i), lambda i: None, i)

        @jax.custom_jvp
        def same(i: Any, is_due: Any, leaves: list[Any]) -> list[Any]:
            call(self._bars.forward, i, is_due)
            return leaves

        @same.defjvp
        def _(primals: Any, tangents: Any) -> Any:
            return same(*primals), Linear(lambda _, dots: dots, transpose, avals, 2)(primals[:2], tangents[2])

        def transpose(residuals: Any, cts: Any) -> Any:
            call(self._bars.backward, *residuals)
            return [jnp.zeros(x.shape, x.dtype) if ct is None else ct for ct, x in zip(cts, avals, strict=True)]

        leaves, tree = jax.tree.flatten(carry)
        moving = [is_differentiable(leaf) for leaf in leaves]
        parts = [leaf for leaf, m in zip(leaves, moving, strict=True) if m]
        avals = tuple(jax.core.ShapedArray(np.shape(x), x.dtype) for x in parts)
        marked = iter(same(i, is_due, parts))
        return tree.unflatten([next(marked) if m else leaf for leaf, m in zip(leaves, moving, strict=True)])


class Bars:
    """The bars of one loop, on the host: one forward, one backward, anew for each run.

    Steps that a backward sweep computes again also report; a bar never goes back.
    """

    def __init__(self, n: int | None, options: dict[str, Any]) -> None:
        try:
            import tqdm  # noqa: F401 - better to hear of it now than in the compiled program
        except ImportError as error:
            raise ImportError("progress bars need tqdm: `pip install statetransform[progress]`") from error
        self._n, self._options = n, options
        self._lock = threading.Lock()
        self._bar: Any = None
        self._is_backward, self._last = False, 0

    def forward(self, i: Any) -> None:
        """Step `i` was run."""
        with self._lock:
            if self._bar is None or (int(i) == 0 and self._bar.n > 1 and not self._is_backward):
                if int(i) != 0:
                    return  # computed again
                self._open("", self._n)
            if not self._is_backward:
                self._move(int(i) + 1)

    def finish(self, n: Any) -> None:
        """A forward sweep of unknown length is done after `n` steps."""
        with self._lock:
            self._last = int(n)
            if self._bar is not None and not self._is_backward:
                self._move(int(n))
                self._close()

    def backward(self, i: Any) -> None:
        """Step `i` was reversed."""
        with self._lock:
            if not self._is_backward:
                self._open(" (backward)", self._n or self._last)
                self._is_backward = True
            self._move(self._bar.total - int(i))

    def _open(self, suffix: str, total: int | None) -> None:
        from tqdm import tqdm

        self._close()
        options = dict(self._options)
        self._bar = tqdm(total=total, **{**options, "desc": f"{options['desc']}{suffix}"})

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
        self._bar, self._is_backward = None, False

    def _move(self, to: int) -> None:
        if to > self._bar.n:
            self._bar.update(to - self._bar.n)
        if to == self._bar.total:
            self._close()
