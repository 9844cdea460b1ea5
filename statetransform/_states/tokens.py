"""Tokens replace objects in tree definitions, which JAX's caches hold for ever."""

from __future__ import annotations

import itertools
import weakref
from typing import Generic, TypeVar

T = TypeVar("T")
_serials = itertools.count()


class Token(Generic[T]):
    """Replaces one object in tree definitions and cache keys, without keeping it alive."""

    __slots__ = ("__weakref__", "_ref", "serial")

    def __init__(self, obj: T) -> None:
        self._ref = weakref.ref(obj)
        self.serial = next(_serials)  # an order that does not depend on addresses

    def get(self) -> T | None:
        """The object, or None when it is gone."""
        return self._ref()

    def __repr__(self) -> str:
        return f"<{self.get()!r}>"
