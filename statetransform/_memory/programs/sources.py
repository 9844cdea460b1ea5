"""Where in the user's code a value was computed.

JAX keeps the whole Python call stack with every equation. The frame that helps is the innermost one that is
of no library.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any, NamedTuple

from ... import _jax
from ..._base.errors import notebook_cell, show_site
from ..._base.library import is_library_file, is_own_file

_INSTALLED = re.compile(r"[/\\](site|dist)-packages[/\\]")
# How many lines of a stack to look at. Mostly the innermost one is the user's, and to read one is cheap. The last is
# more than any stack has: JAX takes a number of lines, and has no way to ask for all.
_DEPTHS = (1, 8, 10_000)


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
        """File name without folders, or the cell of a notebook, and line."""
        return show_site((self.file, self.line))

    @property
    def full(self) -> str:
        """As JAX writes a place: the whole path, line, column and function."""
        column = "" if self.column is None else f":{self.column}"
        return f"{notebook_cell(self.file) or self.file}:{self.line}{column} ({self.function})"

    def __str__(self) -> str:
        return f"{self.short} ({self.function})"


def source_of(eqn: Any, skips_installed: bool = False) -> Source | None:
    """The innermost line of the user's code that made an equation; or of that which is in no installed package.

    >>> import jax, jax.numpy as jnp
    >>> jaxpr = jax.make_jaxpr(lambda x: jnp.sin(x))(1.0)
    >>> source_of(jaxpr.jaxpr.eqns[0]).line
    1
    """
    for depth in _DEPTHS:
        frames = _jax.user_frames(eqn, depth)
        for frame in frames:
            if not is_library_file(frame.file) and not (skips_installed and _INSTALLED.search(frame.file)):
                return Source(frame.file, frame.line, frame.function, frame.column)
        if len(frames) < depth:
            break
    return None


def shown_source(eqn: Any) -> str | None:
    """The line that made an equation, and the line outside of installed packages that led there, if it is another."""
    inner, own = source_of(eqn), source_of(eqn, skips_installed=True)  # of a model, where a framework runs it
    if inner is None or own is None or own == inner:
        return None if inner is None else str(inner)
    return f"{inner}, called from {own},"


def is_library_code(jaxpr: Any) -> bool:
    """Whether a jaxpr was traced from a function of a library, such as the inside of ``jnp.where``.

    JAX traces such a function once and uses the jaxpr for every later call, so that the stacks inside it
    are those of the first call, wherever that was. The equation that calls it has the right one.
    """
    file = _jax.function_of(jaxpr)[1]
    return is_library_file(file) and not is_own_file(file)


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """Where the user wrote an equation. Reading the stack is slow, so it is read when `source` is asked for.

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
        return self if is_library_code(jaxpr) else self.caller
