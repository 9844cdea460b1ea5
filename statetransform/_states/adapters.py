"""The door to other frameworks: what adapters say of their cells, and what the rest of the package asks.

A cell of another framework is represented by a state, its *handle*. What is found in an object graph is a cell's
descriptor (`cell_behind` in `cell`), which gives the handle; from there on it is a state like any other. An
adapter is installed when something of its framework is met for the first time: a module, a class, a function or an
object. A program that meets nothing of a framework does not change it, and does not depend on its version. JAX itself
is in every program, so the adapter to `jax.Ref` is installed with this package.

Cells and their *owners*, the objects that hold them, are *nodes*: they go by reference, even if they are pytrees. Some
pytrees are made of cells in order to carry values. Such a *carrier* goes by value: JAX takes it apart and rebuilds it,
as it does any pytree. No frame may lift the cells in it meanwhile, so `detached` rebuilds it of cells that no frame
lifts.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from .._base.errors import StateTransformError
from .._base.library import is_ours, is_users_class, is_users_function
from .._objects.lookup import instance_attribute, instance_dict, parts, slot_names
from .._objects.names import globals_of
from .._objects.plain import identity
from .frame import no_frame
from .state import State


class KnownClass(NamedTuple):
    """What is known of a class: how its instances are cells, which go by reference, and whether they carry cells."""

    cell: Any
    is_node: bool
    is_carrier: bool
    hidden: frozenset[str]
    tests: tuple[Callable[[Any], Any], ...]  # of single instances that go by reference


#: Adapters that are not installed yet: the framework, as the names of its classes begin, and the adapter's module.
_lazy: dict[str, str] = {}
_lock = threading.RLock()
_cells: dict[type, Any] = {}
_owners: dict[type, frozenset[str]] = {}  # of cells; with their hidden attributes
_tests: list[tuple[type, Callable[[Any], Any]]] = []
_carriers: list[type] = []
_known: weakref.WeakKeyDictionary[type, KnownClass] = weakref.WeakKeyDictionary()
_has_nodes: list[bool] = []
#: `meet_all` looks at this many objects in the life of a process, at some 4 us each, and then installs all adapters.
_PATIENCE = 10_000
_looked_at = [0]
_CLOSED = (str, bytes, int, float, complex, bool, type(None), np.ndarray, State)  # their instances lead nowhere


# -- what adapters say


def register_lazily(framework: str, adapter: str) -> None:
    """Says which module has the adapter to a framework: its function `install` is called when that is met."""
    _lazy[framework] = adapter


def register(cls: type, cell: Any, is_node: bool = False) -> None:
    """Says that each instance of a class is a cell; `is_node`: and may be a pytree."""
    _cells[cls] = cell
    _has_nodes.extend([True] * is_node)
    _known.clear()


def register_owner(cls: type, hidden: Iterable[str] = ()) -> None:
    """Says that instances of a class, which are pytrees, go by reference; `hidden` attributes say nothing of them."""
    _owners[cls] = frozenset(hidden) or _owners.get(cls, frozenset())
    _has_nodes.append(True)
    _known.clear()


def register_owner_if(cls: type, test: Callable[[Any], Any]) -> None:
    """Says that those instances of a class of pytrees go by reference for which a test does not give None."""
    if (cls, test) not in _tests:
        _tests.append((cls, test))
        _has_nodes.append(True)
        _known.clear()


def register_by_value(cls: type) -> None:
    """Says that instances of a class, which are pytrees of cells, go by value."""
    _carriers.append(cls)
    _known.clear()


# -- meeting a framework


def install_for(obj: Any) -> None:
    """Installs the adapter to the framework of a module, class or function.

    Nothing is said of an adapter that cannot be installed: the program may use no cell.
    """
    with contextlib.suppress(StateTransformError):
        _meet(obj)


def _meet(obj: Any) -> None:
    """As `install_for`, but an adapter that cannot be installed raises."""
    for framework in [*_lazy]:
        is_imported = framework.partition(".")[0] in sys.modules
        if is_imported and any(f"{name}.".startswith(f"{framework}.") for name in _names(obj)):
            with _lock:
                if framework in _lazy:
                    importlib.import_module(_lazy[framework]).install()
                    del _lazy[framework]


def _names(obj: Any) -> list[str]:
    """The full names by which a module, class or function shows its framework; those of all bases of a class."""
    if isinstance(obj, types.ModuleType):
        return [obj.__name__]
    if isinstance(obj, type):
        return [f"{getattr(base, '__module__', None)}.{base.__qualname__}" for base in obj.__mro__]
    return [f"{getattr(obj, '__module__', None)}"]


def known_of(cls: type) -> KnownClass:
    """What is known of a class; the first look installs the adapter.

    Raises:
      StateTransformError: the adapter does not know this version of its framework.
    """
    known = _known.get(cls)
    if known is None:
        _meet(cls)
        cell = next((_cells[base] for base in cls.__mro__ if base in _cells), None)
        owner = next((_owners[base] for base in [*_owners] if issubclass(cls, base)), None)
        hidden = owner or frozenset() if cell is None else cell.hidden
        is_node = cell is not None or owner is not None
        tests = tuple([test for base, test in _tests if issubclass(cls, base)])
        known = _known[cls] = KnownClass(cell, is_node, issubclass(cls, tuple(_carriers)), hidden, tests)
    return known


def meet_all(fun: Any) -> None:
    """Meets the frameworks of what a function can reach; for one that runs directly, without a recorder.

    Its global names, those of the user's functions that it reaches, what these close over, and what objects hold are
    looked at while there may be cells that were not met. After `_PATIENCE` objects in all, every imported
    framework is met instead.
    """
    if sys.modules.keys().isdisjoint(_lazy):
        return
    waiting, seen, closed = [fun], set[int](), set[type](_CLOSED)
    while waiting:
        _looked_at[0] += 1
        if _looked_at[0] > _PATIENCE:
            for framework in sys.modules.keys() & _lazy:
                install_for(sys.modules[framework])
            return
        obj = waiting.pop()
        kind: Any = type(obj)
        if kind in closed or identity(obj) in seen:
            continue
        seen.add(identity(obj))
        if (below := parts(obj)) is not None:
            waiting += [child for _, child in below]
            if kind is types.FunctionType:
                install_for(obj)
                waiting += [child for _, child in globals_of(obj)] if is_users_function(obj) else []
        elif kind is types.ModuleType or issubclass(kind, type):
            install_for(obj)
        elif cell_of(kind) is not None or issubclass(kind, State):
            continue
        elif is_users_class(kind):
            waiting += [*(instance_dict(obj) or {}).values()]
            waiting += [instance_attribute(obj, name) for name in slot_names(kind)]
            waiting += [method for base in kind.__mro__ for method in _methods(base)]
        elif is_ours(kind):
            waiting.append(getattr(obj, "__wrapped__", None))
        else:
            closed.add(kind)


def _methods(cls: type) -> list[types.FunctionType]:
    if not is_users_class(cls):
        return []
    return [child for child in list(vars(cls).values()) if type(child) is types.FunctionType]


# -- what the core asks


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


def by_reference(obj: Any) -> bool | None:
    """Whether an object goes by reference, True for a node and False for a carrier; None for anything else."""
    return True if is_node(obj) else False if known_of(type(obj)).is_carrier else None


def flatten(tree: Any) -> tuple[list[Any], Any]:
    """The leaves and the structure of a pytree, of which nodes and carriers are leaves; the carriers are detached."""
    if not _has_nodes and sys.modules.keys().isdisjoint(_lazy):
        return jax.tree.flatten(tree)
    leaves, treedef = jax.tree.flatten(tree, is_leaf=_is_leaf)
    return [_detached(leaf) for leaf in leaves] if _carriers else leaves, treedef


def detached(tree: Any) -> Any:
    """A pytree with carriers of their own in it, whose cells no frame lifts; without any, the pytree itself."""
    if not _carriers:
        return tree
    leaves, treedef = flatten(tree)
    return treedef.unflatten(leaves) if any(known_of(type(leaf)).is_carrier for leaf in leaves) else tree


def with_values(tree: Any, values: Iterable[Any]) -> Any:
    """A pytree of states or cells with values in their places; of a carrier, another one with the values."""
    each = iter(values)
    leaves, treedef = jax.tree.flatten(tree, is_leaf=_is_leaf)
    return treedef.unflatten(
        [_rebuilt(leaf, each) if known_of(type(leaf)).is_carrier else next(each) for leaf in leaves]
    )


def _rebuilt(carrier: Any, each: Iterator[Any]) -> Any:
    leaves = [leaf for _ in jax.tree.leaves(carrier, is_leaf=is_node) for leaf in jax.tree.leaves(next(each))]
    return jax.tree.structure(carrier).unflatten(leaves)


def _is_leaf(obj: Any) -> bool:
    known = known_of(type(obj))
    return known.is_node or known.is_carrier or bool(known.tests and is_node(obj))


def _detached(leaf: Any) -> Any:
    if not known_of(type(leaf)).is_carrier:
        return leaf
    leaves, treedef = jax.tree.flatten(leaf)
    with no_frame():
        carrier = treedef.unflatten(leaves)
    for obj in jax.tree.leaves(carrier, is_leaf=is_node):
        if (cell := cell_of(type(obj))) is not None:
            cell.detach(obj)
    return carrier
