"""Where the values of a trace are: the types of arrays do not say it on meshes with automatic axes.

A staged frame notes the shardings of the arrays that its inputs stand for, as far as these are known. What asks for
them, a plan for a budget, makes the traces around depend on them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax

from .._jaxcompat import Tracer
from .._state.frame import stack


def sharding_of(x: Any) -> Any:
    """The sharding of an array, or of the array that a tracer stands for; None if it is on one device or not known."""
    while isinstance(x, Tracer) and hasattr(x, "primal"):
        x = x.primal
    if isinstance(x, Tracer):
        frame = stack.frame
        while frame is not None:
            if (found := frame.placed.get(id(x))) is not None:
                return found
            frame = frame.parent
        return None
    sharding = getattr(x, "sharding", None)
    is_mesh = isinstance(sharding, jax.sharding.NamedSharding) and isinstance(sharding.mesh, jax.sharding.Mesh)
    return sharding if is_mesh and sharding is not None and sharding.mesh.size > 1 else None


def depend_on_places() -> None:
    """Says that the traces that are being made depend on where their inputs are."""
    frame = stack.frame
    while frame is not None:
        frame.depends_on_places = True
        frame = frame.parent


def noted(inputs: Iterable[Any], shardings: Iterable[Any]) -> dict[int, Any]:
    """The shardings of inputs of a trace by their `id`, which is theirs while the trace is open."""
    return {id(x): sharding for x, sharding in zip(inputs, shardings, strict=False) if sharding is not None}
