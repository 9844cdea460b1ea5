"""How many bytes a value takes, and how to write and read such numbers."""

from __future__ import annotations

import functools
import math
import re
from typing import Any

import jax
import numpy as np

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
BINARY = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_DECIMAL = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def nbytes(aval: Any) -> int:
    """The bytes of a value of this abstract type.

    Counts what the device stores: a random key is its words, not one element. Types smaller than a byte count as one
    byte per element, as most backends store them.

    >>> import jax, jax.numpy as jnp
    >>> nbytes(jax.ShapeDtypeStruct((3, 5), jnp.bfloat16))
    30
    >>> nbytes(jax.eval_shape(jax.random.key, 0))
    8
    """
    dtype = getattr(aval, "dtype", None)
    if dtype is None or getattr(dtype, "name", "") == "float0":  # tokens and references carry no data of their own
        return 0
    return elements(aval) * int(np.dtype(dtype).itemsize if isinstance(dtype, type) else dtype.itemsize)


def elements(aval: Any) -> int:
    """The number of elements of a value of this abstract type; 0 where it has no shape, or one without numbers.

    >>> import jax, jax.numpy as jnp
    >>> elements(jax.ShapeDtypeStruct((3, 5), jnp.float32))
    15
    """
    try:
        return math.prod(int(d) for d in aval.shape)
    except (AttributeError, TypeError):  # a token; a symbolic dimension
        return 0


def local_shape(aval: Any) -> tuple[int, ...]:
    """The shape of the part of a value that one device holds, by the sharding in its type."""
    sharding = getattr(aval, "sharding", None)
    if sharding is None or all(name is None for name in sharding.spec):
        return aval.shape
    return sharding.shard_shape(aval.shape)


def local_nbytes(aval: Any) -> int:
    """The bytes of the part of a value that one device holds; what is the same for all shapes is looked up once."""
    dtype = getattr(aval, "dtype", None)
    return 0 if dtype is None or not hasattr(aval, "shape") else math.prod(local_shape(aval)) * _itemsize(dtype)


@functools.cache
def _itemsize(dtype: Any) -> int:
    return nbytes(jax.ShapeDtypeStruct((), dtype))


def byte_unit(largest: float) -> tuple[int, str]:
    """The largest binary unit that a number of bytes has at least one of: its bytes and its name."""
    power = 0
    while largest >= 1024 ** (power + 1) and power < len(_UNITS) - 1:
        power += 1
    return 1024**power, _UNITS[power]


def format_bytes(count: float, like: Any = None) -> str:
    """Bytes for a reader: three significant digits and a binary unit, or a decimal one if a size was written so.

    Args:
      count: the bytes.
      like: a size as its user wrote it.

    >>> [format_bytes(n) for n in (0, 64, 1536, 2**20, 54.4e6)]
    ['0 B', '64 B', '1.5 KiB', '1 MiB', '51.9 MiB']
    >>> [format_bytes(n, "1.2MB") for n in (64, 1536, 54.4e6)]
    ['64 B', '1.54 kB', '54.4 MB']
    """
    if isinstance(like, str) and re.search(r"[kmgt]b?\s*$", like, re.IGNORECASE):
        power = next((k for k in (4, 3, 2, 1) if abs(count) >= 1000**k), 0)
        scale, unit = 1000**power, ("B", "kB", "MB", "GB", "TB")[power]
    else:
        scale, unit = byte_unit(abs(count))
    count /= scale
    return f"{count:.{4 if abs(count) >= 100 else 3}g} {unit}"


def format_count(count: float) -> str:
    """A large count for a reader.

    >>> [format_count(n) for n in (0, 950, 1234, 5.6e9)]
    ['0', '950', '1.23 k', '5.6 G']
    """
    for unit in ("", " k", " M", " G", " T", " P"):
        if abs(count) < 1000 or unit == " P":
            break
        count /= 1000
    return f"{count:.3g}{unit}"


def parse_bytes(amount: int | float | str) -> int:
    """A number of bytes from a number or from text with a unit.

    >>> parse_bytes("1.5 KiB"), parse_bytes("2kB"), parse_bytes("2 GB"), parse_bytes(7)
    (1536, 2000, 2000000000, 7)

    Raises:
      TypeError: The amount is neither a number nor text.
      ValueError: The text is not a number with one of the units ``B``, ``kB``, ``KiB``, ``MB``, ``MiB`` and so on,
          or the amount is negative, or a number that is not whole.
    """
    if isinstance(amount, str):
        match = re.fullmatch(r"\s*(\d[\d_]*(?:\.\d*)?|\.\d+)(e\d+)?\s*([kmgt]?)(i?)b?\s*", amount, re.IGNORECASE)
        if match is None:
            raise ValueError(
                f"{amount!r} is not a size; write a number with a unit of bytes, such as '2GiB', '512 MiB', '1.5 GB' "
                "or '64kB'"
            )
        number, exponent, unit, binary = match.groups()
        if not unit and not amount.strip().lower().endswith("b"):
            number = amount.strip()
            units = f"'{number}GB' or '{number}MiB', or a number for bytes"
            if float(number) >= 1024:  # nobody has so many of these
                units = f"'{number}B' or a number for bytes, or another unit, as in '2GiB'"
            raise ValueError(f"{amount!r} has no unit. Write {units}.")
        amount = float(number + (exponent or "")) * (BINARY if binary else _DECIMAL)[unit.upper()]
    elif isinstance(amount, bool) or not isinstance(amount, int | float | np.integer | np.floating):
        raise TypeError(
            f"a size is a number of bytes or a text such as '2GiB', not {amount!r} of type {type(amount).__name__}"
        )
    elif math.isfinite(amount) and amount != int(amount):
        raise ValueError(f"{amount} is no whole number of bytes. Write '{amount}GiB' or '{amount}GB', with a unit.")
    if amount < 0:
        raise ValueError(f"a size must not be negative, as {amount} is")
    if isinstance(amount, float | np.floating) and not math.isfinite(amount):
        raise ValueError(f"a size must be finite, not {amount}; omit the budget for no limit")
    return int(amount)
