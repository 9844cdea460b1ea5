"""Steps: how a value is reached from an object. A new kind is a new class here, and whoever finds it.

Each has what it does, how messages show it, and its expression in the generated walk (`generated`).
"""

from __future__ import annotations

import dataclasses
import keyword
from collections.abc import Callable
from typing import Any, ClassVar, TypeAlias

from .._objects.lookup import inherited, instance_attribute
from .._objects.plain import MISSING
from .._states.frame import read

Writer: TypeAlias = Any  # the `WalkWriter` of `generated`, which imports this module


class Step:
    """One step from an object.

    Attributes:
      take: gives what is there.
      is_unset: whether a slot, variable or global name has no value, where that can be.
      text: how the user would write it, behind the object.
      source: the expression for it in a generated walk.
      is_own: whether it leads to something that belongs to the object.
    """

    __slots__ = ()
    is_own: ClassVar[bool] = False
    text: ClassVar[Any] = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Root(Step):
    """The function, or an object among its arguments; taken from the sequence of all roots."""

    index: int

    def take(self, parent: Any) -> Any:
        return parent[self.index]

    def source(self, writer: Writer, above: str) -> str:
        return str(writer.roots[self.index])


class NamedStep(Step):
    """A step by a name."""

    __slots__ = ()
    name: Any

    @property
    def text(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return f".{self.name}" if self.name not in ("__wrapped__", "__func__") else ""


@dataclasses.dataclass(frozen=True, slots=True)
class Attr(NamedStep):
    """An attribute, as Python looks it up."""

    name: str
    is_own: ClassVar[bool] = True

    def take(self, parent: Any) -> Any:
        return getattr(parent, self.name)

    def is_unset(self, parent: Any) -> bool:
        return instance_attribute(parent, self.name) is MISSING

    def source(self, writer: Writer, above: str) -> str:
        is_short = self.name.isidentifier() and not keyword.iskeyword(self.name)
        return f"{above}.{self.name}" if is_short else f"getattr({above}, {self.name!r})"


@dataclasses.dataclass(frozen=True, slots=True)
class Method(NamedStep):
    """The function behind a bound method."""

    name: str

    def take(self, parent: Any) -> Any:
        return getattr(parent, self.name).__func__

    def source(self, writer: Writer, above: str) -> str:
        return f"{Attr(self.name).source(writer, above)}.__func__"


@dataclasses.dataclass(frozen=True, slots=True)
class InDict(NamedStep):
    """An entry of `__dict__`: of a module, a function, or an object."""

    name: str
    is_own: ClassVar[bool] = True

    def take(self, parent: Any) -> Any:
        return parent.__dict__[self.name]

    def source(self, writer: Writer, above: str) -> str:
        return f"{above}.__dict__[{self.name!r}]"


@dataclasses.dataclass(frozen=True, slots=True)
class Item(Step):
    """An item of a container."""

    key: Any
    is_own: ClassVar[bool] = True

    def take(self, parent: Any) -> Any:
        return parent[self.key]

    @property
    def text(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return f"[{self.key!r}]"

    def source(self, writer: Writer, above: str) -> str:
        return f"{above}[{repr(self.key) if type(self.key) in (int, str) else writer.constant(self.key)}]"


@dataclasses.dataclass(frozen=True, slots=True)
class Closed(NamedStep):
    """A variable that a function closes over."""

    index: int
    name: str

    def take(self, parent: Any) -> Any:
        return parent.__closure__[self.index].cell_contents

    def is_unset(self, parent: Any) -> bool:
        try:
            self.take(parent)
        except ValueError:
            return True
        return False

    def source(self, writer: Writer, above: str) -> str:
        return f"{above}.__closure__[{self.index}].cell_contents"


@dataclasses.dataclass(frozen=True, slots=True)
class Global(NamedStep):
    """A global name of a function."""

    name: str

    def take(self, parent: Any) -> Any:
        return parent.__globals__[self.name]

    def is_unset(self, parent: Any) -> bool:
        return self.name not in parent.__globals__

    def source(self, writer: Writer, above: str) -> str:
        return f"{writer.once(f'g{above[1:]}', f'{above}.__globals__')}[{self.name!r}]"


@dataclasses.dataclass(frozen=True, slots=True)
class ClassOf(Step):
    """The class of an object."""

    text: ClassVar[Any] = ".__class__"

    def take(self, parent: Any) -> Any:
        return type(parent)

    def source(self, writer: Writer, above: str) -> str:
        return writer.class_of.get(above) or f"type({above})"


@dataclasses.dataclass(frozen=True, slots=True)
class Inherited(NamedStep):
    """What a class has under a name, looked up along its bases from one of them on."""

    name: str
    start: int

    def take(self, parent: Any) -> Any:
        return inherited(parent, (self.name, self.start))

    def source(self, writer: Writer, above: str) -> str:
        kind = writer.identical.get(above)
        is_direct = self.start == 0 and kind is not None and self.name in vars(kind)
        return f"{above}.__dict__[{self.name!r}]" if is_direct else f"{writer.constant(self)}.take({above})"


@dataclasses.dataclass(frozen=True, slots=True)
class Reader(Step):
    """What a function gives for an object: what a set holds, a setting, or the handle of another framework's cell."""

    read: Callable[[Any], Any]
    is_own: ClassVar[bool] = True

    def take(self, parent: Any) -> Any:
        return self.read(parent)

    @property
    def text(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return f".{getattr(self.read, 'name', '')}" if getattr(self.read, "shows", False) else ""

    def source(self, writer: Writer, above: str) -> str:
        return f"{writer.constant(self.read)}({above})"


@dataclasses.dataclass(frozen=True, slots=True)
class ValueOf(Step):
    """The value of a static state."""

    def take(self, parent: Any) -> Any:
        return read(parent)

    def source(self, writer: Writer, above: str) -> str:
        return writer.value(int(above[1:]))
