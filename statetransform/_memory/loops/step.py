"""One step of a loop as the sweeps see it, and what they hand to each other."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ..._jax import zeros
from .arrays import Index, Leaves, merge, pick, put, take
from .far.memory import Far, Room
from .progress import ProgressBar

Cotangents = tuple[Leaves, Leaves, Leaves]  # of constants, of the carry, of the inputs


def all_leaves(selected: Selected) -> tuple[bool, ...]:
    """Marks every leaf of the carry."""
    return (True,) * len(selected.carry)


@dataclasses.dataclass(frozen=True, eq=False)
class Step:
    """One step of a loop as a function of lists of arrays, `fun(consts, carry, x) -> (carry, y)`.

    Attributes:
      fun: the step.
      y_avals: the abstract values of its outputs.
      is_reversed: whether the loop goes through its inputs and outputs backwards.
      k: how many carries may be stored besides the initial one; with `block=0`, how many units there are.
      block: how many steps are reversed together; 0 for units that hold a carry or the residuals of a step (`mixed`).
      room: where carries are stored far away.
      watch: what is told on the way.
      length: the number of steps of the loop; None if it is not known in advance.
      avals: the abstract values of the leaves of the carry.
      needed: which of them the derivative of this and of later steps depends on, for what is differentiated. Only they
        are stored, and computed again: none for a loop that is linear in what is differentiated.
    """

    fun: Callable[[Leaves, Leaves, Leaves], tuple[Leaves, Leaves]]
    y_avals: tuple[Any, ...]
    is_reversed: bool
    k: int
    block: int = 1
    room: Room | None = None
    watch: ProgressBar | None = None
    length: int | None = None
    avals: tuple[Any, ...] = ()
    needed: Callable[[Selected], tuple[bool, ...]] = all_leaves

    def run(self, i: Index, consts: Leaves, carry: Leaves, xs: Leaves) -> tuple[Leaves, Leaves]:
        """The `i`-th step."""
        return self.fun(consts, carry, take(xs, self.place(i)))

    def of_selected(
        self, selected: Selected, consts: Leaves, carry: Leaves, x: Leaves
    ) -> tuple[Callable[..., tuple[Leaves, Leaves]], Cotangents]:
        """The step as a function of what is differentiated, and its arguments."""
        whole = consts, carry, x
        fun = lambda *some: self.fun(*map(merge, whole, selected, some))
        return fun, tuple(map(pick, whole, selected))  # type: ignore[return-value]

    def place(self, i: Index) -> Index:
        """Where the inputs and outputs of the `i`-th step are."""
        return self.length - 1 - i if self.is_reversed and self.length is not None else i

    def whole(self, needed: Sequence[bool], some: Leaves) -> Leaves:
        """A carry with zeros for the leaves that are not needed."""
        return merge([zeros(aval) for aval in self.avals], needed, some)

    def writing(self, consts: Leaves, xs: Leaves) -> Callable[[Index, Any], Any]:
        """A step from carry and stacked outputs to these."""

        def advance(i: Index, moving: Any) -> Any:
            carry, ys = moving
            carry, y = self.run(i, consts, carry, xs)
            return carry, put(ys, self.place(i), y)

        return advance


class Saved(NamedTuple):
    """What the backward sweep starts from.

    The number of steps of this lane, None if it is known in advance; the stored carries; the residuals of the last
    block, `[size, ...]` each, none for `reverse.ByVjp`; the carries far away. If the length is not known, what is far
    away has the rest: the row of the carry before each segment, and the number and length of segments.

    Of a loop that is run backwards (`reversible`), `stack` is the last carry, and `recorded` are the stored ones.
    """

    n: Any
    stack: Any
    recorded: Leaves
    far: Far | None = None
    rows: Any = None
    count: Any = None
    period: Any = None


class Selected(NamedTuple):
    """Which constants, leaves of the carry and inputs have tangents, as lists of truth values.

    A leaf of the carry has one if its initial value has, or if it gets one from another in the course of the loop.
    """

    consts: tuple[bool, ...]
    carry: tuple[bool, ...]
    xs: tuple[bool, ...]
