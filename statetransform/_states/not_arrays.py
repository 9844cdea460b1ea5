"""A state in the place of its value: every operation of arrays says what to write instead.

Comparison by `==`, `!=` and hashing stay those of objects, since states are keys of mappings. A comparison with a
number or a text, which is never true, is a warning.
"""

from __future__ import annotations

import abc
import dis
import inspect
import sys
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import jax

from .._base.errors import describe

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


_SCALARS = (bool, int, float, complex, str, bytes)


class StateMeta(abc.ABCMeta):
    """The class of `State` and its subclasses; an `ABCMeta`, so that a kind of state may be abstract."""

    if not TYPE_CHECKING:  # those of `ABCMeta` take several times as long
        __instancecheck__ = type.__instancecheck__
        __subclasscheck__ = type.__subclasscheck__

    def __format__(cls, spec: str) -> str:
        # `jnp.sin(state)`: what JAX says of an argument that is no array is an f-string with its type in it.
        text = f"{cls!r} (a state is not an array: {cls._instead[0].lower()}{cls._instead[1:-1]})"  # type: ignore[attr-defined]
        return format(text, spec)

    @property
    def __signature__(cls) -> inspect.Signature:
        """That of `__init__`, as of classes whose metaclass has no `__call__`."""
        own = inspect.signature(cls.__init__)  # type: ignore[misc]
        return own.replace(parameters=list(own.parameters.values())[1:], return_annotation=inspect.Signature.empty)

    if not TYPE_CHECKING:  # who would take the result of every kind for its annotation

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            made = super().__call__(*args, **kwargs)
            if isinstance(made, cls) and not hasattr(made, "_token"):
                name = cls.__qualname__
                raise TypeError(
                    f"{name}.__init__ does not initialize the state. Call `super().__init__(value)` in {name}.__init__."
                )
            return made


class NotAnArray(metaclass=StateMeta):
    """Refuses what arrays can do. Subclasses may define any of it themselves."""

    __slots__ = ()
    _instead = "Write `.value` for the value that it holds."

    if not TYPE_CHECKING:  # without a Python call for each look-up
        __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        if isinstance(other, jax.Array):
            _refuse(self, "==")
        if isinstance(other, _SCALARS):
            warnings.warn(
                f"{describe(self)} is compared with {other!r}. States are compared by identity, so they are never "
                "equal. Write `.value` to compare the value that the state holds.",
                UserWarning,
                stacklevel=2,
            )
        return NotImplemented

    def __format__(self, spec: str) -> str:
        if spec:
            raise TypeError(
                f"{describe(self)} cannot be formatted with {spec!r}. Write `.value`: `{{u.value:{spec}}}`."
            )
        return str(self)

    def __dir__(self) -> list[str]:
        refused = vars(NotAnArray)
        return [name for name in super().__dir__() if not isinstance(refused.get(name), _Missing)]


def _refuse(state: Any, sign: str) -> NoReturn:
    raise TypeError(f"{describe(state)} is not an array, but is used as one ({sign}). {state._instead}")


def _operation(name: str, sign: str) -> Callable[..., NoReturn]:
    def method(self: Any, *args: Any, **kwargs: Any) -> NoReturn:
        _refuse(self, sign)

    method.__name__, method.__qualname__ = name, f"{NotAnArray.__name__}.{name}"
    return method


class _Missing:
    """An attribute that only the value has. No data descriptor: a subclass may set an attribute of that name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, state: Any, owner: type) -> NoReturn:
        if state is None:
            raise AttributeError(f"type object {owner.__name__!r} has no attribute {self._name!r}")
        raise AttributeError(
            f"{describe(state)} has no attribute {self._name!r}, but its value has. Write `.value.{self._name}`.",
            name=self._name,
        )


def _less(self: Any, other: Any) -> bool:
    """Says which of two states was made first, for JAX, which sorts the keys of a dict, and for no operator.

    A dict of states goes through raw JAX transforms as an argument of `functionalize(f).apply`. JAX compares its keys
    from within C, so what the caller of this method is at tells the two apart.
    """
    caller = sys._getframe(1)
    is_operator = caller.f_code.co_code[caller.f_lasti] == _COMPARISON
    if is_operator or not hasattr(other, "_token") or not _BY_ORDER.isdisjoint(caller.f_code.co_names):
        _refuse(self, "<")
    return self._token.serial < other._token.serial


_COMPARISON = dis.opmap["COMPARE_OP"]
_BY_ORDER = frozenset({"min", "sorted", "sort", "lt", "nsmallest"})  # they compare from within C, too

for _name, _sign in OPERATIONS.items():
    setattr(NotAnArray, _name, _operation(_name, _sign))
NotAnArray.__lt__ = _less  # type: ignore[assignment]
for _name in (*dir(jax.Array), "block_until_ready"):
    if not _name.startswith("_"):
        setattr(NotAnArray, _name, _Missing(_name))
