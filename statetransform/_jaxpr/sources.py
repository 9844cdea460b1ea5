"""Where in the user's code a value was computed.

JAX keeps the whole Python call stack with every equation. The frame that helps is the innermost one that is
neither JAX's nor this package's.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from pathlib import Path
from typing import Any, NamedTuple

import jax
from jax.extend import source_info_util

from .._core import jaxcompat

_FRAME = re.compile(r"^(?P<file>.*?):(?P<line>\d+)(?::(?P<column>\d+))? \((?P<function>.*)\)$")
_PACKAGE = str(Path(__file__).resolve().parent.parent) + "/"
_JAX = str(Path(jax.__file__).resolve().parent) + "/"
# More frames than any stack has: JAX takes the number of frames to show, and there is no "all".
_ALL = 10_000


class Source(NamedTuple):
    """A place in the user's code.

    >>> str(Source("/home/me/heat.py", 12, "step"))
    'heat.py:12 (step)'
    """

    file: str
    line: int
    function: str
    column: int | None = None

    @property
    def short(self) -> str:
        """File name without folders, and line."""
        return f"{Path(self.file).name}:{self.line}"

    @property
    def full(self) -> str:
        """As JAX writes a place: the whole path, line, column and function."""
        column = "" if self.column is None else f":{self.column}"
        return f"{self.file}:{self.line}{column} ({self.function})"

    def __str__(self) -> str:
        return f"{self.short} ({self.function})"


@functools.lru_cache(maxsize=16384)
def _parse(summary: str) -> tuple[Source, ...]:
    matches = [match for text in summary.split("\n") if (match := _FRAME.match(text))]
    frames = [
        Source(m["file"], int(m["line"]), m["function"], int(m["column"]) if m["column"] else None) for m in matches
    ]
    # JAX prints the outermost frame first.
    return tuple(f for f in reversed(frames) if not f.file.startswith(_PACKAGE))


def frames(eqn: Any) -> tuple[Source, ...]:
    """The user's stack at an equation, innermost frame first, without frames of JAX and of this package."""
    return _parse(source_info_util.summarize(eqn.source_info, num_frames=_ALL))


def source_of(eqn: Any) -> Source | None:
    """The line of the user's code that made an equation.

    >>> import jax, jax.numpy as jnp
    >>> jaxpr = jax.make_jaxpr(lambda x: jnp.sin(x))(1.0)
    >>> source_of(jaxpr.jaxpr.eqns[0]).line
    1
    """
    found = frames(eqn)
    return found[0] if found else None


def is_library_code(jaxpr: Any) -> bool:
    """Whether a jaxpr was traced from a function of JAX itself, such as the inside of ``jnp.where``.

    JAX traces such a function once and uses the jaxpr for every later call, so that the stacks inside it
    are those of the first call, wherever that was. The equation that calls it has the right one.
    """
    info = getattr(jaxpr, "debug_info", None)
    return info is not None and f" at {_JAX}" in str(info.func_src_info)


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """Where an equation stands for the user. The source is looked up when it is asked for: that reads a whole stack.

    Attributes:
        eqn: the equation.
        caller: the place to show instead: where the library function was called that the equation is in.
    """

    eqn: Any
    caller: Place | None = None

    @property
    def source(self) -> Source | None:
        """The line of the user's code."""
        return (self.caller.source if self.caller else None) or source_of(self.eqn)

    def inside(self, jaxpr: Any) -> Place | None:
        """The caller of what a jaxpr inside the equation holds; None if that can speak for itself."""
        return self if is_library_code(jaxcompat.opened(jaxpr)) else self.caller
