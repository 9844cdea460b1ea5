"""How the recorder looks into objects, by their class: the condition on one, after its children were reached.

All of a container counts once it is reached; of a function, what it closes over, its defaults and the global names
that it looks up; of an instance of the user's classes, what is looked up later.
"""

from __future__ import annotations

import array
import builtins
import collections
import contextvars
import dataclasses
import functools
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from .ambient import Imported, imported, imports_of, is_set, of_thread, value_of
from .cells import Cells
from .edges import Edge
from .find import names_of
from .library import is_of_library, is_open_class, is_ours, is_users_class, is_users_function, is_users_module
from .plain import MISSING, is_plain, reference
from .state import State

if TYPE_CHECKING:
    from .recorder import Recorder

_SEQUENCES = (list, tuple, collections.deque)
_MAPPINGS = (dict, collections.OrderedDict, collections.defaultdict, types.MappingProxyType, collections.Counter)
_SETS = (set, frozenset)
#: Classes of the standard library whose instances hold what the user put there.
_HOLDERS = (types.SimpleNamespace, collections.UserDict, collections.UserList, collections.ChainMap)
#: Modules of the standard library all of whose classes do.
_HOLDING = frozenset({"argparse", "configparser", "optparse", "queue"})
_VIEWS = tuple(
    type(view)
    for mapping in ({}, collections.OrderedDict[Any, Any](), collections.UserDict[Any, Any]())
    for view in (mapping.keys(), mapping.values(), mapping.items())
)
_BUFFERS = (bytearray, memoryview, array.array)
_WEAK = (weakref.WeakKeyDictionary, weakref.WeakValueDictionary, weakref.WeakSet)
_SMALL = 4096  # bytes: NumPy arrays up to this size are compared by content
_MANY = 32  # plain values in a container: from here on compared at once

Visit = Callable[[Any, int, Any], tuple[str, Any]]


def _state(recorder: Recorder, register: int, value: State) -> tuple[str, Any]:
    if is_users_class(type(value)):
        recorder.listen_to(register, value)
    return "state", (weakref.ref(type(value)), value._static)


def _array(recorder: Recorder, register: int, value: Any) -> tuple[str, Any]:
    del register
    if value.nbytes <= _SMALL and not value.dtype.hasobject:
        return "array", (value.dtype, value.shape, value.tobytes())
    return "is", reference(value)


def _array_of_a_kind(recorder: Recorder, register: int, value: Any) -> tuple[str, Any]:
    if value.dtype.hasobject:
        return _other(recorder, register, value)
    recorder.reach(register, "reader", np.asarray, np.asarray(value))
    return "type", weakref.ref(type(value))


def _buffer(recorder: Recorder, register: int, value: Any) -> tuple[str, Any]:
    if memoryview(value).nbytes > _SMALL:
        return _other(recorder, register, value)
    recorder.reach(register, "reader", bytes, bytes(value))
    recorder.reach(register, "reader", _form, _form(value))
    return "type", weakref.ref(type(value))


def _form(buffer: Any) -> tuple[Any, ...]:
    """How the bytes of a buffer are read."""
    view = memoryview(buffer)
    return view.format, view.shape, view.strides


def _of_parts(recorder: Recorder, register: int, value: Any, *names: str) -> tuple[str, Any]:
    for name in names:
        recorder.reach(register, "attr", name, getattr(value, name))
    return "type", weakref.ref(type(value))


def _bound_method(recorder: Recorder, register: int, value: Any) -> tuple[str, Any]:
    return _of_parts(recorder, register, value, "__func__", "__self__")


def _builtin_method(recorder: Recorder, register: int, value: Any) -> tuple[str, Any]:
    return _of_parts(recorder, register, value, "__self__", "__name__")


def _partial(recorder: Recorder, register: int, value: Any) -> tuple[str, Any]:
    if value.__dict__:
        recorder.classes.take_named(register, value)
    return _of_parts(recorder, register, value, "func", "args", "keywords")


def _slice(recorder: Recorder, register: int, value: Any) -> tuple[str, Any]:
    return _of_parts(recorder, register, value, "start", "stop", "step")


def _weak_container(recorder: Recorder, register: int, value: Any) -> tuple[str, Any]:
    return _of_parts(recorder, register, value, "data")


def _weak_reference(recorder: Recorder, register: int, value: Any) -> tuple[str, Any]:
    recorder.reach(register, "call", None, value())
    return "type", weakref.ref(type(value))


def _context_variable(recorder: Recorder, register: int, value: Any) -> tuple[str, Any]:
    recorder.reach(register, "reader", is_set, is_set(value))
    recorder.reach(register, "reader", value_of, value_of(value))
    return "is", reference(value)


def _thread_local(recorder: Recorder, register: int, value: Any) -> tuple[str, Any]:
    recorder.reach(register, "reader", of_thread, of_thread(value))
    return _object(recorder, register, value)


def _class(recorder: Recorder, register: int, value: Any) -> tuple[str, Any]:
    recorder.classes.take(register, value, makes=True)
    if vars(value).get("_is_protocol"):  # `isinstance` looks past the hooks
        recorder.looks_up_everywhere(getattr(value, "__protocol_attrs__", ()))
    return "is", weakref.ref(value)


def _users_module(recorder: Recorder, register: int, value: Any) -> tuple[str, Any]:
    if not is_users_module(value):
        return _other(recorder, register, value)
    if value is not sys.modules.get("__main__"):
        recorder.classes.take_named(register, value)
    return "is", weakref.ref(value)


def _other(recorder: Recorder, register: int, value: Any) -> tuple[str, Any]:
    wrapped = None if isinstance(value, (jax.Array, np.ndarray)) else getattr(value, "__wrapped__", None)
    if isinstance(wrapped, types.FunctionType):  # `functools.lru_cache` and the like
        recorder.reach(register, "attr", "__wrapped__", wrapped)
    if isinstance(value, jax.custom_vjp | jax.custom_jvp):
        for name in ("fwd", "bwd", "jvp"):
            if isinstance(getattr(value, name, None), types.FunctionType):
                recorder.reach(register, "attr", name, getattr(value, name))
    return "is", reference(value)


def visit_cell(recorder: Recorder, register: int, value: Any, cells: Cells) -> tuple[str, Any]:
    """A cell of another framework: its handle, and what else the trace looks up of it."""
    state = cells.state_of(value)
    recorder.unseen[register] = cells.unseen
    recorder.cells.add(register)
    if state is not None:
        recorder.reach(register, "reader", cells, state)
        recorder.is_new(register, cells.name)
        state._name = state._name or _path(recorder, register)
    if is_open_class(type(value)):
        return _object(recorder, register, value)
    return "type", weakref.ref(type(value))


def _path(recorder: Recorder, register: int) -> str | None:
    """The way to an object that is being visited, from its root: `linear.kernel`."""
    above = {edge.register: edge for edge in recorder.edges if edge.register >= 0}
    steps: list[str] = []
    while register in above and above[register].parent >= 0:
        edge = above[register]
        shown = {"attr": edge.key, "dict": edge.key, "item": edge.key, "global": edge.key}.get(edge.how)
        if edge.how == "cell":
            shown = edge.key[1]
        if shown is not None and not str(shown).startswith("__"):
            steps.append(str(shown))
        register = edge.parent
    return ".".join(reversed(steps)) or None


def _sequence(recorder: Recorder, register: int, value: Any) -> tuple[str, Any]:
    if len(value) >= _MANY and all(map(is_plain, value)):
        return "plains", (type(value), tuple(value))
    for i, child in enumerate(value):
        recorder.reach(register, "item", i, child)
    if isinstance(value, collections.deque):
        recorder.reach(register, "attr", "maxlen", value.maxlen)
    return "sequence", (type(value), len(value))


def _mapping(recorder: Recorder, register: int, value: Any) -> tuple[str, Any]:
    keys = list(value)
    if isinstance(value, collections.defaultdict):
        recorder.reach(register, "attr", "default_factory", value.default_factory)
    if not all(map(is_plain, keys)):
        for i, (key, child) in enumerate(value.items()):
            recorder.reach(register, "nth", i, key)
            recorder.reach(register, "nthvalue", i, child)
        return "sequence", (type(value), len(value))
    if len(keys) >= _MANY and all(map(is_plain, value.values())):
        return "plains", (type(value), tuple(value.items()))
    for key in keys:
        recorder.reach(register, "item", key, value[key])
    return "mapping", (type(value), keys)


def _set(recorder: Recorder, register: int, value: Any) -> tuple[str, Any]:
    """A set, or a view of a dict: what it yields counts, in this order."""
    if all(map(is_plain, value)):
        return "plains", (type(value), tuple(value))
    for i, child in enumerate(value):
        recorder.reach(register, "nth", i, child)
    return "sequence", (type(value), len(value))


def _function(recorder: Recorder, register: int, fun: types.FunctionType) -> tuple[str, Any]:
    is_users = is_users_function(fun)
    looked_up, used = names_of(fun.__code__) if is_users else ((), ())
    recorder.classes.add_names(used)  # before what is below, where they are looked up
    for i, cell in enumerate(fun.__closure__ or ()):
        try:
            child = cell.cell_contents
        except ValueError:  # the variable is not bound yet
            recorder.edges.append(Edge(register, "cell", (i, fun.__code__.co_freevars[i]), "unset", None, -1))
            continue
        recorder.reach(register, "cell", (i, fun.__code__.co_freevars[i]), child, outside=True)
    for name in ("__defaults__", "__kwdefaults__"):
        if getattr(fun, name):
            recorder.reach(register, "attr", name, getattr(fun, name), outside=True)
    if fun.__dict__:
        recorder.classes.take_named(register, fun)
    if is_users:
        if {"getattr", "vars"} & {*looked_up} or "__dict__" in used:
            recorder.classes.add_values()
        if imports_of(fun.__code__):
            recorder.importers.append(register)
            take_imports(recorder, register, fun)
        for name in looked_up:
            if name in fun.__globals__:
                _global(recorder, register, "global", name, fun.__globals__[name], used)
            elif not hasattr(builtins, name):
                recorder.edges.append(Edge(register, "global", name, "unset", None, -1))
    return "code", weakref.ref(fun.__code__)


def take_imports(recorder: Recorder, register: int, fun: types.FunctionType) -> None:
    """The modules that a function imports, as far as these are there."""
    _, used = names_of(fun.__code__)
    for name, module in imported(imports_of(fun.__code__), fun.__globals__):
        if not is_users_module(module) or module is sys.modules.get("__main__"):
            continue
        known = recorder.register_of(module)
        if known is None:
            known = recorder.add(module, outside=True)
            recorder.edges.append(Edge(register, "reader", Imported(name), "is", weakref.ref(module), known))
        visit_module(recorder, known, module, used)


def _global(recorder: Recorder, register: int, how: str, name: str, value: Any, used: Sequence[str]) -> None:
    """A global name, or an attribute of a module that one leads to."""
    if isinstance(value, types.ModuleType):
        if is_users_module(value) and value is not sys.modules.get("__main__"):
            known = recorder.register_of(value)
            if known is None:
                known = recorder.add(value, outside=True)
                recorder.edges.append(Edge(register, how, name, "is", weakref.ref(value), known))
            visit_module(recorder, known, value, used)
        return
    if isinstance(value, types.FunctionType) and not is_users_function(value) and is_of_library(value):
        return
    if isinstance(value, types.BuiltinFunctionType) or (isinstance(value, type) and not is_users_class(value)):
        return
    recorder.reach(register, how, name, value, outside=True)


def visit_module(recorder: Recorder, register: int, module: types.ModuleType, used: Iterable[str]) -> None:
    """The attributes of a module that the code which runs has a name for."""
    for name in [name for name in used if name in vars(module) and recorder.is_new(register, name)]:
        _global(recorder, register, "attr", name, vars(module)[name], tuple(used))


def _transformed(recorder: Recorder, register: int, value: Any) -> tuple[str, Any]:
    """A function under a transform of this package: its options, and the function."""
    wrapped = getattr(value, "__wrapped__", MISSING)
    if wrapped is MISSING and dataclasses.is_dataclass(value):  # options
        return _of_parts(recorder, register, value, *(field.name for field in dataclasses.fields(value)))
    if wrapped is MISSING:
        return "is", reference(value)
    for name in ("_options", "_rules"):  # of a function with a derivative rule
        part = vars(value).get(name) if hasattr(value, "__dict__") else None
        if part:
            recorder.reach(register, "attr", name, part)
    recorder.reach(register, "attr", "__wrapped__", wrapped)
    return "type", weakref.ref(type(value))


def _object(recorder: Recorder, register: int, value: Any) -> tuple[str, Any]:
    recorder.listen_to(register, value)
    kind: Any = type(value)
    if issubclass(kind, (tuple, list)):
        for i, child in enumerate(value):
            recorder.reach(register, "item" if issubclass(kind, tuple) else "nth", i, child)
    elif issubclass(kind, dict):
        for i, (key, child) in enumerate(dict.items(value)):
            recorder.reach(register, "nth", i, key)
            recorder.reach(register, "nthvalue", i, child)
    elif issubclass(kind, (set, frozenset)):
        for i, child in enumerate(value):
            recorder.reach(register, "nth", i, child)
    else:
        return "object", (weakref.ref(kind), -1)
    return "object", (weakref.ref(kind), len(value))


def visit_of(kind: type) -> Visit:
    """How the recorder looks into the instances of a class."""
    for kinds, visit in _EXACT:
        if kind in kinds:
            return visit
    for base, visit in _BASES:
        if issubclass(kind, base):
            return visit
    if is_ours(kind):
        return _transformed
    return _object if is_open_class(kind) or issubclass(kind, _HOLDERS) or kind.__module__ in _HOLDING else _other


_EXACT: tuple[tuple[Any, Any], ...] = (
    ((np.ndarray,), _array),
    (_SEQUENCES, _sequence),
    (_MAPPINGS, _mapping),
    ((*_SETS, *_VIEWS), _set),
    (_BUFFERS, _buffer),
    ((types.MethodType,), _bound_method),
    ((contextvars.ContextVar,), _context_variable),
    (_WEAK, _weak_container),
    ((slice,), _slice),
    ((types.BuiltinFunctionType, types.MethodWrapperType), _builtin_method),
)
_BASES: tuple[tuple[type, Any], ...] = (
    (State, _state),
    (np.ndarray, _array_of_a_kind),
    (types.FunctionType, _function),
    (functools.partial, _partial),
    (threading.local, _thread_local),
    (type, _class),
    (weakref.ref, _weak_reference),
    (types.ModuleType, _users_module),
)
