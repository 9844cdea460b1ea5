"""Where the values of a trace are: the types of arrays do not say it on meshes with automatic axes.

A staged frame notes which arrays its inputs stand for. What asks for their shardings, a plan for a budget, makes the
traces around depend on them.
"""

from __future__ import annotations

from typing import Any

from .. import _jax
from .._states.frame import stack


def sharding_of(x: Any) -> Any:
    """The sharding of an array, or of the array that a tracer stands for; None if it is on one device or not known."""
    x = _jax.below_tangents(x)
    frame = stack.frame if isinstance(x, _jax.Tracer) else None
    while frame is not None:
        x = _jax.below_tangents(frame.outside.get(id(x), x))
        frame = frame.parent
    return _jax.sharding_of(x)


def depend_on_shardings() -> None:
    """Says that the traces that are being made depend on where their inputs are."""
    frame = stack.frame
    while frame is not None:
        frame.depends_on_shardings = True
        frame = frame.parent
