"""Walking object graphs: which states are reachable from an object, and by which path.

Two users: `states`, which names each state by its path, and the record of a trace, which asks which names a function
looks up.
"""

from __future__ import annotations

import dataclasses
import dis
import functools
import sys
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from .activation import activate, pending
from .foreign import active, attributes_of, cells_of, is_carrier, is_cell, is_cell_class, to_state
from .handles import Foreign
from .state import State

#: One move in the graph: ("attr", name) or ("item", key).
Step = tuple[str, Any]
#: What selects states: a subclass of `State`, a predicate, a state, or a container of these.
Kind = Any

_NAME = __name__.partition(".")[0]
_LIBRARIES = frozenset(sys.stdlib_module_names) - {"__main__"} | {"jax", "jaxlib", "numpy", "scipy", _NAME}
_PACKAGE = _NAME + "."
_OPAQUE = (
    str, bytes, bytearray, int, float, complex, bool, type(None), types.ModuleType,
    np.ndarray, np.generic, jax.Array, types.BuiltinFunctionType,
)  # fmt: skip
_SEQUENCES = (list, tuple, deque)
_LOAD_GLOBAL, _LOAD_NAME = dis.opmap["LOAD_GLOBAL"], dis.opmap["LOAD_NAME"]


def states(tree: Any, *kinds: Kind) -> dict[str, State]:
    """Finds every state in a module, container, dataclass or object graph.

    Follows dicts, lists, tuples, sets, the attributes of objects, partial objects, bound methods and
    the variables that functions close over. Cycles are allowed.

    Args:
      tree: where to look.
      *kinds: subclasses of `State`, or predicates; only states of one of them are returned.

    Returns:
      The states by path (``"layers.0.w"``), each once, by its shortest path.

    Example:
      >>> import statetransform as st
      >>> model = {"layers": [{"w": st.Param(1.0)}, {"w": st.Param(2.0)}], "count": st.State(0)}
      >>> list(st.states(model, st.Param))
      ['layers.0.w', 'layers.1.w']
    """
    is_wanted: Callable[[State], bool] = selects(*kinds) if kinds else lambda state: True
    labels = [(label, state) for label, _, state in walk([tree])]
    for label, state in labels:
        if state._is_foreign and state._name is None and label:
            state._name = ".".join(label)
    found = {id(state): label for label, state in labels if is_wanted(state)}
    # `walk` goes by distance, which gives the shortest paths; people expect the order of definition.
    ordered = {id(state): state for state in _in_order(tree) if id(state) in found}
    return {".".join(found[key]): state for key, state in ordered.items()}


def selects(*kinds: Kind) -> Callable[[State], bool]:
    """One predicate out of kinds, predicates, states and containers of them.

    Raises:
      TypeError: for anything else.
    """
    types_: list[type] = []
    predicates: list[Callable[[State], bool]] = []
    members: set[State] = set()
    if pending:
        activate()
    foreign_types: list[type] = []
    for kind in jax.tree.leaves(kinds, is_leaf=lambda leaf: leaf is None or is_cell(leaf)):
        kind = to_state(kind)
        if isinstance(kind, State):
            members.add(kind)
        elif is_cell_class(kind):
            foreign_types.append(kind)
        elif isinstance(kind, type) and issubclass(kind, State):
            types_.append(kind)
        elif callable(kind) and not isinstance(kind, type):
            predicates.append(kind)  # type: ignore[arg-type]
        else:
            raise TypeError(
                f"cannot select states by {kind!r}: give a State, a subclass of State, a predicate on states, "
                "or a container of these, `st.states(model)` for example"
            )
    return lambda state: (
        state in members
        or isinstance(state, tuple(types_))
        or (isinstance(state, Foreign) and issubclass(state._kind, tuple(foreign_types)))
        or any(predicate(state) for predicate in predicates)
    )


def has_states(obj: Any) -> bool:
    """Whether any state is reachable from an object."""
    return next(walk([obj]), None) is not None


def walk(
    roots: Iterable[Any],
    *,
    through_globals: bool = False,
    limit: int | None = None,
    empty: list[tuple[Step, ...]] | None = None,
    aliases: list[tuple[tuple[Step, ...], tuple[Step, ...]]] | None = None,
) -> Iterator[tuple[tuple[str, ...], tuple[Step, ...], State]]:
    """Yields each reachable state once, nearest first, with its label and the steps that lead to it.

    Args:
      roots: where to start; the first step of each path is ("item", index of the root).
      through_globals: also follow the global names that functions use, classes and their methods.
      limit: give up behind so many objects.
      empty: takes the steps to the empty lists and dicts on the way.
      aliases: takes further steps to what was reached before, with the steps by which that was.
    """
    if pending:
        activate()
    queue: deque[tuple[tuple[str, ...], tuple[Step, ...], Any]] = deque(
        ((), (("item", i),), root) for i, root in enumerate(roots)
    )
    # By address, with the object, to keep temporary ones alive so that no address is used twice.
    seen: dict[int, tuple[Any, tuple[Step, ...]]] = {}
    while queue and (limit is None or len(seen) < limit):
        label, steps, obj = queue.popleft()
        if id(obj) in seen:
            if aliases is not None and not isinstance(obj, types.FunctionType | type):
                aliases.append((steps, seen[id(obj)][1]))
            continue
        seen[id(obj)] = obj, steps
        obj = _handle(obj)
        if isinstance(obj, State):
            yield label, steps, obj
        elif empty is not None and isinstance(obj, list | dict) and not obj:
            empty.append(steps)
        elif _is_open(obj, through_globals):
            for name, more, child in _children(obj, through_globals):
                if _is_open(child, through_globals):
                    queue.append(((*label, name) if name else label, (*steps, *more), child))


def _in_order(obj: Any) -> Iterator[State]:
    """The reachable states depth first, in the order of definition."""
    seen: dict[int, Any] = {}
    pending = [obj]
    while pending:
        obj = pending.pop()
        if id(obj) in seen:
            continue
        seen[id(obj)] = obj
        obj = _handle(obj)
        if isinstance(obj, State):
            yield obj
        elif _is_open(obj, False):
            pending.extend(reversed([child for _, _, child in _children(obj, False)]))


def _children(obj: Any, through_globals: bool) -> Iterator[tuple[str, tuple[Step, ...], Any]]:
    """The objects directly below one, each with its label and the steps to it."""
    if isinstance(obj, dict | types.MappingProxyType) or (isinstance(obj, Mapping) and is_carrier(obj)):
        for key, child in list(obj.items()):
            yield str(key), (("item", key),), child
    elif isinstance(obj, _SEQUENCES):
        for i, child in enumerate(obj):
            yield str(i), (("item", i),), child
    elif isinstance(obj, set | frozenset):
        for i, child in enumerate(obj):  # no step leads to a member; guards hold such states loosely
            yield str(i), (("item", i),), child
    elif isinstance(obj, types.FunctionType):
        yield from _function_children(obj, through_globals)
    elif isinstance(obj, types.MethodType):
        yield "", (("attr", "__self__"),), obj.__self__
        yield "", (("attr", "__func__"),), obj.__func__
    elif isinstance(obj, functools.partial):
        yield "", (("attr", "func"),), obj.func
        yield "args", (("attr", "args"),), obj.args
        yield "keywords", (("attr", "keywords"),), obj.keywords
    elif isinstance(obj, type):
        for name, child in vars(obj).items():
            if not isinstance(child, staticmethod | classmethod | property):
                yield name, (("attr", name),), child
    elif type(obj).__module__.startswith(_PACKAGE):  # a transformed function, but not its caches
        if hasattr(obj, "__wrapped__"):
            yield "", (("attr", "__wrapped__"),), getattr(obj, "__wrapped__")  # noqa: B009 - not of the class that is known
    elif _is_users(type(obj)) or dataclasses.is_dataclass(obj) or isinstance(obj, types.SimpleNamespace):
        for name, child in _attributes(obj):
            yield name, (("attr", name),), child
        yield from _class_children(obj, through_globals)


def _handle(obj: Any) -> Any:
    """The handle of a cell of another framework; anything else as it is."""
    if active.has_cells and not isinstance(obj, State | type) and (cells := cells_of(obj)) is not None:
        state = cells.named(obj)
        return obj if state is None else state
    return obj


def _is_users(obj: Any) -> bool:
    """Whether a class, function or module is of neither the standard library nor JAX."""
    module = obj.__name__ if isinstance(obj, types.ModuleType) else getattr(obj, "__module__", None)
    return (module or "").partition(".")[0] not in _LIBRARIES


def _is_open(obj: Any, through_globals: bool) -> bool:
    """Whether to look inside."""
    if isinstance(obj, type):
        return through_globals and _is_users(obj) and not obj.__module__.startswith(_PACKAGE)
    return not isinstance(obj, _OPAQUE)


def _class_children(obj: Any, through_globals: bool) -> Iterator[tuple[str, tuple[Step, ...], Any]]:
    """What an object has from its class: values as attributes of its own, and methods for their globals."""
    for cls in type(obj).__mro__:
        if cls is object or not _is_users(cls):
            continue
        for name, child in list(vars(cls).items()):
            if isinstance(child, types.FunctionType | functools.partial) or hasattr(child, "__wrapped__"):
                if through_globals and not isinstance(child, staticmethod | classmethod):
                    yield name, (("attr", "__class__"), ("attr", name)), child
            elif isinstance(child, State | list | dict | tuple):
                yield name, (("attr", name),), child


def _function_children(fun: types.FunctionType, through_globals: bool) -> Iterator[tuple[str, tuple[Step, ...], Any]]:
    for i, (name, cell) in enumerate(zip(fun.__code__.co_freevars, fun.__closure__ or (), strict=True)):
        try:
            child = cell.cell_contents
        except ValueError:  # the variable is not bound yet
            continue
        yield name, (("attr", "__closure__"), ("item", i), ("attr", "cell_contents")), child
    for i, child in enumerate(fun.__defaults__ or ()):
        yield str(i), (("attr", "__defaults__"), ("item", i)), child
    for name, child in (fun.__kwdefaults__ or {}).items():
        yield name, (("attr", "__kwdefaults__"), ("item", name)), child
    if through_globals:
        looked_up, used = names_of(fun.__code__)
        for name in looked_up:
            child = fun.__globals__.get(name)
            if isinstance(child, types.FunctionType) and not _is_users(child):
                continue
            here = (("attr", "__globals__"), ("item", name))
            yield name, here, child
            if isinstance(child, types.ModuleType) and _is_users(child):
                for inner in used:
                    if inner in vars(child):
                        yield f"{name}.{inner}", (*here, ("attr", inner)), vars(child)[inner]


def global_objects(fun: Any) -> list[Any]:
    """The objects that a function finds by the names that it looks up in its module."""
    while not isinstance(fun, types.FunctionType):
        inner = getattr(fun, "__wrapped__", None) or getattr(fun, "func", None) or getattr(fun, "__func__", None)
        if inner is None:
            return []
        fun = inner
    found = [fun.__globals__[name] for name in names_of(fun.__code__)[0] if name in fun.__globals__]
    return [obj for obj in found if not isinstance(obj, types.ModuleType | types.FunctionType | type)]


@functools.lru_cache(maxsize=4096)
def names_of(code: types.CodeType) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names that a function and the functions within it look up in their module, and all that they use.

    Reads the bytecode as :mod:`dis` does, which takes twenty times as long.
    """
    looked_up, used, extended, raw = dict[str, None](), dict.fromkeys(code.co_names), 0, code.co_code
    for op, arg in zip(raw[::2], raw[1::2], strict=True):
        arg |= extended
        extended = arg << 8 if op == dis.EXTENDED_ARG else 0
        if op == _LOAD_GLOBAL:
            looked_up[code.co_names[arg >> 1]] = None
        elif op == _LOAD_NAME:
            looked_up[code.co_names[arg]] = None
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            inner_looked_up, inner_used = names_of(const)
            looked_up.update(dict.fromkeys(inner_looked_up))
            used.update(dict.fromkeys(inner_used))
    return tuple(looked_up), tuple(used)


def _attributes(obj: Any) -> Iterator[tuple[str, Any]]:
    """The instance attributes of an object, from its `__dict__` and its slots; handles for those that are cells."""
    cells = {name: state for name, found in attributes_of(type(obj)).items() if (state := found.known(obj)) is not None}
    for name, child in list(getattr(obj, "__dict__", {}).items()):
        yield name, cells.pop(name, child)
    yield from cells.items()
    for cls in type(obj).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and name not in cells and hasattr(obj, name):
                yield name, getattr(obj, name)
