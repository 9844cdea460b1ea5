"""What the caller of the memory half knows of a call: the lanes and shardings around it, and who depends on them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
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


def _nobody_depends() -> None:
    pass


@dataclasses.dataclass(frozen=True)
class Context:
    """What is around a call, as far as its caller knows it. Without one, arrays say where they are, and that is all.

    Attributes:
      lanes: those of `vmap`.
      sharding_of: gives the sharding of an array or tracer; None if it is on one device, or not known.
      depend: called where a choice depends on shardings. Whoever keeps the program asks then whether they still hold.
      active: a tree prefix of the result, with a flag for what is expected to have cotangents.
    """

    lanes: Lanes = ONE
    sharding_of: Callable[[Any], Any] = _jax.sharding_of
    depend: Callable[[], None] = _nobody_depends
    active: Any = True
