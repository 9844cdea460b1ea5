"""Which objects are cells of other frameworks, or hold some: what goes by reference, and where handles are found."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import jax

from .activation import activate, pending
from .cells import Cells
from .state import State

#: The classes all of whose instances are cells, with how the handle of one is come by.
_classes: weakref.WeakKeyDictionary[type, Cells] = weakref.WeakKeyDictionary()
#: The same for each type that was asked for, subclasses and other types, too.
_by_type: weakref.WeakKeyDictionary[type, Cells | None] = weakref.WeakKeyDictionary()
#: Further classes that go by reference though they are pytrees.
_holders: list[type] = []


class _Active:
    """What there is to look for."""

    has_cells = False  # of any class
    has_nodes = False  # that may be pytrees


active = _Active()


def register(cls: type, cells: Cells, is_node: bool = False) -> None:
    """Says that each instance of a class is a cell."""
    _classes[cls] = cells
    _by_type.clear()
    active.has_cells = True
    active.has_nodes = active.has_nodes or is_node


def holds(cls: type) -> None:
    """Says that instances of a class, which are pytrees, go by reference."""
    if cls not in _holders:
        _holders.append(cls)
    active.has_nodes = True


def cells_of(obj: Any) -> Cells | None:
    """How the handle of a cell is come by; None for what is no cell."""
    kind = type(obj)
    try:
        return _by_type[kind]
    except KeyError:
        pass
    found = next((_classes[base] for base in kind.__mro__ if base in _classes), None)
    _by_type[kind] = found
    return found


def is_cell(obj: Any) -> bool:
    """Whether an object is a cell of another framework."""
    return active.has_cells and cells_of(obj) is not None


def is_cell_class(cls: Any) -> bool:
    """Whether instances of a class are cells."""
    return isinstance(cls, type) and (
        any(base in _classes for base in cls.__mro__)
        or any(issubclass(known, cls) for known in _classes if cls is not object)
    )


def is_node(obj: Any) -> bool:
    """Whether an object goes by reference though it may be a pytree: a cell, or what holds cells."""
    return isinstance(obj, tuple(_holders)) or cells_of(obj) is not None


def leaf_test() -> Callable[[Any], bool] | None:
    """The `is_leaf` for pytrees that may have such objects in them."""
    if pending:
        activate()
    return is_node if active.has_nodes else None


def to_state(obj: Any) -> Any:
    """The handle of a cell; anything else as it is."""
    if isinstance(obj, State):
        return obj
    if pending:
        activate()
    if active.has_cells and not isinstance(obj, type):
        cells = cells_of(obj)
        if cells is not None:
            state = cells.state_of(obj)
            return obj if state is None else state
    return obj


def to_states(tree: Any) -> Any:
    """A pytree of states, with the handles of cells in their places."""
    return jax.tree.map(to_state, tree, is_leaf=leaf_test())


def attributes_of(cls: type) -> dict[str, Cells]:
    """The attributes of a class that are cells of some instance."""
    return {
        name: found for base in reversed(cls.__mro__) for name, found in vars(base).items() if isinstance(found, Cells)
    }
