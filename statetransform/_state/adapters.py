"""The door to other frameworks: all that the rest of the package calls of their adapters.

A cell of another framework is represented by a state, its *handle*, so that nothing but this module meets a cell. An
adapter is installed when something of its framework is met for the first time: a module, a class, a function or an
object. A program that meets nothing of a framework does not change it, and does not depend on its version.

Some pytrees are made of cells in order to carry values. They go by value: JAX takes such a *carrier* apart and puts it
together as it does any pytree. Meanwhile no frame may lift the cells in it. So `detached` makes a carrier of cells
that no frame lifts, and `attached`, in the frame, the one that the function gets.
"""

from __future__ import annotations

import functools
import importlib
import sys
import threading
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from .._objects.hooks import listening
from .._objects.library import is_ours, is_users_class, is_users_function
from .._objects.lookup import contents, instance_attribute, instance_dict, slot_names
from .._objects.names import globals_of
from .._objects.plain import identity
from .errors import StateTransformError
from .frame import no_frame
from .state import State


class _KnownClass(NamedTuple):
    """What is known of a class: how its instances are cells, whether they go by reference, or carry cells."""

    cell: Any
    is_node: bool
    is_carrier: bool
    hidden: frozenset[str]


#: Adapters that are not installed yet: the framework, as the names of its classes begin, and the adapter's module.
_offers: dict[str, str] = {}
_lock = threading.RLock()
_cells: dict[type, Any] = {}
_holders: dict[type, frozenset[str]] = {}  # with their hidden attributes
_carriers: list[type] = []
_kinds: weakref.WeakKeyDictionary[type, _KnownClass] = weakref.WeakKeyDictionary()
_has_nodes: list[bool] = []
#: What gives the cells that a framework keeps for itself, each a function of anything.
own_cells: list[Callable[[Any], Any]] = []
_settings: list[Callable[[], dict[Any, Any]]] = []
_hints: dict[str, list[tuple[str, str]]] = {}
#: Code whose global names were looked at.
_looked_at: weakref.WeakSet[types.CodeType] = weakref.WeakSet()
_met: weakref.WeakSet[types.CodeType] = weakref.WeakSet()
_CLOSED = (str, bytes, int, float, complex, bool, type(None), np.ndarray, State)  # their instances lead nowhere


# -- what adapters say


def offer(framework: str, adapter: str) -> None:
    """Says which module has the adapter to a framework: its function `install` is called when that is met."""
    _offers[framework] = adapter


def hint(topic: str, framework: str, text: str) -> None:
    """Gives a sentence for messages to users of a framework."""
    _hints.setdefault(topic, []).append((framework, text))


def register(cls: type, cell: Any, is_node: bool = False) -> None:
    """Says that each instance of a class is a cell; `is_node`: and may be a pytree."""
    _cells[cls] = cell
    _has_nodes.extend([True] * is_node)
    _kinds.clear()


def holds(cls: type, hidden: Iterable[str] = ()) -> None:
    """Says that instances of a class, which are pytrees, go by reference; `hidden` attributes say nothing of them."""
    _holders[cls] = frozenset(hidden) or _holders.get(cls, frozenset())
    _has_nodes.append(True)
    _kinds.clear()


def carries(cls: type) -> None:
    """Says that instances of a class, which are pytrees of cells, go by value."""
    _carriers.append(cls)
    _kinds.clear()


def has_settings(read: Callable[[], dict[Any, Any]]) -> None:
    """Says how to read the settings of a framework, by the functions that read one each."""
    _settings.append(read)


# -- meeting a framework


def _is_one_imported() -> bool:
    """Whether a framework is imported whose adapter is not installed."""
    return any(framework in sys.modules for framework in _offers)


def meet(obj: Any) -> None:
    """Installs the adapter to the framework of a module, class or function.

    Nothing is said of an adapter that cannot be installed: the program may use no cell.
    """
    try:
        if isinstance(obj, types.ModuleType):
            _meet([obj.__name__])
        else:
            _meet(_names(obj) if isinstance(obj, type) else [f"{obj.__module__}"])
    except StateTransformError:
        pass


def _names(cls: type) -> list[str]:
    return [f"{base.__module__}.{base.__qualname__}" for base in cls.__mro__]


def _meet(names: Iterable[str]) -> None:
    for framework in [*_offers]:
        if any(f"{name}.".startswith(f"{framework}.") for name in names):
            with _lock:
                if framework in _offers:
                    importlib.import_module(_offers[framework]).install()
                    del _offers[framework]
            for listener in listening.listeners:
                listener.meets_settings()


def _kind(cls: type) -> _KnownClass:
    """What is known of a class; the first look installs the adapter.

    Raises:
      StateTransformError: the adapter does not know this version of its framework.
    """
    known = _kinds.get(cls)
    if known is None:
        _meet(_names(cls))
        cell = next((_cells[base] for base in cls.__mro__ if base in _cells), None)
        holder = next((names for base, names in _holders.items() if issubclass(cls, base)), None)
        hidden = holder or frozenset() if cell is None else cell.hidden
        is_node = cell is not None or holder is not None
        known = _kinds[cls] = _KnownClass(cell, is_node, issubclass(cls, tuple(_carriers)), hidden)
    return known


def meet_all(fun: Any) -> None:
    """Meets the frameworks of what a function can reach; for one that runs directly, without a recorder.

    Its global names, and those of the user's functions that it reaches, are looked at once; what it closes over and
    what objects hold, at its first call, and at each call while a framework is imported whose cells were not met.
    """
    code = _code_of(fun)
    if code in _met and not _is_one_imported():
        return
    if code is not None:
        _met.add(code)
    waiting, seen, closed = [fun], set[int](), set[type](_CLOSED)
    while waiting:
        obj = waiting.pop()
        kind: Any = type(obj)
        if kind in closed or identity(obj) in seen:
            continue
        seen.add(identity(obj))
        if kind is types.FunctionType:
            meet(obj)
            waiting += [contents(cell) for cell in obj.__closure__ or ()]
            waiting += [*(obj.__defaults__ or ()), *(obj.__kwdefaults__ or {}).values()]
            if obj.__code__ not in _looked_at and is_users_function(obj):
                _looked_at.add(obj.__code__)
                waiting += [child for _, child in globals_of(obj)]
        elif kind is types.ModuleType or issubclass(kind, type):
            meet(obj)
        elif kind is types.MethodType:
            waiting += [obj.__self__, obj.__func__]
        elif issubclass(kind, functools.partial):
            waiting += [obj.func, *obj.args, *obj.keywords.values()]
        elif issubclass(kind, dict):
            waiting += dict.values(obj)
        elif issubclass(kind, (list, tuple, deque, set, frozenset)):
            waiting += obj
        elif cell_of(kind) is not None or issubclass(kind, State):
            continue
        elif is_users_class(kind):
            waiting += (instance_dict(obj) or {}).values()
            waiting += [instance_attribute(obj, name) for name in slot_names(kind)]
            waiting += [method for base in kind.__mro__ for method in _methods(base)]
        elif is_ours(kind):
            waiting.append(getattr(obj, "__wrapped__", None))
        else:
            closed.add(kind)


def _code_of(fun: Any) -> types.CodeType | None:
    while not hasattr(fun, "__code__") and (inner := getattr(fun, "func", None) or getattr(fun, "__wrapped__", None)):
        fun = inner
    return getattr(fun, "__code__", None)


def _methods(cls: type) -> list[types.FunctionType]:
    if not is_users_class(cls):
        return []
    found = [child for child in vars(cls).values() if type(child) is types.FunctionType]
    return [fun for fun in found if fun.__code__ not in _looked_at]


# -- what the core asks


def cell_of(cls: type) -> Any:
    """How the instances of a class are cells; None when they are none."""
    return None if issubclass(cls, State | type) else _kind(cls).cell


def hidden(cls: type) -> frozenset[str]:
    """The attributes of instances that say nothing of what a function computes."""
    return _kind(cls).hidden


def handle(obj: Any) -> Any:
    """The handle of a cell; anything else as it is."""
    kind = type(obj)  # not what the object calls its class: `isinstance` would look that up, and a trace note it
    cell = cell_of(kind)
    if cell is None:
        return obj
    state = cell.named(obj)
    return obj if state is None else state


def is_cell_class(cls: Any) -> bool:
    """Whether instances of a class, or of one that is derived from it, are cells."""
    if not isinstance(cls, type) or cls is object or issubclass(cls, State):
        return False
    return _kind(cls).cell is not None or any(issubclass(known, cls) for known in _cells)


def is_node(obj: Any) -> bool:
    """Whether an object goes by reference though it may be a pytree: a cell, or what holds cells."""
    return _kind(type(obj)).is_node


def is_carrier(obj: Any) -> bool:
    """Whether an object is a pytree of cells that goes by value."""
    return _kind(type(obj)).is_carrier


def leaf_test(opens_carriers: bool = False) -> Callable[[Any], bool] | None:
    """The `is_leaf` for pytrees that may have something of a framework in them."""
    if not _has_nodes and sys.modules.keys().isdisjoint(_offers):
        return None
    return is_node if opens_carriers else _is_leaf


def _is_leaf(obj: Any) -> bool:
    kind = _kind(type(obj))
    return kind.is_node or kind.is_carrier


def settings() -> dict[Any, Any]:
    """What the frameworks' settings are at the moment, by the functions that read one each."""
    return {reader: value for read in _settings for reader, value in read().items()}


def hints(topic: str) -> str:
    """What to say to users of the frameworks that have been imported."""
    return "".join(text for framework, text in _hints.get(topic, ()) if framework in sys.modules)


# -- carriers


def detached(tree: Any) -> Any:
    """A pytree with carriers of their own in it, whose cells no frame lifts."""
    return jax.tree.map(_detached, tree, is_leaf=_is_leaf) if _carriers else tree


def _detached(leaf: Any) -> Any:
    if not is_carrier(leaf):
        return leaf
    leaves, treedef = jax.tree.flatten(leaf)
    return _put_together(treedef, leaves)


def _put_together(treedef: Any, leaves: Any) -> Any:
    """A carrier with these leaves; no frame lifts the cells in it."""
    with no_frame():
        carrier = treedef.unflatten(leaves)
    for obj in jax.tree.leaves(carrier, is_leaf=is_node):
        if (cell := cell_of(type(obj))) is not None:
            cell.detach(obj)
    return carrier


def attached(tree: Any) -> Any:
    """A pytree with carriers of their own in it, whose cells belong to the present frame."""
    attach = lambda leaf: jax.tree.map(lambda value: value, leaf) if is_carrier(leaf) else leaf
    return jax.tree.map(attach, tree, is_leaf=_is_leaf) if _carriers else tree


class Gathered:
    """A pytree of states or cells, and values in the same structure; of a carrier, a carrier with the values.

    Args:
      tree: the pytree.

    Attributes:
      states: its leaves, handles in the places of cells.
      paths: the way to each of them.
    """

    def __init__(self, tree: Any) -> None:
        found, self._treedef = jax.tree_util.tree_flatten_with_path(tree, is_leaf=leaf_test(opens_carriers=True))
        self.states: list[Any] = [handle(leaf) for _, leaf in found]
        self.paths: list[Any] = [path for path, _ in found]
        self._outer, self._outer_treedef = jax.tree.flatten(tree, is_leaf=leaf_test())

    def values(self, values: Iterable[Any]) -> Any:
        """The pytree with a value for each state."""
        each = iter(values)
        put_in = lambda leaf: _with_values(leaf, each) if is_carrier(leaf) else next(each)
        return self._outer_treedef.unflatten([put_in(leaf) for leaf in self._outer])

    def split(self, values: Any) -> list[Any]:
        """The value of each state, from such a pytree."""
        found = self._treedef.flatten_up_to(values)
        return [cell.plain(value) if (cell := cell_of(type(value))) is not None else value for value in found]


def _with_values(carrier: Any, each: Iterator[Any]) -> Any:
    """A carrier of the same cells with other values."""
    leaves = [leaf for cell in jax.tree.leaves(carrier, is_leaf=is_node) for leaf in jax.tree.leaves(next(each))]
    return _put_together(jax.tree.structure(carrier), leaves)
