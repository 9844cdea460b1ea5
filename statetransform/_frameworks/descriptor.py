"""The descriptor that sends reads and writes of another framework's cells to frames.

A *cell* is an instance of a foreign class. The descriptor takes the place of the attribute in which the cell keeps its
value. Within a transform it asks the innermost frame for the value of the cell's *handle*, a state that stands for the
cell. Anywhere else it is the plain attribute.

A cell that a transform of its own framework has made within a frame is *native* to that frame, which leaves it alone.

Where a class has weak references, the attribute holds the value, and a table knows the handle, a `Proxy`, or the mark
`Native`. Where it has none, the handle is in the attribute and holds the value, as `Adopted`, and so does `Native`.
"""

from __future__ import annotations

import weakref
from typing import Any

import jax

from .._base.errors import StateTraceError, describe
from .._jax import has_tracer, is_top_level
from .._objects.hooks import listening
from .._objects.plain import MISSING, identity
from .._states.cell import Cell, DictEntry
from .._states.frame import UNSET, Frame, committed, innermost, stack
from .._states.state import is_array
from .handles import IN_ATTRIBUTE, Adopted, Foreign, Native, Proxy, dict_of

_AVAL = type(jax.typeof(0.0))


class CellDescriptor(Cell):
    """The descriptor for one attribute; also the step from a cell to its handle, in recorded structures.

    Args:
      name: the attribute.
      below: what the class has under that name: a slot, a property, a default, or `MISSING`.
      is_each: whether each instance of the class is a cell; else those for which `handle` was called.
    """

    # What adapters say of the cells of a framework; they override methods as well.
    goes_stale = False  # the framework guards its own cells in raw transforms
    is_named_by_path = True
    hidden: frozenset[str] = frozenset()  # attributes of a cell that say nothing of what a function computes
    handle_class: type[Proxy] = Proxy

    def __init__(self, name: str, below: Any = MISSING, is_each: bool = True) -> None:
        self.name = name
        self.is_each = is_each
        self.shows = not is_each  # whether the attribute is part of a path
        self.below = below
        self._is_slot = below is not MISSING and hasattr(type(below), "__set__")
        # By address, with a weak reference that tells when the cell is gone.
        self._table: dict[int, tuple[Any, Foreign | Native]] = {}

    # -- the descriptor

    def __get__(self, cell: Any, owner: type | None = None) -> Any:
        if cell is None:
            if self.below is MISSING:
                raise AttributeError(self.name)
            return self.below.__get__(None, owner) if hasattr(type(self.below), "__get__") else self.below
        frame = innermost()
        if frame is None:
            return self.plain(cell)
        state = self.state_of(cell)
        return self.plain(cell) if state is None else frame.read(state)

    def __set__(self, cell: Any, value: Any) -> None:
        frame = innermost()
        if frame is None:
            existing = self.existing_handle(cell)
            if existing is not None or (self.is_each and self.stored(cell) is not MISSING):
                self.check_raw_write(self.handle(cell), value)
            if isinstance(existing, Adopted):
                existing._value = value
            else:
                self.store(cell, value)
        elif self.is_each and self.stored(cell) is MISSING and self.existing_handle(cell) is None:
            self.create(frame, cell, value)
        elif (state := self.state_of(cell)) is not None and self.can_lift(value):
            self.write(frame, state, value)
        else:
            if state is not None:
                state._check(value)
            held = self.stored(cell)
            if isinstance(held, IN_ATTRIBUTE):
                held._value = value
            else:
                self.store(cell, value)

    def __delete__(self, cell: Any) -> None:
        existing = self.existing_handle(cell)
        if innermost() is not None and existing is not None:
            raise StateTraceError(
                f"{describe(existing)} is deleted inside a transform, which cannot do that. Nothing was changed.\n"
                "Delete the attribute outside, or write another value."
            )
        if self._is_slot:
            self.below.__delete__(cell)
        elif dict_of(cell).pop(self.name, MISSING) is MISSING:
            raise AttributeError(self.name)
        if existing is not None:
            self._table.pop(identity(cell), None)

    def create(self, frame: Frame, cell: Any, value: Any) -> None:
        """Takes the first value of a cell, which is made within a transform."""
        if not self.can_lift(value):
            self.store(cell, value)
        elif frame.is_here():
            frame.born[self.handle(cell)] = value
        elif type(cell).__weakrefoffset__:  # made inside a transform of its own framework, which manages the value
            self.store(cell, value)
            self._remember(cell, Native(frame))
        else:
            self.store(cell, Native(frame, value))

    # -- the attribute

    def stored(self, cell: Any) -> Any:
        """What the attribute holds, which may be an `Adopted` handle or `Native`; `MISSING` for nothing."""
        if self._is_slot:
            try:
                return self.below.__get__(cell, type(cell))
            except AttributeError:
                return MISSING
        return dict_of(cell).get(self.name, self.below)

    def store(self, cell: Any, value: Any) -> None:
        """Sets what the attribute holds."""
        if self._is_slot:
            self.below.__set__(cell, value)
        else:
            dict_of(cell)[self.name] = value

    def plain(self, cell: Any) -> Any:
        """The value as it is outside of any transform.

        Raises:
          AttributeError: there is none.
        """
        held = self.stored(cell)
        if isinstance(held, IN_ATTRIBUTE):
            held = held._value
        if held is not MISSING and held is not UNSET:
            return held
        if (existing := self.existing_handle(cell)) is not None:
            raise StateTraceError.lost(existing)
        text = f"{type(cell).__name__!r} object has no attribute {self.name!r}"
        raise AttributeError(text, name=self.name, obj=cell)

    def can_lift(self, value: Any) -> bool:
        """Whether a value is one that JAX can hold, or stands for one as `jax.ShapeDtypeStruct` does."""
        return all(is_array(leaf) and not isinstance(leaf, _AVAL) for leaf in jax.tree.leaves(value))

    # -- handles

    def existing_handle(self, cell: Any) -> Foreign | None:
        """The handle of a cell, if it has one."""
        entry = self._entry(cell)
        return entry if isinstance(entry, Foreign) else None

    def handle(self, cell: Any) -> Foreign:
        """The handle of a cell, made if there is none."""
        existing = self.existing_handle(cell)
        if existing is not None:
            return existing
        is_weak = bool(type(cell).__weakrefoffset__)
        state = object.__new__(self.handle_class if is_weak else Adopted)
        state._stand_for(cell, self)
        if is_weak:
            self._remember(cell, state)
        else:
            held = self.stored(cell)
            if type(held) is Native:
                held = held._value
            state._value = UNSET if held is MISSING else held
            self.store(cell, state)
        return state

    def state_of(self, cell: Any, is_named: bool = False) -> Foreign | None:
        """The handle, made where each instance is a cell; None for an attribute that is none of ours.

        Args:
          cell: the cell.
          is_named: whether the user names it; then it may be native to the present frame.
        """
        entry = self._entry(cell)
        if isinstance(entry, Foreign):
            return entry if is_named or not entry._is_native_to(stack.frame) else None
        if entry is not None and entry.is_here() and not (is_named and entry.frame is not None):
            return None
        held = self.stored(cell)
        value = held._value if type(held) is Native else held
        if (entry is None and not self.is_each) or value is MISSING or not self.can_lift(value):
            return None
        state = self.handle(cell)
        state._home = None if entry is None else entry.home()
        return state

    def make_native(self, cell: Any) -> None:
        """From now on all frames leave a cell alone, which was made outside of every frame."""
        if type(cell).__weakrefoffset__:
            self._remember(cell, Native(None))
        else:
            self.store(cell, Native(None, self.stored(cell)))

    def __call__(self, cell: Any) -> Foreign:
        """The step of a recorded structure from a cell to its handle."""
        if not self.is_each:  # who records a trace around hears of the attribute in no other way
            for listener in listening.listeners:
                listener.looks_up(cell, self.name)
        state = self.state_of(cell)
        if state is None:
            raise LookupError(self.name)
        return state

    def _entry(self, cell: Any) -> Foreign | Native | None:
        """The handle of a cell, or the mark of one that was native when it was made."""
        noted = self._table.get(identity(cell))
        if noted is not None:
            return noted[1]
        held = None if type(cell).__weakrefoffset__ else self.stored(cell)
        return held if isinstance(held, IN_ATTRIBUTE) else None

    def _remember(self, cell: Any, entry: Foreign | Native) -> None:
        """Notes the handle or mark of a cell that has weak references."""
        place, forget = identity(cell), self._table.pop
        ref = weakref.ref(cell, lambda _: forget(place, None))
        if isinstance(entry, Proxy):
            entry._ref = ref
        self._table[place] = (ref, entry)

    # -- what frames and handles ask

    def committed(self, cell: Any) -> Any:
        """The value around the outermost frame, or `UNSET`."""
        held = self.stored(cell)
        return UNSET if held is MISSING else held

    def commit(self, cell: Any, value: Any) -> None:
        """Stores the value that the outermost frame leaves."""
        self.store(cell, value)

    def read_in(self, frame: Frame, state: Any) -> Any:
        return state._value if state._is_native_to(frame) else frame.read(state)

    def read_around(self, frame: Frame, state: Any) -> Any:
        if frame.parent is None:
            return committed(state)
        return state._value if state._is_native_to(frame.parent) else frame.parent.read(state)

    def write(self, frame: Frame, state: Foreign, value: Any) -> None:
        """Writes into a frame, the innermost one."""
        frame.write(state, value)

    def receive(self, frame: Frame, state: Any, value: Any, site: Any) -> None:
        if state._is_native_to(frame):
            state._value = value
        else:
            frame.write(state, value, site)

    def check_write(self, frame: Frame, state: Any, value: Any) -> None:
        if state._is_native_to(frame):
            self.check_handle_write(state, value)
        else:
            frame.check_write(state)

    def check_raw_write(self, state: Foreign, value: Any) -> None:
        """Refuses a write outside of any transform of ours that JAX cannot carry out."""
        if is_top_level():
            if has_tracer(value):
                raise StateTraceError.leaked_tracer(state)
        elif not has_tracer(state._value):  # else it was made in this trace
            raise StateTraceError.raw_write(state)

    def check_handle_write(self, state: Foreign, value: Any) -> None:
        """The same for a write by the handle, which the framework does not see."""
        if innermost() is None:
            self.check_raw_write(state, value)

    def check_value(self, state: Foreign, value: Any) -> None:
        """Refuses a value that the cell could not hold."""

    def initial_name(self, cell: Any) -> str | None:
        """What errors call the cell before a path to it is known."""
        return None if self.is_each else self.name

    def made_in(self, cell: Any) -> Any:
        """What the framework knows of the trace in which a cell was made."""
        return None

    def in_dict(self, kind: type) -> DictEntry | None:
        is_own = type(self) is CellDescriptor and self.is_each and self.below is MISSING
        return DictEntry(self.name) if is_own and not issubclass(kind, Adopted) else None
