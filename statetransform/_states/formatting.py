"""Types of values, and values as messages and `repr` show them: shapes and dtypes, never the numbers of an array."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from .._jax import type_text, typeof
from .frame import UNSET

_SCALARS = (bool, int, float, complex)
_LEAVES = (jax.Array, np.ndarray, np.generic, *_SCALARS)
_ROWS = 10  # of a list in an error


def show(value: Any) -> str:
    """Shapes and dtypes in the structure of the value."""
    if value is UNSET:
        return "<no value>"
    if isinstance(value, _SCALARS):
        return repr(value)
    if isinstance(value, _LEAVES):
        return type_text(typeof(value))
    shown = jax.tree.map(lambda leaf: _Verbatim(show(leaf) if isinstance(leaf, _LEAVES) else repr(leaf)), value)
    return repr(shown)


def show_types(value: Any) -> str:
    """Types in the structure of a value or of abstract values: `{'a': float32[3]}`."""
    return repr(jax.tree.map(lambda leaf: _Verbatim(type_text(typeof(leaf))), value))


def type_of(value: Any) -> tuple[Any, ...]:
    """What has to be equal where two values come to the same place: the structure, shapes and dtypes."""
    leaves, treedef = jax.tree.flatten(value)
    return treedef, *[(aval.shape, aval.dtype) for aval in map(typeof, leaves)]


def type_on_mesh(value: Any) -> tuple[Any, ...]:
    """What has to be equal where a loop or branch ends: also the sharding, and the mesh axes over which it varies.

    The text of a type has them where JAX compares them: on explicit axes, and inside `shard_map`.
    """
    leaves, treedef = jax.tree.flatten(value)
    return treedef, *[type_text(typeof(leaf)) for leaf in leaves]


def show_item(item: Any) -> str:
    """Of an array the type; anything else as it shows itself."""
    return show(item) if isinstance(item, jax.Array | np.ndarray) else repr(item)


def first_of(rows: list[str], gap: str = ", ") -> str:
    """The first ones, and how many there are more."""
    more = [f"and {len(rows) - _ROWS} more"] if len(rows) > _ROWS else []
    return gap.join([*rows[:_ROWS], *more])


def show_unmatched(missing: list[str], unexpected: list[str]) -> str:
    """Lines with the places that have no value, and the values that have no place."""
    rows = {"missing": missing, "unexpected": unexpected}
    return "".join(f"  {what:10} : {first_of(list(map(repr, names)))}\n" for what, names in rows.items() if names)


class _Verbatim(str):
    """Prints as the text that it is inside the `repr` of a container."""

    __slots__ = ()
    __repr__ = str.__str__
