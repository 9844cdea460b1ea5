"""Transforming methods of a class: a subclass with the same name."""

from __future__ import annotations

import copyreg
import inspect
import sys
from collections.abc import Callable, Sequence
from typing import Any


def with_methods(
    where: str,
    cls: type,
    methods: Sequence[str],
    transform: Callable[[Any], Any],
    again: Callable[[type], type],
) -> type:
    """A subclass in which the named methods are transformed.

    Args:
      where: the transform's name, for messages.
      cls: the class.
      methods: names of methods.
      transform: transforms one method.
      again: transforms another class in the same way; unpickling an instance needs it where the name of
        the class leads to the original.
    """
    for name in methods:
        if not callable(getattr(cls, name, None)) or all(name not in vars(base) for base in cls.__mro__):
            raise AttributeError(
                f"{where}: {cls.__qualname__} has no method {name!r}. "
                f'Name the methods to transform: `transform.{where}({cls.__name__}, methods=["step"])`.'
            )
    members: dict[str, Any] = {name: transform(inspect.getattr_static(cls, name)) for name in methods}
    for name in ("__module__", "__qualname__", "__doc__"):
        members[name] = getattr(cls, name)

    def __reduce_ex__(self: Any, protocol: Any) -> Any:
        reduced = super(sub, self).__reduce_ex__(protocol)
        if type(self) is not sub or _resolve(cls) is not cls:
            return reduced
        _, (_, *args), *rest = reduced
        return (_new, (again, cls, tuple(args)), *rest)

    sub: Any = None
    members["__reduce_ex__"] = __reduce_ex__
    sub = type(cls)(cls.__name__, (cls,), members)
    return sub


def _resolve(cls: type) -> Any:
    """What the class's qualified name leads to."""
    found: Any = sys.modules.get(cls.__module__)
    for part in cls.__qualname__.split("."):
        found = getattr(found, part, None)
    return found


def _new(again: Callable[[type], type], cls: type, args: tuple[Any, ...]) -> Any:
    return copyreg.__newobj__(again(cls), *args)  # type: ignore[attr-defined]
