"""A cell: where a state keeps its value, and how the value goes in and out of frames.

A `State` keeps its value itself, in `_value`. A state may also stand for a cell of another framework; then its `_cell`
is of a subclass, defined by the adapter to that framework. Frames ask the methods of `state._cell` how a value goes in
and out; what is committed is `state._value`.

Another framework's cell implements more than a `Cell`: the list is in `_frameworks/__init__.py`, and `CellDescriptor`
in `_frameworks/descriptor.py` has all of it for a value that is kept in an attribute.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from .._jax import stages
from .frame import Frame, committed
from .raw_reads import ReadInRawTransform, note_read, warn_of_stale

State: TypeAlias = Any  # the one of `state`, which imports this module


class DictEntry(NamedTuple):
    """Says that a cell keeps its value in its `__dict__`, so that compiled functions read and write it there.

    Attributes:
      name: the entry.
      mark: an entry that is true once the cell has been written.
      is_busy: whether the framework has to hear of reads and writes at the moment.
    """

    name: str
    mark: str | None = None
    is_busy: Callable[[], Any] | None = None


class Cell:
    """How the value of a state goes in and out of frames; by default that of a `State`.

    Attributes:
      goes_stale: whether a raw JAX transform that stages makes a constant of what it reads.
      is_named_by_path: whether errors call a state without a name by the path to it.
    """

    goes_stale = True
    is_named_by_path = False

    def read_in(self, frame: Frame, state: State) -> Any:
        """The value for the function that runs in a frame, the innermost one."""
        if frame.is_below_raw():
            if not frame.is_fresh:
                raise ReadInRawTransform(frame)
            note_read()
        return frame.read(state)

    def read_around(self, frame: Frame, state: State) -> Any:
        """The value as the function around a frame sees it: what comes in when the frame does not know the state."""
        if frame.parent is not None:
            if frame.is_in_raw:
                if not frame.parent.is_fresh:
                    raise ReadInRawTransform(frame.parent)
                note_read()
            for around in frame.parent.unknowing(state):
                around.read(state)
            return frame.parent.read(state)
        if frame.outer is not None and stages(frame.outer):
            warn_of_stale(state)
        return committed(state)

    def check_write(self, frame: Frame, state: State, value: Any) -> None:
        """Refuses a value that a transform leaves to a frame, if the frame cannot take it."""
        frame.check_write(state)

    def receive(self, frame: Frame, state: State, value: Any, site: Any) -> None:
        """Takes the value that a transform leaves to a frame."""
        frame.write(state, value, site)

    def way_to(self, state: State) -> Callable[[Any], State] | None:
        """A function of anything that finds the state where it is kept, if no path of the user's leads to it."""
        return None

    def takes_tracers(self, state: State) -> bool:
        """Whether a traced value may be stored now, without a transform of this package."""
        return False

    def is_random(self, state: State) -> bool:
        """Whether another framework's state is a random key, so that `vmap` gives each batch element its own."""
        return False

    def in_dict(self, kind: type) -> DictEntry | None:
        """Where compiled functions read and write the value without the handle, which is of class `kind`."""
        return None

    def slot(self) -> tuple[str, type] | None:
        """The attribute in which compiled functions find a handle of some class, if there is one."""
        return None


def cell_behind(found: Any) -> Any:
    """The cell that is an attribute, from what the class has under its name; None for any other attribute."""
    if isinstance(found, property):
        found = getattr(found.fget, "cell", None)
    return found if isinstance(found, Cell) else None


def cells_in(cls: type) -> dict[str, Any]:
    """The attributes of a class that are cells of some instances."""
    named = ((name, cell_behind(found)) for base in reversed(cls.__mro__) for name, found in list(vars(base).items()))
    return {name: cell for name, cell in named if cell is not None}
