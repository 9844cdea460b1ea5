"""The descriptor that sends reads and writes of another framework's cells to frames.

It takes the place of the attribute in which instances of the foreign class keep the value. Within a transform it asks
the innermost frame; anywhere else it is the plain attribute. An adapter to a framework overrides what differs there.
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
from .handles import Adopted, Foreign, Native, Proxy, dict_of

_AVAL = type(jax.typeof(0.0))


class CellDescriptor(Cell):
    """The descriptor for one attribute; also the step from a cell to its handle, in recorded structures.

    Args:
      name: the attribute.
      below: what the class has under that name: a slot, a property, a default, or `MISSING`.
      is_each: whether each instance of the class is a cell; else those for which `handle` was called.
    """

    def __init__(self, name: str, below: Any = MISSING, is_each: bool = True) -> None:
        self.name = name
        self.is_each = is_each
        self.shows = not is_each  # whether the attribute is part of a path
        self.below = below
        self._is_slot = below is not MISSING and hasattr(type(below), "__set__")
        # By address, with a weak reference that tells when the cell is gone.
        self._table: dict[int, tuple[Any, Foreign | Native]] = {}

    # -- the plain attribute

    def raw(self, cell: Any) -> Any:
        """What the instance has, which may be an adopted handle; `MISSING` when it has nothing."""
        if self._is_slot:
            try:
                return self.below.__get__(cell, type(cell))
            except AttributeError:
                return MISSING
        return dict_of(cell).get(self.name, self.below)

    def set_raw(self, cell: Any, value: Any) -> None:
        """Sets the plain attribute."""
        if self._is_slot:
            self.below.__set__(cell, value)
        else:
            dict_of(cell)[self.name] = value

    def plain(self, cell: Any) -> Any:
        """The attribute as it is outside of any transform."""
        held = self.raw(cell)
        if type(held) is Native:
            return held.value
        if isinstance(held, Adopted):
            held = held._value
            if held is UNSET:
                raise StateTraceError.lost(self.known(cell))
        elif held is MISSING:
            known = self.known(cell)
            if known is not None:
                raise StateTraceError.lost(known)
            text = f"{type(cell).__name__!r} object has no attribute {self.name!r}"
            raise AttributeError(text, name=self.name, obj=cell)
        return held

    def take(self, cell: Any) -> Any:
        """The value for a frame that does not know the cell, or `UNSET`."""
        held = self.raw(cell)
        return UNSET if held is MISSING else held

    # -- what adapters change

    goes_stale = False  # the framework guards its own cells in raw transforms
    is_named_by_path = True
    hidden: frozenset[str] = frozenset()  # attributes of a cell that say nothing of what a function computes
    kind_of_handle: type[Proxy] = Proxy

    def put(self, cell: Any, value: Any) -> None:
        """Stores the value that a transform leaves, in what is around it."""
        self.set_raw(cell, value)

    def read_in(self, frame: Frame, state: Any) -> Any:
        return state._value if state._is_native_to(frame) else frame.read(state)

    def read_around(self, frame: Frame, state: Any) -> Any:
        if frame.parent is None:
            return committed(state)
        return state._value if state._is_native_to(frame.parent) else frame.parent.read(state)

    def write(self, frame: Frame, state: Foreign, value: Any) -> None:
        """Writes into a frame, the innermost one."""
        frame.write(state, value)

    def check_write(self, frame: Frame, state: Any, value: Any) -> None:
        if state._is_native_to(frame):
            self.refuse_by_handle(state, value)
        else:
            frame.check_write(state)

    def receive(self, frame: Frame, state: Any, value: Any, site: Any) -> None:
        if state._is_native_to(frame):
            state._value = value
        else:
            frame.write(state, value, site)

    def name_of(self, cell: Any) -> str | None:
        """What errors call the cell before a path to it is known."""
        return None if self.is_each else self.name

    def made_in(self, cell: Any) -> Any:
        """What the framework knows of the trace in which a cell was made."""
        return None

    def check(self, state: Foreign, value: Any) -> None:
        """Refuses a value that the cell could not hold."""

    def refuse_raw(self, state: Foreign, value: Any) -> None:
        """Refuses a write outside of any transform of ours that JAX cannot carry out."""
        if is_top_level():
            if has_tracer(value):
                raise StateTraceError.leaked_tracer(state)
        elif not has_tracer(state._value):  # else it was made in this trace
            raise StateTraceError.raw_write(state)

    def refuse_by_handle(self, state: Foreign, value: Any) -> None:
        """The same for a write by the handle, of which the framework does not know."""
        if innermost() is None:
            self.refuse_raw(state, value)

    def in_dict(self, kind: type) -> DictEntry | None:
        is_own = type(self) is CellDescriptor and self.is_each and self.below is MISSING
        return DictEntry(self.name) if is_own and not issubclass(kind, Adopted) else None

    def can_lift(self, value: Any) -> bool:
        """Whether a value is one that JAX can hold, or stands for one as `jax.ShapeDtypeStruct` does."""
        return all(is_array(leaf) and not isinstance(leaf, _AVAL) for leaf in jax.tree.leaves(value))

    # -- handles

    def _found(self, cell: Any) -> Foreign | Native | None:
        """The handle of a cell, or the mark of one that is none of ours."""
        entry = self._table.get(identity(cell))
        if entry is not None:
            return entry[1]
        held = None if type(cell).__weakrefoffset__ else self.raw(cell)
        return held if isinstance(held, Adopted | Native) else None

    def known(self, cell: Any) -> Foreign | None:
        """The handle of a cell, if it has one."""
        found = self._found(cell)
        return found if isinstance(found, Foreign) else None

    def state_of(self, cell: Any, is_named: bool = False) -> Foreign | None:
        """The handle, made where each instance is a cell; None for an attribute that is none of ours.

        Args:
          cell: the cell.
          is_named: whether the user names it; then it may be none of ours in the present frame alone.
        """
        found = self._found(cell)
        if isinstance(found, Foreign):
            return found if is_named or not found._is_native_to(stack.frame) else None
        if found is not None and found.is_here() and not (is_named and found.frame is not None):
            return None
        held = self.raw(cell)
        value = held.value if type(held) is Native else held
        if (found is None and not self.is_each) or value is MISSING or not self.can_lift(value):
            return None
        state = self.handle(cell)
        state._home = None if found is None else found.home()
        return state

    def handle(self, cell: Any) -> Foreign:
        """The handle of a cell, made if there is none."""
        known = self.known(cell)
        if known is not None:
            return known
        is_weak = bool(type(cell).__weakrefoffset__)
        state = object.__new__(self.kind_of_handle if is_weak else Adopted)
        state._stand_for(cell, self)
        if is_weak:
            self._tie(cell, state)
        else:
            held = self.raw(cell)
            if type(held) is Native:
                held = held.value
            state._value = UNSET if held is MISSING else held
            self.set_raw(cell, state)
        return state

    def _tie(self, cell: Any, entry: Foreign | Native) -> None:
        place, forget = identity(cell), self._table.pop
        ref = weakref.ref(cell, lambda _: forget(place, None))
        if isinstance(entry, Proxy):
            entry._ref = ref
        self._table[place] = (ref, entry)

    def __call__(self, cell: Any) -> Foreign:
        """The step of a recorded structure from a cell to its handle."""
        if not self.is_each:  # who records a trace around hears of the attribute in no other way
            for listener in listening.listeners:
                listener.looks_up(cell, self.name)
        state = self.state_of(cell)
        if state is None:
            raise LookupError(self.name)
        return state

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
            known = self.known(cell)
            if known is not None or (self.is_each and self.raw(cell) is not MISSING):
                self.refuse_raw(self.handle(cell), value)
            if isinstance(known, Adopted):
                known._value = value
            else:
                self.set_raw(cell, value)
            return
        if self.is_each and self.raw(cell) is MISSING and self.known(cell) is None:
            self.create(frame, cell, value)
            return
        state = self.state_of(cell)
        if state is None or not self.can_lift(value):
            if state is not None:
                state._check(value)
            held = self.raw(cell)
            if type(held) is Native:
                held.value = value
            elif isinstance(held, Adopted):
                held._value = value
            else:
                self.set_raw(cell, value)
        else:
            self.write(frame, state, value)

    def create(self, frame: Frame, cell: Any, value: Any) -> None:
        """A cell that is made within a transform."""
        if not self.can_lift(value):
            self.set_raw(cell, value)
        elif frame.is_here():
            frame.born[self.handle(cell)] = value
        else:  # made inside a transform of its own framework, which manages the value
            if type(cell).__weakrefoffset__:
                self.set_raw(cell, value)
                self._tie(cell, Native(frame))
            else:
                self.set_raw(cell, Native(frame, value))

    def detach(self, cell: Any) -> None:
        """Makes a cell that was made outside of every frame none of ours."""
        value = self.raw(cell)
        if type(cell).__weakrefoffset__:
            self._tie(cell, Native(None))
        else:
            self.set_raw(cell, Native(None, value))

    def __delete__(self, cell: Any) -> None:
        frame = innermost()
        known = self.known(cell)
        if frame is not None and known is not None:
            raise StateTraceError(
                f"{describe(known)} is deleted inside a transform, which cannot do that. Nothing was changed.\n"
                "Delete the attribute outside, or write another value."
            )
        if self._is_slot:
            self.below.__delete__(cell)
        elif dict_of(cell).pop(self.name, MISSING) is MISSING:
            raise AttributeError(self.name)
        if known is not None:
            self._table.pop(identity(cell), None)
