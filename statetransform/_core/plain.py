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
_ATOMS = frozenset({
    str, bytes, int, float, complex, bool, type(None), type(Ellipsis), type(NotImplemented), range, slice,
    datetime.date, datetime.datetime, datetime.time, datetime.timedelta, datetime.timezone, decimal.Decimal,
    fractions.Fraction, re.Pattern, uuid.UUID, type(pathlib.Path()), pathlib.PurePosixPath, pathlib.PureWindowsPath,
    jax.sharding.PartitionSpec, types.EllipsisType,
})  # fmt: skip
#: Equal ones may still differ in what they show: 0.0 and -0.0, Decimal("1.0") and Decimal("1.00"), range(0, 3, 2),
#: paths of Windows in upper and lower case.
_BY_TEXT = (
    float, complex, np.generic, decimal.Decimal, range, slice, datetime.datetime, datetime.time, pathlib.PurePath,
)  # fmt: skip
_PLAIN_BASES = (enum.Enum, np.dtype, np.generic, str, bytes, int, float)


def is_atom(value: Any) -> bool:
    """Whether a value is of one of the classes that have no attributes of the user's."""
    return type(value) in _ATOMS or isinstance(value, enum.Enum)


def is_plain(value: Any) -> bool:
    """Whether a value is an immutable one that counts by its type and value."""
    kind = type(value)  # `isinstance` may look up `__class__`, also on objects that are being listened to
    if kind is slice:
        return is_plain(value.start) and is_plain(value.stop) and is_plain(value.step)
    if kind in _ATOMS or issubclass(kind, _PLAIN_BASES):
        return True
    if kind is types.BuiltinFunctionType:  # not the method of an object
        return value.__self__ is None or isinstance(value.__self__, types.ModuleType)
    return kind in (tuple, frozenset) and all(map(is_plain, value))


def same_plain(x: Any, y: Any) -> bool:
    """Whether two plain values are the same bit by bit: NaN is itself, 0.0 is not -0.0, 1 is neither 1.0 nor True."""
    if x is y:
        return True
    if type(x) is not type(y):
        return False
    if isinstance(y, _BY_TEXT):
        return repr(x) == repr(y)
    if type(y) is tuple or type(y) is frozenset:  # of sets, the order of iteration counts
        return len(x) == len(y) and all(map(same_plain, x, y))
    try:
        return bool(x == y)
    except Exception:
        return False


def reference(obj: Any) -> Callable[[], Any]:
    """A weak reference, or a strong one to what cannot be referred to weakly."""
    try:
        return weakref.ref(obj)
    except TypeError:
        return lambda: obj
