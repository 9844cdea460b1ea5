"""The names that code looks up, and what they mean in its module."""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Iterator
from typing import Any

from .library import is_users_module

_LOAD_GLOBAL, _LOAD_NAME = dis.opmap["LOAD_GLOBAL"], dis.opmap["LOAD_NAME"]


@functools.lru_cache(maxsize=4096)
def names_of(code: types.CodeType, deep: bool = True) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names that a function looks up in its module, and all that it uses.

    Those of the functions within it included, if `deep`.

    Reads the bytecode as :mod:`dis` does, which takes twenty times as long.
    """
    looked_up, used = dict[str, None](), dict.fromkeys(code.co_names)
    extended, raw = 0, code.co_code
    for op, arg in zip(raw[::2], raw[1::2], strict=True):
        arg |= extended
        extended = arg << 8 if op == dis.EXTENDED_ARG else 0
        if op == _LOAD_GLOBAL:
            looked_up[code.co_names[arg >> 1]] = None
        elif op == _LOAD_NAME:
            looked_up[code.co_names[arg]] = None
    for const in code.co_consts:
        if deep and isinstance(const, types.CodeType):
            for found, inner in zip((looked_up, used), names_of(const), strict=True):
                found.update(dict.fromkeys(inner))
    return tuple(looked_up), tuple(used)


def globals_of(fun: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """What a function finds by the names that it looks up in its module, and in modules that these lead to."""
    looked_up, used = names_of(fun.__code__)
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
