"""The names that code looks up, and what they mean in its module."""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

from .._base.library import is_users_module

_IMPORTS = (dis.opmap["IMPORT_NAME"], dis.opmap["IMPORT_FROM"])
#: By how much the number of a name is shifted, with flags below it.
_SHIFTS = {dis.opmap["LOAD_GLOBAL"]: 1, dis.opmap["LOAD_NAME"]: 0, **dict.fromkeys(_IMPORTS, 0)}


class Names(NamedTuple):
    """The names in the code of a function.

    Attributes:
      looked_up: those that it looks up in its module.
      used: all of them, attributes too.
      imported: the modules that it imports, and what it imports from them.
    """

    looked_up: tuple[str, ...] = ()
    used: tuple[str, ...] = ()
    imported: tuple[str, ...] = ()


@functools.lru_cache(maxsize=4096)
def names_of(code: types.CodeType, deep: bool = True) -> Names:
    """The names in a function; those of the functions within it included, if `deep`.

    Reads the bytecode as :mod:`dis` does, which takes twenty times as long.
    """
    looked_up, used, imported = dict[str, None](), dict.fromkeys(code.co_names), dict[str, None]()
    extended, raw = 0, code.co_code
    for op, arg in zip(raw[::2], raw[1::2], strict=True):
        arg |= extended
        extended = arg << 8 if op == dis.EXTENDED_ARG else 0
        if op in _SHIFTS:
            (imported if op in _IMPORTS else looked_up)[code.co_names[arg >> _SHIFTS[op]]] = None
    for const in code.co_consts:
        if deep and isinstance(const, types.CodeType):
            for found, inner in zip((looked_up, used, imported), names_of(const), strict=True):
                found.update(dict.fromkeys(inner))
    return Names(*map(tuple, (looked_up, used, imported)))


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
