"""Which objects are cells of other frameworks, or hold some: what goes by reference, and where handles are found.

A pytree that is made of cells to carry their values, `nnx.State`, goes by value: JAX takes it apart and puts it
together as it does any pytree. The cells in it belong to nobody on the way, so `detached` makes some that no frame
lifts, and `attached`, in the frame, those that the function gets.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax

from .activation import activate, pending
from .cells import Cells, cells_behind
from .frame import no_frame
from .state import State

#: The classes all of whose instances are cells, with how the handle of one is come by.
_classes: weakref.WeakKeyDictionary[type, Cells] = weakref.WeakKeyDictionary()
#: The same for each type that was asked for, subclasses and other types, too.
_by_type: weakref.WeakKeyDictionary[type, Cells | None] = weakref.WeakKeyDictionary()
#: Further classes that go by reference though they are pytrees.
_holders: list[type] = []
#: Attributes that their framework keeps for itself, of the instances of some of them.
_unseen: dict[type, frozenset[str]] = {}
#: Pytrees of cells that go by value.
_carriers: list[type] = []


#: What gives the cells that a framework keeps for itself, each a function of anything.
own_cells: list[Callable[[Any], Any]] = []
#: What gives the settings that a framework has at the moment, by the functions that read one each.
settings: list[Callable[[], dict[Any, Any]]] = []
NOT_SET = ("not set",)


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


def holds(cls: type, unseen: Iterable[str] = ()) -> None:
    """Says that instances of a class, which are pytrees, go by reference; `unseen` attributes say nothing of them."""
    if cls not in _holders:
        _holders.append(cls)
    if unseen:
        _unseen[cls] = frozenset(unseen)
    active.has_nodes = True


def unseen_of(kind: type) -> frozenset[str]:
    """The attributes of instances that say nothing of what a function computes."""
    return next((names for cls, names in _unseen.items() if issubclass(kind, cls)), frozenset())


def carries(cls: type) -> None:
    """Says that instances of a class, which are pytrees of cells, go by value."""
    if cls not in _carriers:
        _carriers.append(cls)


def is_carrier(obj: Any) -> bool:
    """Whether an object is a pytree of cells that goes by value."""
    return issubclass(type(obj), tuple(_carriers))


def detached(tree: Any) -> Any:
    """A pytree with carriers of their own in it, whose cells no frame lifts."""
    return jax.tree.map(_detached, tree, is_leaf=is_carrier) if _carriers else tree


def _detached(leaf: Any) -> Any:
    if not is_carrier(leaf):
        return leaf
    leaves, treedef = jax.tree.flatten(leaf)
    return put_together(treedef, leaves)


def put_together(treedef: Any, leaves: Any) -> Any:
    """A pytree with these leaves; no frame lifts the cells of carriers in it."""
    with no_frame():
        tree = treedef.unflatten(leaves)
    if _carriers:
        for carrier in filter(is_carrier, jax.tree.leaves(tree, is_leaf=is_carrier)):
            for cell in jax.tree.leaves(carrier, is_leaf=is_cell):
                if (cells := cells_of(cell)) is not None:
                    cells.detach(cell)
    return tree


class Gathered:
    """A pytree of states or cells, and values in the same structure; of a carrier, a carrier with the values.

    Args:
      tree: the pytree.

    Attributes:
      states: its leaves, handles in the places of cells.
    """

    def __init__(self, tree: Any) -> None:
        self.paths, self._treedef = jax.tree_util.tree_flatten_with_path(tree, is_leaf=leaf_test())
        self.states: list[Any] = [to_state(leaf) for _, leaf in self.paths]
        self._outer, self._outer_treedef = jax.tree.flatten(tree, is_leaf=argument_test())

    def values(self, values: Iterable[Any]) -> Any:
        """The pytree with a value for each state."""
        each = iter(values)
        put_in = lambda leaf: _with_values(leaf, each) if is_carrier(leaf) else next(each)
        return self._outer_treedef.unflatten([put_in(leaf) for leaf in self._outer])

    def split(self, values: Any) -> list[Any]:
        """The value of each state, from such a pytree."""
        found = self._treedef.flatten_up_to(values)
        return [cells.plain(value) if (cells := cells_of(value)) is not None else value for value in found]


def _with_values(carrier: Any, each: Iterator[Any]) -> Any:
    """A carrier of the same cells with other values."""
    leaves = [leaf for cell in jax.tree.leaves(carrier, is_leaf=is_cell) for leaf in jax.tree.leaves(next(each))]
    return put_together(jax.tree.structure(carrier), leaves)


def attached(tree: Any) -> Any:
    """A pytree with carriers of their own in it, whose cells belong to the present frame."""
    attach = lambda leaf: jax.tree.map(lambda value: value, leaf) if is_carrier(leaf) else leaf
    return jax.tree.map(attach, tree, is_leaf=is_carrier) if _carriers else tree


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
    return issubclass(type(obj), tuple(_holders)) or cells_of(obj) is not None


def leaf_test() -> Callable[[Any], bool] | None:
    """The `is_leaf` for pytrees that may have such objects in them."""
    if pending:
        activate()
    return is_node if active.has_nodes else None


def argument_test() -> Callable[[Any], bool] | None:
    """The same for arguments and results, where a carrier is one value."""
    if pending:
        activate()
    if not _carriers:
        return is_node if active.has_nodes else None
    return lambda obj: is_carrier(obj) or is_node(obj)


def to_state(obj: Any) -> Any:
    """The handle of a cell; anything else as it is."""
    kind = type(obj)  # not what the object calls its class: `isinstance` would look that up, and a trace note it
    if issubclass(kind, State):
        return obj
    if pending:
        activate()
    if active.has_cells and not issubclass(kind, type):
        cells = cells_of(obj)
        if cells is not None:
            state = cells.named(obj)
            return obj if state is None else state
    return obj


def to_states(tree: Any) -> Any:
    """A pytree of states, with the handles of cells in their places."""
    return jax.tree.map(to_state, tree, is_leaf=leaf_test())


def attributes_of(cls: type) -> dict[str, Cells]:
    """The attributes of a class that are cells of some instance."""
    named = ((name, cells_behind(found)) for base in reversed(cls.__mro__) for name, found in vars(base).items())
    return {name: cells for name, cells in named if cells is not None}
