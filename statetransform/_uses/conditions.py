"""Conditions: what a value has to meet. A new kind is a new class here, and the visitor that returns it.

Each has what it asks, how messages show it, and its lines in the generated walk (`generated`). No condition keeps an
object alive: classes, code and objects that count by identity are held weakly. What cannot be is held, and the trace is
forgotten with the object to which it belongs (`Structure.owners_of_arrays`).
"""

from __future__ import annotations

import dataclasses
import operator
import types
from collections.abc import Callable
from typing import Any, ClassVar, TypeAlias

import jax
import numpy as np

from .._objects.plain import MISSING, Content, is_plain, same_plain

Writer: TypeAlias = Any  # the `WalkWriter` of `generated`, which imports this module

_KEYS = 8  # of a dict: up to here each has a name of its own in a generated walk


ANOTHER = "another object"


def brief(value: Any) -> str:
    """How tables and warnings show a value."""
    if value is MISSING:
        return "not there"
    if is_plain(value) and len(text := repr(value)) <= 60:
        return text
    if isinstance(value, jax.Array | np.ndarray):
        return f"{type(value).__name__} {value.dtype}{list(value.shape)}"
    return (
        f"{type(value).__name__} of {len(value)}"
        if isinstance(value, list | dict | tuple | set)
        else type(value).__name__
    )


def _name_of_class(kind: type | None) -> str:
    return "an object of a class that is gone" if kind is None else kind.__name__


class Condition:
    """What a value has to meet.

    Attributes:
      holds: whether a value meets it, given all objects by register.
      said: how tables and warnings show what has to be there.
      is_shared: whether another object of the same structure meets it as well.
      is_unique: whether the identity of the value says nothing more.
    """

    __slots__ = ()
    is_shared: ClassVar[Any] = False
    is_unique: ClassVar[bool] = False
    holds: Any
    said: Any

    def write(self, writer: Writer, value: str) -> None:
        """Leaves the generated walk if an expression does not meet it."""
        writer.leave_if(f"not {writer.constant(self)}.holds({value})")


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Plain(Condition):
    """Equal to a plain value, and of its type."""

    value: Any
    is_unique: ClassVar[bool] = True

    def holds(self, x: Any, found: Any = None) -> bool:
        return x is self.value or same_plain(x, self.value)

    @property
    def said(self) -> str:
        return brief(self.value)

    def write(self, writer: Writer, value: str) -> None:
        if self.value is None or self.value is True or self.value is False:
            writer.leave_if(f"{value} is not {self.value}")
            return
        name = writer.constant(self.value)
        writer.lines.append(f"x = {value}")
        if type(self.value) in (int, str):
            writer.leave_if(f"x is not {name} and (x != {name} or type(x) is not {type(self.value).__name__})")
        else:
            writer.leave_if(f"x is not {name} and not same_plain(x, {name})")


class OfSize(Condition):
    """A container: messages show its class and size."""

    __slots__ = ()
    kind: Any
    size: Any
    is_shared: ClassVar[Any] = True

    @property
    def said(self) -> str:
        return f"{self.kind.__name__} of {self.size}"


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Plains(OfSize):
    """A container whose elements are all plain, compared at once."""

    kind: type
    elements: tuple[Any, ...]

    def holds(self, x: Any, found: Any = None) -> bool:
        elements = tuple(x.items() if hasattr(x, "items") else x) if type(x) is self.kind else ()
        return type(x) is self.kind and same_plain(elements, self.elements)

    @property
    def size(self) -> int:
        return len(self.elements)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Elements(OfSize):
    """A container of a class, with a number of elements, to which further steps lead."""

    kind: type
    size: int

    def holds(self, x: Any, found: Any = None) -> bool:
        return type(x) is self.kind and len(x) == self.size

    def write(self, writer: Writer, value: str) -> None:
        writer.leave_if(f"type({value}) is not {writer.constant(self.kind)} or len({value}) != {self.size}")


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Keys(OfSize):
    """A mapping with these keys, in this order."""

    kind: type
    keys: list[Any]

    def holds(self, x: Any, found: Any = None) -> bool:
        return (
            type(x) is self.kind
            and all(map(operator.is_, map(type, x), map(type, self.keys)))  # first: a state as a key has no equal
            and [*x] == self.keys
        )

    @property
    def size(self) -> int:
        return len(self.keys)

    def write(self, writer: Writer, value: str) -> None:
        if self.kind is not dict or len(self.keys) > _KEYS or {*map(type, self.keys)} != {str}:
            Condition.write(self, writer, value)
            return
        # Keys that are the very same objects are of the same type; strings mostly are.
        keys = [writer.constant(key) for key in self.keys]
        writer.leave_if(f"type({value}) is not dict")
        writer.lines.append(f"{''.join(f'key{i}, ' for i in range(len(keys)))}= {value}")
        is_other = " or ".join(f"key{i} is not {key}" for i, key in enumerate(keys))
        writer.leave_if(f"({is_other}) and not {writer.constant(self)}.holds({value})")


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Same(Condition):
    """The object that another step has led to."""

    register: int

    def holds(self, x: Any, found: Any = None) -> bool:
        return x is found[self.register]

    said = "the same object as another"

    def write(self, writer: Writer, value: str) -> None:
        writer.leave_if(f"{value} is not r{self.register}")


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class InstanceOf(Condition):
    """An instance of a class, which is held weakly; `is_shared` if it is one of the user's, or one is like another."""

    reference: Callable[[], Any]
    is_shared: bool = True  # pyright: ignore[reportIncompatibleVariableOverride]

    def holds(self, x: Any, found: Any = None) -> bool:
        return type(x) is self.reference()

    @property
    def said(self) -> str:
        return _name_of_class(self.reference())

    def write(self, writer: Writer, value: str) -> None:
        kind = writer.held(self.reference)
        writer.leave_if(f"type({value}) is not {kind}")
        if self.is_shared:
            writer.class_of[value] = kind


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class StateOf(Condition):
    """A state of a class, static or not."""

    reference: Callable[[], Any]
    is_static: bool
    is_shared: ClassVar[bool] = True
    is_unique: ClassVar[bool] = True

    def holds(self, x: Any, found: Any = None) -> bool:
        return type(x) is self.reference() and x._static is self.is_static

    @property
    def said(self) -> str:
        return _name_of_class(self.reference())

    def write(self, writer: Writer, value: str) -> None:
        kind = writer.held(self.reference)
        writer.leave_if(f"type({value}) is not {kind} or {value}._static is not {self.is_static}")


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class ArrayLike(Condition):
    """A NumPy array of equal content."""

    content: Content
    is_shared: ClassVar[bool] = True

    def holds(self, x: Any, found: Any = None) -> bool:
        return self.content.is_of(x)

    said = "another array"


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Is(Condition):
    """The very object, held weakly where that can be."""

    reference: Callable[[], Any]
    said: str = ANOTHER
    is_unique: ClassVar[bool] = True

    def holds(self, x: Any, found: Any = None) -> bool:
        return x is self.reference() and x is not None

    def write(self, writer: Writer, value: str) -> None:
        if value != (expected := writer.held(self.reference)):  # the class of an object has been looked at
            is_gone = f" or {value} is None" if expected.endswith("_now") else ""
            writer.leave_if(f"{value} is not {expected}{is_gone}")


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Code(Condition):
    """A function of this code."""

    reference: Callable[[], Any]
    is_unique: ClassVar[bool] = True

    def holds(self, x: Any, found: Any = None) -> bool:
        return type(x) is types.FunctionType and x.__code__ is self.reference()

    said = "another function"

    def write(self, writer: Writer, value: str) -> None:
        # Code holds nothing of the user's but code, so it need not be held weakly; gone, it is found nowhere.
        code = writer.constant(self.reference())
        writer.leave_if(f"type({value}) is not FunctionType or {value}.__code__ is not {code}")


class Absence(Condition):
    """Nothing is there. It is asked of the object and the step, since there is no value (`holds_at`, `write_at`)."""

    __slots__ = ()
    said: Any = brief(MISSING)
    holds_at: Any
    write_at: Any


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Nowhere(Absence):
    """No such attribute, of the instance or its class."""

    def holds_at(self, parent: Any, step: Any) -> bool:
        return not hasattr(parent, step.name)

    def write_at(self, writer: Writer, above: str, step: Any) -> None:
        writer.leave_if(f"hasattr({above}, {step.name!r})")


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class NotInDict(Absence):
    """No such attribute of the instance itself; what its class has is another matter."""

    def holds_at(self, parent: Any, step: Any) -> bool:
        return step.name not in parent.__dict__

    def write_at(self, writer: Writer, above: str, step: Any) -> None:
        writer.leave_if(f"{step.name!r} in {above}.__dict__")


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Unset(Absence):
    """A slot, variable or global name without a value."""

    def holds_at(self, parent: Any, step: Any) -> bool:
        return step.is_unset(parent)

    def write_at(self, writer: Writer, above: str, step: Any) -> None:
        writer.leave_if(f"not {writer.constant(step)}.is_unset({above})")


NOWHERE, NOT_IN_DICT, UNSET = Nowhere(), NotInDict(), Unset()
