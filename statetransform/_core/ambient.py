"""What code finds in ways that no attribute or item shows: modules that it imports, context variables, its thread."""

from __future__ import annotations

import contextvars
import dis
import enum
import functools
import sys
import threading
import types
from collections.abc import Iterator, Mapping
from typing import Any

_IMPORT_NAME = dis.opmap["IMPORT_NAME"]


class Unset(enum.Enum):
    """The value of a context variable that has none."""

    UNSET = enum.auto()


def is_set(variable: contextvars.ContextVar[Any]) -> bool:
    """Whether a context variable was set in this context."""
    return variable in contextvars.copy_context()


def value_of(variable: contextvars.ContextVar[Any]) -> Any:
    """The value of a context variable."""
    try:
        return variable.get()
    except LookupError:
        return Unset.UNSET


def of_thread(local: Any) -> dict[str, Any]:
    """The attributes that an object has in this thread."""
    return threading.local.__getattribute__(local, "__dict__")


@functools.lru_cache(maxsize=4096)
def imports_of(code: types.CodeType) -> tuple[str, ...]:
    """The names of modules that a function and the functions within it import, as they stand there."""
    found, extended, raw = dict[str, None](), 0, code.co_code
    for op, arg in zip(raw[::2], raw[1::2], strict=True):
        arg |= extended
        extended = arg << 8 if op == dis.EXTENDED_ARG else 0
        if op == _IMPORT_NAME:
            found[code.co_names[arg]] = None
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            found.update(dict.fromkeys(imports_of(const)))
    return tuple(found)


class Imported:
    """Reads a module that was imported.

    Args:
      name: what it is called in `sys.modules`.
    """

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name: str = name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Imported) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __call__(self, fun: Any) -> Any:
        del fun  # which imports it
        return sys.modules.get(self.name)


def imported(names: tuple[str, ...], namespace: Mapping[str, Any]) -> Iterator[tuple[str, types.ModuleType]]:
    """The modules of these names, as a function of a module would import them."""
    package = namespace.get("__package__") or ""
    parents = [""] + [package.rsplit(".", i)[0] + "." for i in range(package.count(".") + 1) if package]
    for parent in parents:
        for name in names:
            whole = (parent + name).rstrip(".")
            for full in dict.fromkeys((whole, whole.partition(".")[0])):
                module = sys.modules.get(full)
                if isinstance(module, types.ModuleType):
                    yield full, module
