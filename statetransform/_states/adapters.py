"""What classes of other frameworks are to this package: cells, nodes or carriers. Adapters say it, and others ask it.

* A *cell* keeps a value. It is represented by a state, its *handle*. What is found in an object graph is the cell's
  descriptor (`cell_behind` in `cell`), which gives the handle; from there on it is a state like any other.
* A *node* goes by reference, even if it is a pytree: a cell, or an object that holds cells, its owner.
* A *carrier* is a pytree that is made of cells in order to carry values, and goes by value, as any pytree does.

The first question about a class installs the adapter to its framework (`installing`).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from .installing import install_for
from .state import State


class KnownClass(NamedTuple):
    """What is known of a class.

    Attributes:
      cell: how its instances are cells, a `Cell`; None if they are none.
      is_node: whether all its instances go by reference.
      is_carrier: whether they carry cells.
      hidden: attributes that say nothing of what a function computes.
      tests: functions of one instance, which goes by reference if one of them does not give None.
    """

    cell: Any
    is_node: bool
    is_carrier: bool
    hidden: frozenset[str]
    tests: tuple[Callable[[Any], Any], ...]


_cells: dict[type, Any] = {}
_owners: dict[type, frozenset[str]] = {}  # with their hidden attributes
_tests: list[tuple[type, Callable[[Any], Any]]] = []
_known: weakref.WeakKeyDictionary[type, KnownClass] = weakref.WeakKeyDictionary()
#: Nodes that may be pytrees, and carriers. While there are none, no pytree is searched for them.
node_classes: set[type] = set()
carrier_classes: set[type] = set()


# -- what adapters say


def register(cls: type, cell: Any, may_be_pytree: bool = False) -> None:
    """Says that each instance of a class is a cell."""
    _cells[cls] = cell
    if may_be_pytree:
        node_classes.add(cls)
    _known.clear()


def register_owner(cls: type, hidden: Iterable[str] = ()) -> None:
    """Says that instances of a class, which are pytrees, go by reference; `hidden` attributes say nothing of them."""
    _owners[cls] = frozenset(hidden) or _owners.get(cls, frozenset())
    node_classes.add(cls)
    _known.clear()


def register_owner_if(cls: type, test: Callable[[Any], Any]) -> None:
    """Says that those instances of a class of pytrees go by reference for which a test does not give None."""
    if (cls, test) not in _tests:
        _tests.append((cls, test))
        node_classes.add(cls)
        _known.clear()


def register_by_value(cls: type) -> None:
    """Says that instances of a class, which are pytrees of cells, go by value."""
    carrier_classes.add(cls)
    _known.clear()


# -- what others ask


def known_of(cls: type) -> KnownClass:
    """What is known of a class; the first look installs the adapter.

    Raises:
      StateTransformError: the adapter does not know this version of its framework.
    """
    known = _known.get(cls)
    if known is None:
        install_for(cls, raises=True)
        cell = next((_cells[base] for base in cls.__mro__ if base in _cells), None)
        owner = next((_owners[base] for base in [*_owners] if issubclass(cls, base)), None)
        hidden = owner or frozenset() if cell is None else cell.hidden
        is_node = cell is not None or owner is not None
        tests = tuple([test for base, test in _tests if issubclass(cls, base)])
        known = _known[cls] = KnownClass(cell, is_node, issubclass(cls, tuple(carrier_classes)), hidden, tests)
    return known


def cell_of(cls: type) -> Any:
    """How the instances of a class are cells; None when they are none."""
    return None if issubclass(cls, State | type) else known_of(cls).cell


def is_cell_class(cls: type) -> bool:
    """Whether instances of a class, or of one that is derived from it, are cells."""
    return cls is not object and (known_of(cls).cell is not None or any(issubclass(other, cls) for other in _cells))


def as_state(obj: Any) -> Any:
    """The state that an object is or stands for: the handle of a cell. Any other object as it is."""
    kind = type(obj)  # not what the object calls its class: `isinstance` would look that up, and a trace note it
    cell = cell_of(kind)
    if cell is None:
        return obj
    state = cell.state_of(obj, is_named=True)
    return obj if state is None else state


def is_node(obj: Any) -> bool:
    """Whether an object goes by reference though it may be a pytree: a cell, or what holds cells."""
    known = known_of(type(obj))
    return known.is_node or any(test(obj) is not None for test in known.tests)


def is_carrier(obj: Any) -> bool:
    """Whether an object is a pytree of cells that goes by value."""
    return known_of(type(obj)).is_carrier


def by_reference(obj: Any) -> bool | None:
    """Whether an object goes by reference, True for a node and False for a carrier; None for anything else."""
    return True if is_node(obj) else False if is_carrier(obj) else None
