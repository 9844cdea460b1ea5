"""One visitor per class of objects: it reaches the children, and returns the condition.

All of a container counts once it is reached; of a function, what it closes over, its defaults and the global names
that it looks up; of an instance of the user's classes, what is looked up later.
"""

from __future__ import annotations

import builtins
import collections
import contextvars
import dataclasses
import functools
import io
import logging
import sys
import threading
import types
import weakref
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import jax
import numpy as np

from ..._objects.library import HOLDERS, is_of_library, is_ours, is_users_class, is_users_function, is_users_module
from ..._objects.names import Names, names_of
from ..._objects.plain import MISSING, NOT_SET, Content, is_plain, reference
from ..._state import adapters
from ..._state.frame import peek
from ..._state.state import State
from .edges import Edge

Recorder: TypeAlias = Any  # the one of `recorder`, which imports this module

_SEQUENCES = (list, tuple, collections.deque)
_MAPPINGS = (dict, collections.OrderedDict, collections.defaultdict, types.MappingProxyType, collections.Counter)
_SETS = (set, frozenset)
#: Classes of which one instance is as good as another.
BY_CLASS = (
    logging.Filterer, type(threading.Lock()), type(threading.RLock()), threading.Event, threading.Condition,
    threading.Semaphore, threading.Thread, io.IOBase, types.GeneratorType, weakref.ref,
    weakref.WeakSet, weakref.WeakKeyDictionary,
)  # fmt: skip
_MANY = 32  # plain values in a container: from here on compared at once

Visit = Callable[[Any, int, Any], tuple[str, Any]]


def _state(recorder: Recorder, register: int, value: State) -> tuple[str, Any]:
    recorder.takes_pytrees(peek(value))
    if is_users_class(type(value)):
        recorder.listen_to(register, value)
    return "state", (weakref.ref(type(value)), value._static)


def _array(recorder: Recorder, register: int, value: Any) -> tuple[str, Any]:
    return _other(recorder, register, value) if value.dtype.hasobject else ("array", Content(value))


def _values(mapping: Any) -> tuple[Any, ...]:
    return tuple(mapping.values())


def _in_order(members: Any) -> tuple[Any, ...]:
    """What a set holds: states in the order in which they were made, as the order of a set is by address."""
    states = sorted((x for x in members if isinstance(x, State)), key=lambda state: state._token.serial)
    return (*[x for x in members if not isinstance(x, State)], *states)


def _of_parts(*names: str) -> Visit:
    """Visits what is made of parts, and no more."""

    def visit(recorder: Recorder, register: int, value: Any) -> tuple[str, Any]:
        for name in names:
            recorder.reach(register, "attr", name, getattr(value, name))
        if issubclass(type(value), functools.partial) and value.__dict__:
            recorder.classes.take_named(register, value)
        return "type", weakref.ref(type(value))

    return visit


def _context_variable(recorder: Recorder, register: int, value: Any) -> tuple[str, Any]:
    recorder.reach(register, "reader", _value_of, _value_of(value))
    return "is", reference(value)


def _value_of(variable: contextvars.ContextVar[Any]) -> Any:
    return variable.get(NOT_SET)


def _members(recorder: Recorder, register: int, value: Any) -> None:
    """All that a container yields, and the values of a mapping, in one step each."""
    kind: Any = type(value)  # `isinstance` looks up `__class__`, also on objects that are being listened to
    of = _in_order if issubclass(kind, _SETS) else tuple
    recorder.reach(register, "members", of, of(value))
    if issubclass(kind, Mapping):
        recorder.reach(register, "members", _values, _values(value))


def _weak_mapping(recorder: Recorder, register: int, value: Any) -> tuple[str, Any]:
    _members(recorder, register, value)
    return "type", weakref.ref(type(value))


def _by_class(recorder: Recorder, register: int, value: Any) -> tuple[str, Any]:
    del recorder, register
    return "type", weakref.ref(type(value))


def _class(recorder: Recorder, register: int, value: Any) -> tuple[str, Any]:
    adapters.meet(value)
    recorder.classes.take(register, value, is_open=True, makes=True)
    return "is", weakref.ref(value)


def _users_module(recorder: Recorder, register: int, value: Any) -> tuple[str, Any]:
    if not is_users_module(value):
        return _other(recorder, register, value)
    if value is not sys.modules.get("__main__"):
        recorder.classes.take_named(register, value)
    return "is", weakref.ref(value)


def _other(recorder: Recorder, register: int, value: Any) -> tuple[str, Any]:
    wrapped = None if isinstance(value, (jax.Array, np.ndarray)) else getattr(value, "__wrapped__", None)
    if isinstance(wrapped, types.FunctionType | functools.partial | types.MethodType) or is_users_class(type(wrapped)):
        # `functools.lru_cache`, `jax.jit` and the like
        recorder.reach(register, "attr", "__wrapped__", wrapped)
    if isinstance(value, jax.custom_vjp | jax.custom_jvp):
        for name in ("fwd", "bwd", "jvp"):
            if isinstance(getattr(value, name, None), types.FunctionType):
                recorder.reach(register, "attr", name, getattr(value, name))
    return "is", reference(value)


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
        _members(recorder, register, value)
        return "sequence", (type(value), len(value))
    if len(keys) >= _MANY and all(map(is_plain, value.values())):
        return "plains", (type(value), tuple(value.items()))
    for key in keys:
        recorder.reach(register, "item", key, value[key])
    return "mapping", (type(value), keys)


def _set(recorder: Recorder, register: int, value: Any) -> tuple[str, Any]:
    if all(map(is_plain, value)):
        return "plains", (type(value), tuple(value))
    _members(recorder, register, value)
    return "sequence", (type(value), len(value))


def _function(recorder: Recorder, register: int, fun: types.FunctionType) -> tuple[str, Any]:
    adapters.meet(fun)
    for i, cell in enumerate(fun.__closure__ or ()):
        try:
            child = cell.cell_contents
        except ValueError:  # the variable is not bound yet
            recorder.edges.append(Edge(register, "cell", (i, fun.__code__.co_freevars[i]), "unset", None, -1))
            continue
        recorder.reach(register, "cell", (i, fun.__code__.co_freevars[i]), child)
    for name in ("__defaults__", "__kwdefaults__"):
        if getattr(fun, name):
            recorder.reach(register, "attr", name, getattr(fun, name))
    if fun.__dict__:
        recorder.classes.take_named(register, fun)
    if is_users_function(fun):
        recorder.when_it_runs(fun.__code__, _names, recorder, register, fun, fun.__code__)
    return "code", weakref.ref(fun.__code__)


def _names(recorder: Recorder, register: int, fun: types.FunctionType, code: types.CodeType) -> None:
    """What a function that runs looks up in its module, and the names that it may look up elsewhere."""
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            recorder.when_it_runs(const, _names, recorder, register, fun, const)
    names = names_of(code, deep=False)
    recorder.classes.add_names((*names.used, *code.co_freevars))
    _imports(recorder, register, fun, names)
    if {"getattr", "vars"} & {*names.looked_up} or "__dict__" in names.used:
        recorder.classes.add_values()
    for name in [name for name in names.looked_up if recorder.is_new(register, f"global {name}")]:
        if name in fun.__globals__:
            _global(recorder, register, "global", name, fun.__globals__[name], names)
        elif not hasattr(builtins, name):
            recorder.edges.append(Edge(register, "global", name, "unset", None, -1))


def _imports(recorder: Recorder, register: int, fun: types.FunctionType, names: Names) -> None:
    """The modules that a function imports."""
    package = f"{fun.__globals__.get('__package__') or ''}."
    packages = [name.partition(".")[0] for name in names.imported]  # `import a.b` gives `a`
    for name in dict.fromkeys([*names.imported, *packages]):
        for full in (name, package + name):
            module = sys.modules.get(full)
            if type(module) is not types.ModuleType or not is_users_module(module) or full == "__main__":
                continue
            known = recorder.place_of(register, "reader", _reader_of_module(full), module)
            _module(recorder, known, name, module, names)


@functools.cache
def _reader_of_module(name: str) -> Callable[..., Any]:
    return functools.partial(sys.modules.get, name)


def _global(recorder: Recorder, register: int, how: str, name: str, value: Any, names: Names) -> None:
    """A global name, or an attribute of a module that one leads to."""
    if isinstance(value, types.ModuleType | types.FunctionType | type):
        adapters.meet(value)
    if isinstance(value, types.ModuleType):
        if not is_users_module(value):
            recorder.edges.append(Edge(register, how, name, "is", reference(value), -1))
        elif value is not sys.modules.get("__main__"):
            known = recorder.register_of(value)
            if known is not None:
                recorder.edges.append(Edge(register, how, name, "same", known, -1))
            _module(recorder, recorder.place_of(register, how, name, value), name, value, names)
        return
    is_function = isinstance(value, types.FunctionType) and not is_users_function(value) and is_of_library(value)
    if is_function or (isinstance(value, type) and not is_users_class(value)):  # of a library: not looked into
        recorder.edges.append(Edge(register, how, name, "is", reference(value), -1))
    else:
        recorder.reach(register, how, name, value)


def _module(recorder: Recorder, register: int, name: str, module: types.ModuleType, names: Names) -> None:
    """A module that code has under a name."""
    if name in names.values:  # other functions may get it
        recorder.classes.take_named(register, module)
    visit_module(recorder, register, module, names)


def visit_module(recorder: Recorder, register: int, module: types.ModuleType, names: Names) -> None:
    """The attributes of a module that the code which runs has a name for."""
    if not recorder.is_new(register, names):
        return
    for name in [name for name in names.used if name in vars(module)]:
        value = vars(module)[name]
        if recorder.is_new(register, name):
            _global(recorder, register, "attr", name, value, names)
        elif isinstance(value, types.ModuleType) and (known := recorder.register_of(value)) is not None:
            _module(recorder, known, name, value, names)


def _transformed(recorder: Recorder, register: int, value: Any) -> tuple[str, Any]:
    """A function under a transform of this package: its options, and the function."""
    wrapped = getattr(value, "__wrapped__", MISSING)
    if wrapped is MISSING and dataclasses.is_dataclass(value):  # options
        return _of_parts(*(field.name for field in dataclasses.fields(value)))(recorder, register, value)
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
    if issubclass(kind, (*_SEQUENCES, dict, *_SETS)):
        _members(recorder, register, value)
    return "object", weakref.ref(kind)


def visit_of(kind: type) -> Visit:
    """How the recorder looks into the instances of a class, past what is special of cells of other frameworks."""
    for kinds, visit in _EXACT:
        if kind in kinds:
            return visit
    for base, visit in _BASES:
        if issubclass(kind, base):
            return visit
    if is_ours(kind):
        return _transformed
    if is_users_class(kind) or issubclass(kind, HOLDERS):
        return _object
    return _by_class if issubclass(kind, BY_CLASS) else _other


_EXACT: tuple[tuple[Any, Any], ...] = (
    (_SEQUENCES, _sequence),
    (_MAPPINGS, _mapping),
    (_SETS, _set),
    ((types.MethodType,), _of_parts("__func__", "__self__")),
    ((contextvars.ContextVar,), _context_variable),
    ((types.BuiltinFunctionType, types.MethodWrapperType), _of_parts("__self__", "__name__")),
)
_BASES: tuple[tuple[type, Any], ...] = (
    (State, _state),
    (np.ndarray, _array),
    (types.FunctionType, _function),
    (functools.partial, _of_parts("func", "args", "keywords")),
    (threading.local, _by_class),
    (weakref.WeakValueDictionary, _weak_mapping),
    (type, _class),
    (types.ModuleType, _users_module),
)
