"""Handles: states that stand for cells of other frameworks.

There are two kinds. A `Proxy` holds its cell weakly, and the cell keeps the value, so that `vars`, copies and pickles
see nothing new. What has no weak references is `Adopted`: the handle sits in the slot of the cell and holds the value,
and the descriptor takes it out. So the handle lives as long as the cell, without a cycle.
"""

from __future__ import annotations

import weakref
from typing import Any, TypeAlias

from .._base.sites import user_site
from .._states.frame import UNSET, Frame, innermost, read, stack
from .._states.state import State
from .._states.tokens import Token

CellDescriptor: TypeAlias = Any  # the one of `descriptor`, which imports this module


class Foreign(State):
    """The handle of a cell of another framework; its value is the cell's.

    Attributes:
      _kind: the class of the cell.
      _cell: the descriptor, which reads and writes the value.
      _made: what the framework knows of the trace in which the cell was made, of one that it guards by that.
      _home: the frame in which a transform of its own framework made the cell, or None. That frame does not lift it;
        frames within take its value from the cell.
    """

    __slots__ = ("_cell", "_home", "_kind", "_made")
    _is_handle = True

    def _stand_for(self, cell: Any, cells: CellDescriptor) -> None:
        self._name = cells.initial_name(cell)
        self._static = False
        self._metadata = {}
        self._token = Token(self)
        self._created = user_site()
        self._kind = type(cell)
        self._home: weakref.ref[Frame] | None = None
        self._cell = cells
        self._made = cells.made_in(cell)

    @property
    def value(self) -> Any:
        """The whole value, as the running function sees it."""
        return read(self)

    @value.setter
    def value(self, value: Any) -> None:
        self._check(value)
        frame = innermost()
        if frame is not None and not self._is_native_to(frame):
            frame.write(self, value)
            return
        self._cell.check_handle_write(self, value)
        self._value = value

    def _check(self, value: Any) -> None:
        super()._check(value)
        self._cell.check_value(self, value)

    def _is_native_to(self, frame: Any) -> bool:
        return self._home is not None and frame is not None and self._home() is frame

    def _blank(self) -> State:
        blank = object.__new__(State)  # a call that makes a cell is traced each time, so that this one is never filled
        blank._begin(0.0, self._name, False, {})
        blank._value = UNSET
        return blank

    def _replicate(self, parts: dict[str, Any], copier: Any = None, *args: Any) -> State:
        return State(parts["value"], name=parts["name"])

    def __reduce__(self) -> tuple[Any, ...]:
        return State, (read(self),)


class Proxy(Foreign):
    """A handle whose cell keeps the value."""

    __slots__ = ("_ref",)
    _is_elsewhere = True

    @property
    def _value(self) -> Any:
        cell = self._ref()
        return UNSET if cell is None else self._cell.committed(cell)

    @_value.setter
    def _value(self, value: Any) -> None:
        cell = self._ref()
        if cell is not None:
            self._cell.commit(cell, value)

    def _is_gone(self) -> bool:
        return self._ref() is None


class Adopted(Foreign):
    """A handle that sits in its cell and holds the value."""

    __slots__ = ()


def dict_of(cell: Any) -> dict[str, Any]:
    """The attributes of an instance, without telling who listens to look-ups."""
    return object.__getattribute__(cell, "__dict__")


class Native:
    """Marks a cell that a transform of its own framework made within a frame, which leaves it alone.

    Without a frame all frames do.
    """

    __slots__ = ("_value", "frame")

    def __init__(self, frame: Frame | None, value: Any = None) -> None:
        self.frame = weakref.ref(frame) if frame is not None else None
        self._value = value  # of a cell without weak references

    def is_here(self) -> bool:
        """Whether its frame is the innermost one; of a cell that is none of ours in any frame, always."""
        return self.frame is None or (stack.frame is not None and stack.frame is self.frame())

    def home(self) -> weakref.ref[Frame] | None:
        """Its frame, if that is still open."""
        frame = stack.frame
        while frame is not None and self.frame is not None and frame is not self.frame():
            frame = frame.parent
        return None if frame is None else self.frame


#: What the attribute of a cell without weak references may hold in place of its value.
IN_ATTRIBUTE = (Adopted, Native)
