"""Walking object graphs: which states are reachable from an object, and by which path.

Two users: `states`, which names each state by its path, and the record of a trace, which asks which names a function
looks up.
"""

from __future__ import annotations

import dataclasses
import dis
import functools
import numbers
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from .._objects.library import is_ours, is_users_class, is_users_function, is_users_module
from .._objects.lookup import contents, instance_attribute, instance_dict, slot_names, slots_of
from .._objects.plain import identity
from . import adapters
from .state import State

#: What selects states: a subclass of `State`, a predicate, a state, or a container of these.
Kind = Any

_OPAQUE = (
    str, bytes, bytearray, int, float, complex, bool, type(None), types.ModuleType,
    np.ndarray, np.generic, jax.Array, types.BuiltinFunctionType,
)  # fmt: skip
_SEQUENCES = (list, tuple, deque)
_CLOSED = (str, bytes, int, float, complex, bool, type(None), np.ndarray, State)  # their instances lead nowhere
_LOAD_GLOBAL, _LOAD_NAME, _STORE_GLOBAL, _STORE_DEREF = (
    dis.opmap[name] for name in ("LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "STORE_DEREF")
)


def states(tree: Any, *kinds: Kind) -> dict[str, State]:
    """Finds every state in a module, container, dataclass or object graph.

    Follows dicts, lists, tuples, sets, the attributes of objects, partial objects, bound methods and
    the variables that functions close over. Cycles are allowed.

    Args:
      tree: where to look.
      *kinds: subclasses of `State`, or predicates; only states of one of them are returned.

    Returns:
      The states by path (``"layers.0.w"``), each once, by its shortest path.

    Raises:
      TypeError: `tree` is a class, or a value that cannot hold a state.

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
    for kind in jax.tree.leaves(kinds, is_leaf=lambda leaf: leaf is None or adapters.is_node(leaf)):
        kind = adapters.handle(kind)
        if isinstance(kind, State):
            members.add(kind)
        elif isinstance(kind, type) and (issubclass(kind, State) or adapters.is_cell_class(kind)):
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
        or any(predicate(state) for predicate in predicates)
    )


def walk(
    roots: Iterable[Any], *, through_globals: bool = False, limit: int | None = None
) -> Iterator[tuple[tuple[str, ...], State]]:
    """Yields each reachable state once, nearest first, with its label.

    Args:
      roots: where to start.
      through_globals: also follow the global names that functions use, classes and their methods.
      limit: give up behind so many objects.
    """
    queue: deque[tuple[tuple[str, ...], Any]] = deque(((), root) for root in roots)
    # By address, with the object, to keep temporary ones alive so that no address is used twice.
    seen: dict[int, Any] = {}
    while queue and (limit is None or len(seen) < limit):
        label, obj = queue.popleft()
        if id(obj) in seen:
            continue
        seen[id(obj)] = obj
        obj = adapters.handle(obj)
        if isinstance(obj, State):
            yield label, obj
        elif _is_open(obj, through_globals):
            for name, child in _children(obj, through_globals):
                if _is_open(child, through_globals):
                    queue.append(((*label, name) if name else label, child))


def _in_order(obj: Any) -> Iterator[State]:
    """The reachable states depth first, in the order of definition."""
    seen: dict[int, Any] = {}
    pending = [obj]
    while pending:
        obj = pending.pop()
        if id(obj) in seen:
            continue
        seen[id(obj)] = obj
        obj = adapters.handle(obj)
        if isinstance(obj, State):
            yield obj
        elif _is_open(obj, False):
            pending.extend(reversed([child for _, child in _children(obj, False)]))


def _children(obj: Any, through_globals: bool) -> Iterator[tuple[str, Any]]:
    """The objects directly below one, each with its label."""
    is_mapping = isinstance(obj, dict | types.MappingProxyType | weakref.WeakValueDictionary)
    if is_mapping or (isinstance(obj, Mapping) and adapters.is_carrier(obj)):
        for key, child in list(obj.items()):
            yield str(key), child
    elif isinstance(obj, (*_SEQUENCES, set, frozenset)):
        for i, child in enumerate(obj):
            yield str(i), child
    elif isinstance(obj, types.FunctionType):
        yield from _function_children(obj, through_globals)
    elif isinstance(obj, types.MethodType):
        yield "", obj.__self__
        yield "", obj.__func__
    elif isinstance(obj, functools.partial):
        yield "", obj.func
        yield "args", obj.args
        yield "keywords", obj.keywords
    elif isinstance(obj, type):
        for name, child in vars(obj).items():
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
                yield name, child


def _function_children(fun: types.FunctionType, through_globals: bool) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(fun.__code__.co_freevars, fun.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # the variable is not bound yet
            continue
    for i, child in enumerate(fun.__defaults__ or ()):
        yield str(i), child
    yield from (fun.__kwdefaults__ or {}).items()
    if through_globals and is_users_function(fun):
        yield from _globals(fun)


def _globals(fun: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """What a function finds by the names that it looks up in its module, and in modules that these lead to."""
    looked_up, used, _ = names_of(fun.__code__)
    for name in looked_up:
        child = fun.__globals__.get(name)
        yield name, child
        if isinstance(child, types.ModuleType) and is_users_module(child):
            yield from ((f"{name}.{inner}", vars(child)[inner]) for inner in used if inner in vars(child))


def global_objects(fun: Any) -> list[Any]:
    """The objects that a function finds by the names that it looks up in its module."""
    while not isinstance(fun, types.FunctionType):
        inner = getattr(fun, "__wrapped__", None) or getattr(fun, "func", None) or getattr(fun, "__func__", None)
        if inner is None:
            return []
        fun = inner
    found = [fun.__globals__[name] for name in names_of(fun.__code__)[0] if name in fun.__globals__]
    return [obj for obj in found if not isinstance(obj, types.ModuleType | types.FunctionType | type)]


#: Code whose global names were looked at.
_looked_at: weakref.WeakSet[types.CodeType] = weakref.WeakSet()
_met: weakref.WeakSet[types.CodeType] = weakref.WeakSet()


def meet_all(fun: Any) -> None:
    """Meets the frameworks of what a function can reach; for one that runs directly, without a recorder.

    Its global names, and those of the user's functions that it reaches, are looked at once; what it closes over and
    what objects hold, at its first call, and at each call while a framework is imported whose cells were not met.
    """
    code = _code_of(fun)
    if code in _met and not adapters.is_one_imported():
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
            adapters.meet(obj)
            waiting += [contents(cell) for cell in obj.__closure__ or ()]
            waiting += [*(obj.__defaults__ or ()), *(obj.__kwdefaults__ or {}).values()]
            if obj.__code__ not in _looked_at and is_users_function(obj):
                _looked_at.add(obj.__code__)
                waiting += [child for _, child in _globals(obj)]
        elif kind is types.ModuleType or issubclass(kind, type):
            adapters.meet(obj)
        elif kind is types.MethodType:
            waiting += [obj.__self__, obj.__func__]
        elif issubclass(kind, functools.partial):
            waiting += [obj.func, *obj.args, *obj.keywords.values()]
        elif issubclass(kind, dict):
            waiting += dict.values(obj)
        elif issubclass(kind, (*_SEQUENCES, set, frozenset)):
            waiting += obj
        elif adapters.cell_of(kind) is not None or issubclass(kind, State):
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


@functools.lru_cache(maxsize=4096)
def names_of(code: types.CodeType, deep: bool = True) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """The names that a function looks up in its module, all that it uses, and `global` or `nonlocal` ones that it sets.

    Those of the functions within it included, if `deep`.

    Reads the bytecode as :mod:`dis` does, which takes twenty times as long.
    """
    looked_up, stored, used = dict[str, None](), dict[str, None](), dict.fromkeys(code.co_names)
    own = [*code.co_varnames, *(name for name in code.co_cellvars if name not in code.co_varnames)]
    extended, raw = 0, code.co_code
    for op, arg in zip(raw[::2], raw[1::2], strict=True):
        arg |= extended
        extended = arg << 8 if op == dis.EXTENDED_ARG else 0
        if op == _LOAD_GLOBAL:
            looked_up[code.co_names[arg >> 1]] = None
        elif op == _LOAD_NAME:
            looked_up[code.co_names[arg]] = None
        elif op == _STORE_GLOBAL:
            stored[code.co_names[arg]] = None
        elif op == _STORE_DEREF and arg >= len(own):
            stored[code.co_freevars[arg - len(own)]] = None
    for const in code.co_consts:
        if deep and isinstance(const, types.CodeType):
            for found, inner in zip((looked_up, used, stored), names_of(const), strict=True):
                found.update(dict.fromkeys(inner))
    return tuple(looked_up), tuple(used), tuple(stored)


def _attributes(obj: Any) -> Iterator[tuple[str, Any]]:
    """The instance attributes of an object, from its `__dict__` and its slots; handles for those that are cells."""
    found = adapters.cells_in(type(obj))
    cells = {name: state for name, cell in found.items() if (state := cell.known(obj)) is not None}
    for name, child in list(getattr(obj, "__dict__", {}).items()):
        yield name, cells.pop(name, child)
    yield from cells.items()
    for cls in type(obj).__mro__:
        for name in slots_of(cls):
            if name not in cells and hasattr(obj, name):
                yield name, getattr(obj, name)
