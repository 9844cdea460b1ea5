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
import itertools
import logging
import sys
import threading
import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import numpy as np

from .._base.library import HOLDERS, is_framework_file, is_library_file, is_ours, is_users_class, is_users_module
from .._objects.lookup import DESCRIPTORS, PARTS
from .._objects.names import names_of
from .._objects.plain import MISSING, NOT_SET, Content, is_plain, reference
from .._states.adapters import KnownClass, known_of
from .._states.frame import peek
from .._states.installing import install_for
from .._states.state import State
from .conditions import UNSET, ArrayLike, Code, Condition, Elements, InstanceOf, Is, Keys, Plains, StateOf
from .edges import Edge
from .steps import Attr, Closed, Global, Item, Reader

Recorder: TypeAlias = Any  # the one of `recorder`, which imports this module

_SEQUENCES = (list, tuple, collections.deque)
_MAPPINGS = (dict, collections.OrderedDict, collections.defaultdict, types.MappingProxyType, collections.Counter)
_SETS = (set, frozenset)
#: Classes of which one instance is as good as another.
_BY_CLASS = (
    logging.Filterer, type(threading.Lock()), type(threading.RLock()), threading.Event, threading.Condition,
    threading.Semaphore, threading.Thread, io.IOBase, types.GeneratorType, weakref.ref,
    weakref.WeakSet, weakref.WeakKeyDictionary,
)  # fmt: skip
_MANY = 32  # plain values in a container: from here on compared at once

Visit = Callable[[Any, int, Any], Condition]


def _state(recorder: Recorder, register: int, value: State) -> Condition:
    recorder.takes_pytrees(peek(value))
    if is_users_class(type(value)):
        recorder.listen_to(register, value)
    return StateOf(weakref.ref(type(value)), value._static)


def _array(recorder: Recorder, register: int, value: Any) -> Condition:
    return _other(recorder, register, value) if value.dtype.hasobject else ArrayLike(Content(value))


def _values(mapping: Any) -> tuple[Any, ...]:
    return tuple(mapping.values())


def _in_order(members: Any) -> tuple[Any, ...]:
    """What a set holds: states in the order in which they were made, as the order of a set is by address."""
    states = sorted((x for x in members if isinstance(x, State)), key=lambda state: state._token.serial)
    return (*[x for x in members if not isinstance(x, State)], *states)


def _of_parts(*names: str) -> Visit:
    """Visits what is made of parts, and no more."""

    def visit(recorder: Recorder, register: int, value: Any) -> Condition:
        for name in names:
            # None counts, too; what is not there, no instance of the class has.
            if (part := getattr(value, name, MISSING)) is not MISSING:
                recorder.reach(register, Attr(name), part)
        if issubclass(type(value), functools.partial) and value.__dict__:
            recorder.classes.take_named(register, value)
        return InstanceOf(weakref.ref(type(value)), is_shared=False)

    return visit


def _context_variable(recorder: Recorder, register: int, value: Any) -> Condition:
    recorder.reach(register, Reader(_value_of), _value_of(value))
    return Is(reference(value))


def _value_of(variable: contextvars.ContextVar[Any]) -> Any:
    return variable.get(NOT_SET)


def _members(recorder: Recorder, register: int, value: Any) -> None:
    """All that a container yields, and the values of a mapping, in one step each."""
    kind: Any = type(value)  # `isinstance` looks up `__class__`, also on objects that are being listened to
    of = _in_order if issubclass(kind, _SETS) else tuple
    recorder.reach(register, Reader(of), of(value))
    if issubclass(kind, Mapping):
        recorder.reach(register, Reader(_values), _values(value))


def _weak_mapping(recorder: Recorder, register: int, value: Any) -> Condition:
    _members(recorder, register, value)
    return InstanceOf(weakref.ref(type(value)), is_shared=False)


def _by_class(recorder: Recorder, register: int, value: Any) -> Condition:
    return InstanceOf(weakref.ref(type(value)))


def _class(recorder: Recorder, register: int, value: Any) -> Condition:
    install_for(value)
    recorder.classes.take(register, value, is_open=True)
    return Is(weakref.ref(value))


def _module(recorder: Recorder, register: int, value: Any) -> Condition:
    install_for(value)
    if is_users_module(value):
        recorder.classes.take_named(register, value)
    return Is(weakref.ref(value))


def _other(recorder: Recorder, register: int, value: Any) -> Condition:
    wrapped = None if isinstance(value, (jax.Array, np.ndarray)) else getattr(value, "__wrapped__", None)
    if isinstance(wrapped, types.FunctionType | functools.partial | types.MethodType) or is_users_class(type(wrapped)):
        # `functools.lru_cache`, `jax.jit` and the like
        recorder.reach(register, Attr("__wrapped__"), wrapped)
        recorder.classes.take_named(register, value)
    if isinstance(value, jax.custom_vjp | jax.custom_jvp):
        for name in ("fwd", "bwd", "jvp"):
            if (rule := getattr(value, name, None)) is not None:  # without one there is no trace
                recorder.reach(register, Attr(name), rule)
    return Is(reference(value))


def _sequence(recorder: Recorder, register: int, value: Any) -> Condition:
    if len(value) >= _MANY and all(map(is_plain, value)):
        return Plains(type(value), tuple(value))
    for i, child in enumerate(value):
        recorder.reach(register, Item(i), child)
    if isinstance(value, collections.deque):
        recorder.reach(register, Attr("maxlen"), value.maxlen)
    return Elements(type(value), len(value))


def _mapping(recorder: Recorder, register: int, value: Any) -> Condition:
    keys = list(value)
    if isinstance(value, collections.defaultdict):
        recorder.reach(register, Attr("default_factory"), value.default_factory)
    if not all(map(is_plain, keys)):
        _members(recorder, register, value)
        return Elements(type(value), len(value))
    if len(keys) >= _MANY and all(map(is_plain, value.values())):
        return Plains(type(value), tuple(value.items()))
    for key in keys:
        recorder.reach(register, Item(key), value[key])
    return Keys(type(value), keys)


def _set(recorder: Recorder, register: int, value: Any) -> Condition:
    if all(map(is_plain, value)):
        return Plains(type(value), tuple(value))
    _members(recorder, register, value)
    return Elements(type(value), len(value))


def _function(recorder: Recorder, register: int, fun: types.FunctionType) -> Condition:
    for i, cell in enumerate(fun.__closure__ or ()):
        step = Closed(i, fun.__code__.co_freevars[i])
        try:
            child = cell.cell_contents
        except ValueError:  # the variable is not bound yet
            recorder.edges.append(Edge(register, step, UNSET))
            continue
        recorder.reach(register, step, child)
    for name in ("__defaults__", "__kwdefaults__"):
        if getattr(fun, name):
            recorder.reach(register, Attr(name), getattr(fun, name))
    if fun.__dict__:
        recorder.classes.take_named(register, fun)
    if is_framework_file(fun.__code__.co_filename):
        install_for(fun)
    elif not is_library_file(fun.__code__.co_filename):
        recorder.when_it_runs(fun.__code__, _names, recorder, register, fun, fun.__code__)
    return Code(weakref.ref(fun.__code__))


def _names(recorder: Recorder, register: int, fun: types.FunctionType, code: types.CodeType) -> None:
    """What a function that runs looks up in its module, and the names that it may look up elsewhere."""
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            recorder.when_it_runs(const, _names, recorder, register, fun, const)
    names = names_of(code, deep=False)
    recorder.classes.add_names((*names.used, *code.co_freevars))
    if {"getattr", "vars"} & {*names.looked_up} or "__dict__" in names.used:
        recorder.classes.add_values()
    if names.imported:
        _imports(recorder, register, fun.__globals__.get("__package__") or "", names.imported)
    for name in names.looked_up:
        if not recorder.is_new(register, f"global {name}"):
            continue
        if name in fun.__globals__:
            recorder.reach(register, Global(name), fun.__globals__[name])
        elif not hasattr(builtins, name):
            recorder.edges.append(Edge(register, Global(name), UNSET))


def _imports(recorder: Recorder, register: int, package: str, names: Sequence[str]) -> None:
    """The modules that a function imports by these names, from its package or one around it if they are relative."""
    packages = ("", *itertools.accumulate(f"{part}." for part in package.split(".")))
    names = (*names, *(name.partition(".")[0] for name in names))  # `import a.b` gives `a`
    for full in dict.fromkeys(f"{around}{name}".rstrip(".") for around in packages for name in names):
        module = sys.modules.get(full)
        if isinstance(module, types.ModuleType) and is_users_module(module):
            recorder.reach(register, Reader(_reader_of_module(full)), module)


@functools.cache
def _reader_of_module(name: str) -> Callable[..., Any]:
    return functools.partial(sys.modules.get, name)


def _transformed(recorder: Recorder, register: int, value: Any) -> Condition:
    """A function under a transform of this package: its options, the function, and what the user has set on it."""
    wrapped = getattr(value, "__wrapped__", MISSING)
    if wrapped is MISSING and dataclasses.is_dataclass(value):  # options
        return _of_parts(*(field.name for field in dataclasses.fields(value)))(recorder, register, value)
    if wrapped is MISSING:
        return Is(reference(value))
    recorder.classes.take_named(register, value)
    return _of_parts("_options", "_rules", "_is_method", "__wrapped__")(recorder, register, value)


def _object(recorder: Recorder, register: int, value: Any) -> Condition:
    recorder.listen_to(register, value)
    kind: Any = type(value)
    if issubclass(kind, (*_SEQUENCES, dict, *_SETS)):
        _members(recorder, register, value)
    return InstanceOf(weakref.ref(kind))


def visit_of(kind: type) -> Visit:
    """How the recorder looks into the instances of a class."""
    for kinds, visit in _EXACT:
        if kind in kinds:
            return visit
    own = _by_base(kind)
    known = None if issubclass(kind, State | type) or own is _transformed else known_of(kind)
    return functools.partial(_of_framework, known, own) if known and (known.is_node or known.cell is not None) else own


def _by_base(kind: type) -> Visit:
    """The same, past what is special of the cells of other frameworks and of the objects that hold them."""
    for base, visit in _BASES:
        if issubclass(kind, base):
            return visit
    if is_ours(kind):
        return _transformed
    if is_users_class(kind) or issubclass(kind, HOLDERS):
        return _object
    return _by_class if issubclass(kind, _BY_CLASS) else _other


def _of_framework(known: KnownClass, own: Visit, recorder: Recorder, register: int, obj: Any) -> Condition:
    """Visits a cell of another framework, or an object that holds some, which is visited as of its `own` class."""
    recorder.hidden[register] = known.hidden
    if (cell := known.cell) is None:
        return own(recorder, register, obj)
    recorder.cells.add(register)
    if (state := cell.state_of(obj)) is not None:
        recorder.reach(register, Reader(cell), state)
        recorder.is_new(register, cell.name)
        state._name = state._name or recorder.path_to(register)
    if is_users_class(type(obj)):
        return own(recorder, register, obj)
    return InstanceOf(weakref.ref(type(obj)), is_shared=False)


_EXACT: tuple[tuple[Any, Any], ...] = (
    (_SEQUENCES, _sequence),
    (_MAPPINGS, _mapping),
    (_SETS, _set),
    ((types.FunctionType,), _function),
    ((types.MethodType,), _of_parts("__func__", "__self__")),
    ((contextvars.ContextVar,), _context_variable),
    ((types.BuiltinFunctionType, types.MethodWrapperType), _of_parts("__self__", "__name__")),
)
_BASES: tuple[tuple[type, Any], ...] = (
    (State, _state),
    (np.ndarray, _array),
    (functools.partial, _of_parts("func", "args", "keywords")),
    (threading.local, _by_class),
    *((kind, _of_parts(*PARTS)) for kind in DESCRIPTORS),
    (weakref.WeakValueDictionary, _weak_mapping),
    (type, _class),
    (types.ModuleType, _module),
)
