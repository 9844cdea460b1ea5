"""A state in the place of its value: every operation of arrays says what to write instead.

Comparison by `==`, `!=` and hashing stay those of objects: states are keys of mappings.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import jax

from .errors import describe

_BINARY = {
    "add": "+", "sub": "-", "mul": "*", "matmul": "@", "truediv": "/", "floordiv": "//", "mod": "%",
    "divmod": "divmod()", "pow": "**", "lshift": "<<", "rshift": ">>", "and": "&", "xor": "^", "or": "|",
}  # fmt: skip
_OTHERS = {
    "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "neg": "-", "pos": "+", "abs": "abs()", "invert": "~",
    "bool": "bool()", "int": "int()", "float": "float()", "complex": "complex()", "index": "an index",
    "round": "round()", "len": "len()", "array": "a NumPy array",
}  # fmt: skip
OPERATIONS = {
    **{f"__{name}__": sign for name, sign in (_BINARY | _OTHERS).items()},
    **{f"__r{name}__": sign for name, sign in _BINARY.items()},
}


class NotAnArray:
    """Refuses what arrays can do. Subclasses may define any of it themselves."""

    __slots__ = ()
    _instead = "Write `.value` for the value that it holds."

    def __dir__(self) -> list[str]:
        refused = vars(NotAnArray)
        return [name for name in super().__dir__() if not isinstance(refused.get(name), _Missing | _Protocol)]


def _refuse(state: Any, sign: str) -> NoReturn:
    raise TypeError(f"{describe(state)} is not an array, and stands where one is needed ({sign}). {state._instead}")


def _operation(name: str, sign: str) -> Callable[..., NoReturn]:
    def method(self: Any, *args: Any, **kwargs: Any) -> NoReturn:
        del args, kwargs
        _refuse(self, sign)

    method.__name__, method.__qualname__ = name, f"{NotAnArray.__name__}.{name}"
    return method


class _Protocol:
    """`__jax_array__`: JAX refuses whatever has this method in words of its own, so already the look-up has to fail."""

    def __get__(self, state: Any, owner: type) -> NoReturn:
        if state is None:
            raise AttributeError(f"type object {owner.__name__!r} has no attribute '__jax_array__'")
        _refuse(state, "a JAX array")


class _Missing:
    """An attribute that only the value has. No data descriptor: a subclass may set an attribute of that name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, state: Any, owner: type) -> NoReturn:
        if state is None:
            raise AttributeError(f"type object {owner.__name__!r} has no attribute {self._name!r}")
        raise AttributeError(
            f"{describe(state)} has no attribute {self._name!r}, its value has. Write `.value.{self._name}`.",
            name=self._name,
        )


for _name, _sign in OPERATIONS.items():
    setattr(NotAnArray, _name, _operation(_name, _sign))
for _name in (*dir(jax.Array), "block_until_ready"):
    if not _name.startswith("_"):
        setattr(NotAnArray, _name, _Missing(_name))
NotAnArray.__jax_array__ = _Protocol()  # type: ignore[attr-defined]  # type checkers are to say that there is none
