"""Walking object graphs: which states are reachable from an object, and by which path."""

from __future__ import annotations

import dataclasses
import functools
import numbers
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar, overload

import jax
import numpy as np

from .._base.errors import describe
from .._base.library import is_ours, is_users_class, is_users_function
from .._jax import is_top_level
from .._objects.lookup import parts, slot_names
from .._objects.names import globals_of
from .adapters import as_state, is_cell_class
from .cell import cells_in
from .frame import Onlooker, innermost
from .state import State
from .state_pytrees import Gathered

#: What selects states: a subclass of `State`, a predicate, a state, or a container of these.
Kind = Any
S = TypeVar("S", bound=State)

_OPAQUE = (
    str, bytes, bytearray, int, float, complex, bool, type(None), types.ModuleType,
    np.ndarray, np.generic, jax.Array, types.BuiltinFunctionType,
)  # fmt: skip


@overload
def states(tree: Any) -> dict[str, State]: ...
@overload
def states(tree: Any, *kinds: type[S]) -> dict[str, S]: ...  # pyright: ignore[reportOverlappingOverload]
@overload
def states(tree: Any, *kinds: Kind) -> dict[str, State]: ...
def states(tree: Any, *kinds: Kind) -> dict[str, Any]:
    """Finds every state in a module, container, dataclass or object graph.

    Follows dicts, lists, tuples, sets, the attributes of objects, partial objects, bound methods and
    the variables that functions close over. Cycles are allowed.

    Args:
      tree: where to look.
      *kinds: subclasses of `State`, or predicates; only states of one of them are returned.

    Returns:
      The states by path (``"layers.0.w"``), each once, by its shortest path. Cells of other frameworks have no names of
      their own: errors and reports call them by the path at which they were found first.

    Raises:
      TypeError: `tree` is a class, or a value that cannot hold a state.
      ValueError: two states have the same path, as in ``{1: State(0), "1": State(0)}``.

    Example:
      >>> import statetransform as st
      >>> model = {"layers": [{"w": st.Param(1.0)}, {"w": st.Param(2.0)}], "count": st.State(0)}
      >>> list(st.states(model, st.Param))
      ['layers.0.w', 'layers.1.w']
    """
    if tree is None or isinstance(tree, type | str | bytes | numbers.Number):
        what = f"the class {tree.__name__}" if isinstance(tree, type) else repr(tree)
        raise TypeError(f"states: expected a model or a container of states, not {what}")
    is_wanted: Callable[[State], bool] = selects(*kinds) if kinds else lambda state: True
    labels = list(walk([tree]))
    for label, state in labels:
        if state._cell.is_named_by_path and state._name is None and label:
            state._name = ".".join(label)
    found = {id(state): label for label, state in labels if is_wanted(state)}
    # The nearest first gives the shortest paths; people expect the order of definition.
    ordered = {id(state): state for _, state in walk([tree], is_deep=True) if id(state) in found}
    paths: dict[str, State] = {}
    for key, state in ordered.items():
        path = ".".join(found[key])
        if paths.setdefault(path, state) is not state:
            raise ValueError(
                f"states: {describe(paths[path])} and {describe(state)} have the same path, {path!r}. Rename an "
                "attribute or key on it, so that each state has a path of its own."
            )
    return paths


def selects(*kinds: Kind) -> Callable[[State], bool]:
    """One predicate out of kinds, predicates, states and containers of them.

    Raises:
      TypeError: for anything else.
    """
    types_: list[type] = []
    predicates: list[Callable[[State], bool]] = []
    members: set[State] = set()
    for kind in Gathered(kinds, is_leaf=lambda leaf: leaf is None).states:
        if isinstance(kind, State):
            members.add(kind)
        elif isinstance(kind, type) and (issubclass(kind, State) or is_cell_class(kind)):
            types_.append(kind)
        elif callable(kind) and not isinstance(kind, type):
            predicates.append(kind)  # type: ignore[arg-type]
        else:
            raise TypeError(
                f"cannot select states by {kind!r}: pass a State, a subclass of State, a predicate on states, "
                "or a container of these, such as `st.states(model)`"
            )
    return lambda state: (
        state in members
        or isinstance(state, tuple(types_))
        or issubclass(getattr(state, "_kind", type(state)), tuple(types_))
        or any(_satisfies(state, predicate) for predicate in predicates)
    )


def _satisfies(state: State, predicate: Callable[[State], bool]) -> bool:
    if innermost() is None and is_top_level():
        return predicate(state)
    with Onlooker():
        return predicate(state)


def walk(
    roots: Iterable[Any], *, through_globals: bool = False, limit: int | None = None, is_deep: bool = False
) -> Iterator[tuple[tuple[str, ...], State]]:
    """Yields each reachable state once, with its label.

    Args:
      roots: where to start.
      through_globals: also follow the global names that functions use, classes and their methods.
      limit: give up behind so many objects.
      is_deep: whether to go depth first, in the order of definition, and not by distance.
    """
    queue: deque[tuple[tuple[str, ...], Any]] = deque(((), root) for root in roots)
    # By address, with the object, to keep temporary ones alive so that no address is used twice.
    seen: dict[int, Any] = {}
    while queue and (limit is None or len(seen) < limit):
        label, obj = queue.pop() if is_deep else queue.popleft()
        if id(obj) in seen:
            continue
        seen[id(obj)] = obj
        obj = as_state(obj)
        if isinstance(obj, State):
            yield label, obj
        elif _is_open(obj, through_globals):
            children = [pair for pair in _children(obj, through_globals) if _is_open(pair[1], through_globals)]
            below = [((*label, name) if name else label, child) for name, child in children]
            queue.extend(reversed(below) if is_deep else below)


def _children(obj: Any, through_globals: bool) -> Iterator[tuple[str, Any]]:
    """The objects directly below one, each with its label."""
    found = parts(obj)
    if found is None and isinstance(obj, Mapping):
        is_followed = isinstance(obj, weakref.WeakValueDictionary) or not jax.tree_util.all_leaves([obj])
        found = list(obj.items()) if is_followed else None
    if found is not None:
        yield from ((str(key), child) for key, child in found)
        if through_globals and isinstance(obj, types.FunctionType) and is_users_function(obj):
            yield from globals_of(obj)
    elif isinstance(obj, type):
        for name, child in list(vars(obj).items()):
            if not isinstance(child, staticmethod | classmethod | property):
                yield name, child
    elif is_ours(type(obj)):  # a transformed function, but not its caches
        if hasattr(obj, "__wrapped__"):
            yield "", getattr(obj, "__wrapped__")  # noqa: B009 - not of the class that is known
    elif is_users_class(type(obj)) or dataclasses.is_dataclass(obj) or isinstance(obj, types.SimpleNamespace):
        yield from _attributes(obj)
        yield from _class_children(obj, through_globals)


def _is_open(obj: Any, through_globals: bool) -> bool:
    """Whether to look inside."""
    if isinstance(obj, type):
        return through_globals and is_users_class(obj)
    return not isinstance(obj, _OPAQUE)


def _class_children(obj: Any, through_globals: bool) -> Iterator[tuple[str, Any]]:
    """What an object has from its class: values as attributes of its own, and methods for their globals."""
    for cls in type(obj).__mro__:
        if not is_users_class(cls):
            continue
        for name, child in list(vars(cls).items()):
            if isinstance(child, types.FunctionType | functools.partial) or hasattr(child, "__wrapped__"):
                if through_globals and not isinstance(child, staticmethod | classmethod):
                    yield name, child
            elif isinstance(child, State | list | dict | tuple):
                yield name, getattr(obj, name)  # of the instance, which may hide it; a trace notes the look-up


def _attributes(obj: Any) -> Iterator[tuple[str, Any]]:
    """The instance attributes of an object, from its `__dict__` and its slots; handles for those that are cells."""
    found = cells_in(type(obj))
    cells = {name: state for name, cell in found.items() if (state := cell.existing_handle(obj)) is not None}
    for name, child in list(getattr(obj, "__dict__", {}).items()):
        yield name, cells.pop(name, child)
    yield from cells.items()
    for name in slot_names(type(obj)):
        if name not in cells and hasattr(obj, name):
            yield name, getattr(obj, name)
