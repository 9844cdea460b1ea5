"""The names that code looks up, and what they mean in its module."""

from __future__ import annotations

import dis
import functools
import sys
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

from .library import is_users_module

_LOAD_GLOBAL, _LOAD_NAME, _LOAD_ATTR = (dis.opmap[name] for name in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_ATTR"))
_IMPORT_NAME, _IMPORT_FROM = dis.opmap["IMPORT_NAME"], dis.opmap["IMPORT_FROM"]
_CACHE = dis.opmap.get("CACHE", 0)  # room for what the interpreter remembers
_CALLED = dis.opmap.get("LOAD_METHOD")  # an attribute that is called, up to Python 3.11
#: By how much the number of a name is shifted, with flags below it.
_SHIFTS = {_LOAD_GLOBAL: 1, _LOAD_NAME: 0, _LOAD_ATTR: sys.version_info >= (3, 12), _IMPORT_NAME: 0, _IMPORT_FROM: 0}


class Names(NamedTuple):
    """The names in the code of a function.

    Attributes:
      looked_up: those that it looks up in its module.
      used: all of them, attributes too.
      values: those whose value it does more with than look up an attribute.
      imported: the modules that it imports, and what it imports from them.
    """

    looked_up: tuple[str, ...] = ()
    used: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    imported: tuple[str, ...] = ()


@functools.lru_cache(maxsize=4096)
def names_of(code: types.CodeType, deep: bool = True) -> Names:
    """The names in a function; those of the functions within it included, if `deep`.

    Reads the bytecode as :mod:`dis` does, which takes twenty times as long.
    """
    looked_up, used = dict[str, None](), dict.fromkeys(code.co_names)
    values, imported = dict[str, None](), dict[str, None]()
    extended, raw, last = 0, code.co_code, None
    for op, arg in zip(raw[::2], raw[1::2], strict=True):
        arg |= extended
        extended = arg << 8 if op == dis.EXTENDED_ARG else 0
        if op in (dis.EXTENDED_ARG, _CACHE):
            continue
        if last is not None and op not in (_LOAD_ATTR, _CALLED, _IMPORT_FROM):
            values[last] = None
        last = code.co_names[arg >> _SHIFTS[op]] if op in _SHIFTS else None
        if last is not None and op != _LOAD_ATTR:
            (imported if op in (_IMPORT_NAME, _IMPORT_FROM) else looked_up)[last] = None
    for const in code.co_consts:
        if deep and isinstance(const, types.CodeType):
            for found, inner in zip((looked_up, used, values, imported), names_of(const), strict=True):
                found.update(dict.fromkeys(inner))
    return Names(*map(tuple, (looked_up, used, values, imported)))


def globals_of(fun: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """What a function finds by the names that it looks up in its module, and in modules that these lead to."""
    names = names_of(fun.__code__)
    for name in names.looked_up:
        child = fun.__globals__.get(name)
        yield name, child
        if isinstance(child, types.ModuleType) and is_users_module(child):
            yield from ((f"{name}.{inner}", vars(child)[inner]) for inner in names.used if inner in vars(child))


def global_objects(fun: Any) -> list[Any]:
    """The objects that a function finds by the names that it looks up in its module."""
    while not isinstance(fun, types.FunctionType):
        inner = getattr(fun, "__wrapped__", None) or getattr(fun, "func", None) or getattr(fun, "__func__", None)
        if inner is None:
            return []
        fun = inner
    found = [fun.__globals__[name] for name in names_of(fun.__code__).looked_up if name in fun.__globals__]
    return [obj for obj in found if not isinstance(obj, types.ModuleType | types.FunctionType | type)]
