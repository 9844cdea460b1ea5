"""Where the values of a trace are: the types of arrays do not say it on meshes with automatic axes.

A staged frame notes which arrays its inputs stand for. What asks for their shardings, a plan for a budget, makes the
traces around depend on them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax

from .. import _jax
from .._states.frame import Frame, stack
from .._states.state import State


class Places(Protocol):
    """A transform that says where its inputs go, as `jit` does by `in_shardings`."""

    def of_arguments(self, args: tuple[Any, ...]) -> Any:
        """The arguments by position, with `placed` leaves for those that it puts somewhere."""
        ...

    def of_state(self, state: State, value: Any) -> list[Any]:
        """The leaves of a state's value, or what stands for them where it puts them somewhere."""
        ...


def placed(x: Any, sharding: Any, mesh: Any) -> Any:
    """What stands for an array that a transform puts where `sharding` says; the array itself where that says nothing.

    Args:
      sharding: a sharding, a layout, or a partition spec for the mesh.
      mesh: the one that is set; None if it is not known.
    """
    if isinstance(sharding, jax.P):
        sharding = None if mesh is None else jax.sharding.NamedSharding(mesh, sharding)
    sharding = getattr(sharding, "sharding", sharding)
    if sharding is None:
        return x
    aval = _jax.typeof(x)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=sharding)


def sharding_of(x: Any) -> Any:
    """The sharding of an array, or of the array that a tracer stands for; None if it is on one device or not known."""
    x = _jax.below_tangents(x)
    frame = stack.frame if isinstance(x, _jax.Tracer) else None
    while frame is not None:
        x = _jax.below_tangents(frame.outside.get(id(x), x))
        frame = frame.parent
    return _jax.sharding_of(x)


def standing_for(arrays: Sequence[Any], fun: Callable[..., Any]) -> Callable[..., Any]:
    """A flat function to be traced by itself, whose inputs stand for arrays, or for types with shardings."""

    def run(*inputs: Any) -> Any:
        with Frame() as frame:
            frame.outside.update(zip(map(id, inputs), arrays, strict=True))
            return fun(*inputs)

    return run


def depend_on_shardings() -> None:
    """Says that the traces that are being made depend on where their inputs are."""
    frame = stack.frame
    while frame is not None:
        frame.depends_on_shardings = True
        frame = frame.parent
