"""`timeline`: what is alive through the forward and the backward pass."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from .._analysis.compiled import step_of
from .._analysis.live import Moment, moments
from .._analysis.sizes import format_bytes
from .._analysis.split import split
from .._analysis.staged import stage
from ._table import Report, Table


class Timeline(Report, Sequence[Moment]):
    """Live bytes at each equation; a sequence of moments, forward ones first.

    Attributes:
        name: of the function.
        compiled: bytes of arguments, outputs and temporaries of the compiled gradient step, None where the backend does
            not say.

    Example:
      >>> from statetransform import inspect
      >>> import jax.numpy as jnp
      >>> line = inspect.timeline(lambda x: jnp.sin(x).sum(), jnp.ones(1024))
      >>> line.peak, line.boundary, line.groups["arguments"][0]
      (12296, 3, 4096)
    """

    def __init__(self, name: str, found: Sequence[Moment], compiled: dict[str, int] | None) -> None:
        self.name: str = name
        self.compiled: dict[str, int] | None = compiled
        self._moments = tuple(found)

    def __getitem__(self, index: Any) -> Any:
        return self._moments[index]

    def __len__(self) -> int:
        return len(self._moments)

    @property
    def peak(self) -> int:
        """The most bytes that are alive at once; an estimate."""
        return max((moment.bytes for moment in self), default=0)

    @property
    def peak_at(self) -> int:
        """The number of the equation at which that is, from 0."""
        return max(range(len(self)), key=lambda i: self[i].bytes, default=0)

    @property
    def boundary(self) -> int:
        """The number of equations of the forward pass."""
        return sum(moment.phase == "forward" for moment in self)

    @property
    def groups(self) -> dict[str, list[int]]:
        """Live bytes at each equation by source: arguments, states and constants first, then lines of code."""
        names = dict.fromkeys(name for moment in self for name in moment.live)
        always = [n for n in names if n in ("arguments", "states", "constants", "cotangents") or n.startswith("state ")]
        rest = sorted((n for n in names if n not in always), key=lambda n: -max(m.live.get(n, 0) for m in self))
        return {name: [moment.live.get(name, 0) for moment in self] for name in (*always, *rest)}

    def to_dicts(self) -> list[dict[str, Any]]:
        """One dict per equation."""
        return [{"step": i, **dataclasses.asdict(moment), "bytes": moment.bytes} for i, moment in enumerate(self)]

    def table(self) -> Table:
        """What is alive at the peak, by source."""
        notes = []
        if not len(self):
            return Table(f"{self.name} computes nothing", [], [])
        top = self[self.peak_at]
        place = f" of {top.source}" if top.source else ""
        title = (
            f"{self.name}: at most {format_bytes(self.peak)} alive (estimate), at equation {self.peak_at + 1} of "
            f"{len(self)}, {top.primitive}{place} in the {top.phase} pass; alive there:"
        )
        rows = [
            [name, format_bytes(values[self.peak_at]), f"{100 * values[self.peak_at] / max(self.peak, 1):.0f} %"]
            for name, values in self.groups.items()
            if values[self.peak_at]
        ]
        if self.compiled is not None:
            parts = ", ".join(f"{what} {format_bytes(size)}" for what, size in self.compiled.items())
            notes.append(f"The compiled program has {format_bytes(sum(self.compiled.values()))}: {parts}.")
        return Table(title, ["source", ">bytes", ">share"], rows, notes)

    def plot(self, ax: Any = None) -> Any:
        """Draws live bytes over the equations, stacked by source, with the peak.

        Args:
          ax: matplotlib axes; None makes a figure.

        Returns:
          The axes.

        Raises:
          ImportError: matplotlib is not installed.
        """
        from ._render import plot_timeline

        return plot_timeline(self, ax)


def timeline(f: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Timeline:
    """Live bytes through the forward and the backward pass of a function, by the line that computed them.

    An estimate: the program before compilation is followed equation by equation, with elementwise chains and views
    fused. The compiled program's own sizes, which are exact but have no course over time, stand beside it.

    Args:
      f, `*args`, `**kwargs`: as for `residuals`.

    Returns:
      A moment per equation, in bytes; prints what is alive at the peak; `plot()` draws the course.

    Raises:
      TypeError: `f` is not callable, or JAX cannot differentiate it at these arguments.

    References:
      https://docs.jax.dev/en/latest/gradient-checkpointing.html

    Example:
      >>> from statetransform import State, inspect
      >>> import jax.numpy as jnp
      >>> w = State(jnp.ones((64, 64)), name="w")
      >>> print(inspect.timeline(lambda x: jnp.sin(w.value @ x).sum(), jnp.ones(64)))
      <lambda>: at most 32... KiB alive (estimate), at equation ... in the backward pass; alive there:
      source ...
      state w ...
    """
    staged = stage(f, args, kwargs)
    found = moments(split(staged))
    compiled = step_of(staged).compile()
    sizes = {what: compiled.bytes_of(key) for what, key in _PARTS.items()}
    known = {what: size for what, size in sizes.items() if size is not None}
    return Timeline(staged.name, found, known if len(known) == len(sizes) else None)


_PARTS = {"arguments": "argument", "outputs": "output", "temporaries": "temp"}
