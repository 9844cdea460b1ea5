"""What the caller of the memory half knows of a call: the lanes and shardings around it, and who depends on them."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import math
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from .. import _jax


@dataclasses.dataclass(frozen=True)
class Lanes:
    """The lanes of `vmap` around a gradient step.

    Attributes:
      axes: how many `vmap` there are.
      count: how many lanes they make in all.
      is_mapped: which inputs differ between lanes.
      is_innermost: whether nothing else is done with the call before it gets some, as in `grad` around `vmap`.
    """

    axes: int = 0
    count: int = 1
    is_mapped: tuple[bool, ...] = ()
    is_innermost: bool = False

    @staticmethod
    def around(inputs: Sequence[Any]) -> Lanes:
        """Those of the `vmap` around a call with some inputs, as far as they are known."""
        sizes, is_innermost = _jax.vmaps_around()
        return Lanes(len(sizes), math.prod(sizes), tuple(bool(_jax.lanes_of([x])) for x in inputs), is_innermost)

    def of(self, n: int, at: int) -> Lanes:
        """The same for `n` inputs that contain these in a row. Lanes are assumed to share the other inputs."""
        flags = [False] * n
        flags[at : at + len(self.is_mapped)] = self.is_mapped
        is_mapped = tuple(flags[:n]) if any(flags[:n]) else (True,) * n
        return dataclasses.replace(self, is_mapped=is_mapped) if self.axes else self


ONE = Lanes()
_Said = tuple[tuple[int, ...], Mapping[int, Any]]  # lanes, and shardings by `id`
_said: contextvars.ContextVar[_Said] = contextvars.ContextVar("of a program", default=((), types.MappingProxyType({})))


@contextlib.contextmanager
def said_of_program(lanes: tuple[int, ...], shardings: Mapping[int, Any]) -> Iterator[None]:
    """Says in the trace of a program what its values do not show.

    Args:
      lanes: those that the program will get at once.
      shardings: those of some of its inputs, by their `id`.
    """
    token = _said.set((lanes, shardings))
    try:
        yield
    finally:
        _said.reset(token)


def known_lanes(values: Iterable[Any]) -> list[int]:
    """How many lanes each `vmap` around makes of some values, where that is known, the innermost first."""
    return [*_jax.lanes_of(values), *_said.get()[0]]


def _nobody_depends() -> None:
    pass


@dataclasses.dataclass(frozen=True)
class Context:
    """What is around a call, as far as its caller knows it. Without one, arrays say where they are, and that is all.

    Attributes:
      lanes: those of `vmap`.
      sharding_of: gives the sharding of an array or tracer; None if it is on one device, or not known.
      depend: called where a choice depends on shardings. Whoever keeps the program asks then whether they still hold.
      active: for each result whether it is expected to have cotangents; empty if all are.
    """

    lanes: Lanes = ONE
    sharding_of: Callable[[Any], Any] = _jax.sharding_of
    depend: Callable[[], None] = _nobody_depends
    active: tuple[bool, ...] = ()

    def place_of(self, x: Any) -> Any:
        """The sharding of an array or tracer: as it is said in the trace, else as the caller knows it, or None."""
        return _said.get()[1].get(id(x)) or self.sharding_of(x)
