"""Plain values, which count by type and value; and how other objects are referred to."""

from __future__ import annotations

import datetime
import decimal
import enum
import fractions
import pathlib
import re
import types
import uuid
import weakref
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

#: As `id`, which is a call of its own kind: with JAX imported an audit hook makes it cost 0.2 us.
identity = object.__hash__
MISSING: Any = object()
NOT_SET = ("not set",)  # of a context variable or a setting; equal to a copy of itself
_ATOMS = frozenset({
    str, bytes, int, float, complex, bool, type(None), type(Ellipsis), type(NotImplemented), range, slice,
    datetime.date, datetime.datetime, datetime.time, datetime.timedelta, datetime.timezone, decimal.Decimal,
    fractions.Fraction, re.Pattern, uuid.UUID, type(pathlib.Path()), pathlib.PurePosixPath, pathlib.PureWindowsPath,
    jax.sharding.PartitionSpec, jax.tree_util.PyTreeDef, types.EllipsisType,
})  # fmt: skip
#: Equal ones may still differ in what they show: 0.0 and -0.0, Decimal("1.0") and Decimal("1.00"), range(0, 3, 2),
#: paths of Windows in upper and lower case.
_BY_TEXT = (
    float, complex, np.generic, decimal.Decimal, range, slice, datetime.datetime, datetime.time, pathlib.PurePath,
)  # fmt: skip
_NESTED = (tuple, frozenset)
_PLAIN_BASES = (enum.Enum, np.dtype, np.generic, str, bytes, int, float)


def is_plain(value: Any) -> bool:
    """Whether a value is an immutable one that counts by its type and value."""
    kind = type(value)  # `isinstance` may look up `__class__`, also on objects that are being listened to
    if kind is slice:
        return is_plain((value.start, value.stop, value.step))
    if kind in _ATOMS or issubclass(kind, _PLAIN_BASES):
        return True
    if kind is types.BuiltinFunctionType:  # not the method of an object
        return value.__self__ is None or isinstance(value.__self__, types.ModuleType)
    waiting = [value] if kind in _NESTED else []
    while waiting:  # without recursion
        for x in waiting.pop():
            if type(x) in _NESTED:
                waiting.append(x)
            elif not is_plain(x):
                return False
    return kind in _NESTED


def same_plain(x: Any, y: Any) -> bool:
    """Whether two plain values are the same bit by bit: NaN is itself, 0.0 is not -0.0, 1 is neither 1.0 nor True."""
    waiting = [(x, y)]
    while waiting:
        x, y = waiting.pop()
        if x is y:
            continue
        if type(x) is not type(y):
            return False
        if type(y) in _NESTED:  # of sets, the order of iteration counts
            if len(x) != len(y):
                return False
            waiting.extend(zip(x, y, strict=True))
        else:
            try:
                is_same = bool(repr(x) == repr(y) if isinstance(y, _BY_TEXT) else x == y)
            except Exception:
                return False
            if not is_same:
                return False
    return True


class Content:
    """What a NumPy array holds, and its class. One that cannot be written to is first compared by identity.

    Args:
      array: the array.
    """

    __slots__ = ("_bits", "_dtype", "_kind", "_read_only", "_shape")

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self._kind, self._dtype, self._shape, self._bits = type(array), array.dtype, array.shape, _bits(array).copy()
        self._read_only = weakref.ref(array) if is_read_only(array) else None

    @property
    def compared(self) -> int:
        """How many bytes are compared at each call; none where identity will do."""
        return self._bits.nbytes if self._read_only is None else 0

    def is_of(self, x: Any) -> bool:
        """Whether a value is an array of this content, bit by bit."""
        if self._read_only is not None and x is self._read_only() and is_read_only(x):
            return True
        if type(x) is not self._kind or x.dtype != self._dtype or x.shape != self._shape:
            return False
        return np.array_equal(_bits(x), self._bits)


def is_read_only(array: Any) -> bool:
    """Whether neither an array nor one that it is a view of can be written to."""
    while array is not None:  # NumPy puts an object of its own between a view and its base now and then
        if isinstance(array, np.ndarray) and array.flags.writeable:
            return False
        array = getattr(array, "base", None)
    return True


def _bits(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return flat.view(np.uint64) if flat.size % 8 == 0 else flat


def reference(obj: Any) -> Callable[[], Any]:
    """A weak reference, or a strong one to what cannot be referred to weakly."""
    try:
        return weakref.ref(obj)
    except TypeError:
        return lambda: obj
