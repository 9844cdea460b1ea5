"""Attributes as Python finds them, past hooks, properties and `__getattr__`."""

from __future__ import annotations

import functools
import types
from collections import deque
from typing import Any

from .hooks import own_method
from .plain import MISSING

CONTAINERS = (list, tuple, deque, set, frozenset, dict, types.MappingProxyType)
#: What functions in a class are wrapped in, and the attributes that lead to these.
DESCRIPTORS = (
    staticmethod, classmethod, property, functools.cached_property, functools.partialmethod,
    functools.singledispatchmethod,
)  # fmt: skip
PARTS = ("__func__", "fget", "fset", "fdel", "func", "args", "keywords", "dispatcher")
_BOUND = (types.MethodType, types.BuiltinFunctionType, types.MethodWrapperType)
_FUNCTIONS = (types.FunctionType, staticmethod, classmethod)
_PLAIN_TO_GET = (*_FUNCTIONS, types.MemberDescriptorType)  # which run no code of the user's


def names_of_attributes(obj: Any) -> tuple[str, ...]:
    """Which attributes an instance has."""
    return tuple(instance_dict(obj) or ())


def names_in_any_order(obj: Any) -> tuple[str, ...]:
    """The same of a framework's object, whose own transforms give attributes another order."""
    return tuple(sorted(names_of_attributes(obj)))


def instance_dict(obj: Any) -> dict[str, Any] | None:
    """The instance's own attributes; None when it has no `__dict__`."""
    try:
        found = object.__getattribute__(obj, "__dict__")
    except AttributeError:
        return None
    return found if isinstance(found, dict) else None


def instance_attribute(obj: Any, name: str) -> Any:
    """The value that the instance itself has, past properties and classes; MISSING when it has none.

    Where that can be helped, an object is not asked for its `__dict__`: from then on CPython sets its attributes 1.7
    times as slowly.
    """
    kind = type(obj)
    found = class_lookup(kind, name)
    if isinstance(found, _PLAIN_TO_GET) or not hasattr(type(found), "__get__"):
        try:
            value = object.__getattribute__(obj, name)
        except AttributeError:
            return MISSING
        same = found.__get__(obj, kind) if isinstance(found, _FUNCTIONS) else found
        return MISSING if value is same or (isinstance(found, _FUNCTIONS) and value == same) else value
    attributes = instance_dict(obj)
    return MISSING if attributes is None else attributes.get(name, MISSING)


def class_lookup(kind: type, name: str) -> Any:
    """What the class or one of its bases has under a name; MISSING when none has it."""
    for base in kind.__mro__:
        if name in base.__dict__:
            return base.__dict__[name]
    return MISSING


def inherited(kind: type, key: tuple[str, int]) -> Any:
    """What the first of a class's bases has under a name, from one of them on.

    Raises:
      AttributeError: none has it.
    """
    name, start = key
    for base in kind.__mro__[start:]:
        if name in base.__dict__:
            return base.__dict__[name]
    raise AttributeError(name)


@functools.lru_cache(maxsize=1024)
def slot_names(kind: type) -> tuple[str, ...]:
    """The slots of a class and its bases."""
    return tuple(
        name
        for base in kind.__mro__
        for name, found in list(vars(base).items())
        if isinstance(found, types.MemberDescriptorType) and not name.startswith("__")
    )


def own_getattribute(kind: type) -> bool:
    """Whether all look-ups run the user's code, which finds values in ways that are not seen."""
    for base in kind.__mro__:
        own = own_method(base, "__getattribute__")
        if own is not None:
            return own is not object.__getattribute__
    return False


def contents(cell: types.CellType) -> Any:
    """What a variable of a closure holds; MISSING while it is not bound."""
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


def parts(obj: Any) -> list[tuple[Any, Any]] | None:
    """What a container, function, method or partial object is made of, by key, index or name; None for any other."""
    kind: Any = type(obj)  # `isinstance` may look up `__class__`, also on objects that are being listened to
    if issubclass(kind, (dict, types.MappingProxyType)):
        return list(obj.items())
    if issubclass(kind, CONTAINERS):
        return list(enumerate(obj))
    if kind is types.FunctionType:
        code, defaults = obj.__code__, obj.__defaults__ or ()
        variables = zip(code.co_freevars, map(contents, obj.__closure__ or ()), strict=True)
        bound = [(name, value) for name, value in variables if value is not MISSING]
        parameters = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
        return [*bound, *zip(parameters, defaults, strict=True), *(obj.__kwdefaults__ or {}).items()]
    if kind in _BOUND:
        return [("", obj.__self__), ("", getattr(obj, "__func__", None))]
    if issubclass(kind, functools.partial):
        return [("", obj.func), ("args", obj.args), ("keywords", obj.keywords)]
    return None
