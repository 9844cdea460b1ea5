"""What of the user's classes a trace depends on: the functions that run, and what running code has a name for.

An edge from a class looks a name up as Python does, along the classes that it derives from. So a class in between that
gets an attribute of this name shows. What `super()` finds is looked up from behind the class that hides it.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Iterable
from typing import Any, TypeAlias

from .._base.library import is_users_class
from .._objects.hooks import can_tell
from .._objects.lookup import DESCRIPTORS, PARTS
from .edges import Edge
from .steps import ClassOf, Inherited

Recorder: TypeAlias = Any  # the one of `recorder`, which imports this module

_HOOKED = ("__getattribute__", "__setattr__", "__delattr__")
_MAKING = frozenset({"__init__", "__new__", "__post_init__"})
_OF_PYTHON = (
    types.MemberDescriptorType, types.GetSetDescriptorType, types.WrapperDescriptorType, type(Edge.parent),
)  # fmt: skip
_TO_CLASSES = frozenset({"type", "__class__", "__mro__"})


class Classes:
    """The classes of one recorder.

    Attributes:
      registers: of each class.
      names: those that running code may look up on any class.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.registers: dict[type, int] = {}
        self.names: set[str] = set()
        self._recorder: Recorder = weakref.proxy(recorder)  # which holds this, and the user's objects
        self._takes_values = False
        self._open: set[type] = set()  # classes that code can get at; of others it has instances only
        self._named: list[tuple[int, Any]] = []  # modules and functions, whose attributes count if they are named

    def take(self, register: int, kind: type, is_open: bool = False) -> None:
        """Takes in a class.

        Args:
          register: its own.
          kind: the class.
          is_open: whether running code can get at the class, and so at its attributes, and not only at instances.
        """
        is_new = kind not in self.registers
        opens = is_open or (kind not in self._open and not self.names.isdisjoint(_TO_CLASSES))
        self.registers[kind] = register
        if opens:
            self._open.add(kind)
            if is_users_class(type(kind)):  # a metaclass
                self._recorder.reach(register, ClassOf(), type(kind))
        for base in _users_bases(kind):
            special = {name for name in list(vars(base)) if _is_special(name) and name not in _HOOKED}
            if not can_tell() and not is_open:  # what makes instances would seem to run
                special -= _MAKING
            if is_new or is_open:
                self._when_they_run(kind, base, special)
            if opens:
                self._named_on(kind, base, self.names)
                self._values_on(kind, base)

    def open(self, kind: Any) -> None:
        """Says of a class that was found before that running code can get at it."""
        if issubclass(type(kind), type) and kind in self.registers:
            register = self.registers[kind]
            if self._recorder.is_new(register, ("opened", kind)):
                self.take(register, kind, is_open=True)

    def add_names(self, names: Iterable[str]) -> None:
        """Names that running code may look up on any class."""
        new = set(names) - self.names
        if not new:
            return
        self.names.update(new)
        if not new.isdisjoint(_TO_CLASSES):
            for kind in list(self.registers):
                self.take(self.registers[kind], kind)
        for kind, base in self._bases_of_open():
            self._named_on(kind, base, new)
        for register, value in list(self._named):
            self._recorder.looks_into(register, value, new)

    def take_named(self, register: int, value: Any) -> None:
        """Takes in a module that code gets as a value, or a function with attributes."""
        if not self._recorder.is_new(register, "as a value"):
            return
        self._named.append((register, value))
        self._recorder.looks_into(register, value, tuple(self.names))

    def add_values(self) -> None:
        """Names may be computed: of each class, all attributes count that are neither functions nor descriptors."""
        if not self._takes_values:
            self._takes_values = True
            for kind, base in self._bases_of_open():
                self._values_on(kind, base)

    def look_up(self, kind: type, name: str) -> None:
        """Notes an attribute that an instance has from its class."""
        if kind in self.registers and any(name in vars(base) and is_users_class(base) for base in kind.__mro__):
            self.attribute(kind, name)

    def attribute(self, kind: type, name: str, start: int = 0) -> None:
        """Notes what a class has under a name, looked up from one of its bases on."""
        register, recorder, step = self.registers[kind], self._recorder, Inherited(name, start)
        child = step.take(kind)
        if not recorder.is_new(register, step):
            return
        if isinstance(child, _OF_PYTHON) or (
            _is_special(name) and not callable(child) and not isinstance(child, DESCRIPTORS)
        ):
            return
        recorder.reach(register, step, child)
        if isinstance(child, classmethod) or (hasattr(type(child), "__get__") and is_users_class(type(child))):
            self.open(kind)  # which gets the class as well

    def _bases_of_open(self) -> list[tuple[type, type]]:
        return [(kind, base) for kind in self._open for base in _users_bases(kind)]

    def _named_on(self, kind: type, base: type, names: Iterable[str]) -> None:
        found = vars(base)
        self._when_they_run(kind, base, [name for name in names if name in found and not _is_special(name)])

    def _values_on(self, kind: type, base: type) -> None:
        for name, child in list(vars(base).items()) if self._takes_values else ():
            if not _is_special(name) and not isinstance(child, types.FunctionType) and not hasattr(child, "__get__"):
                self.attribute(kind, name, _start(kind, base, name))

    def _when_they_run(self, kind: type, base: type, names: Iterable[str]) -> None:
        """Functions count once they run, everything else at once."""
        for name in list(names):
            child, start = vars(base)[name], _start(kind, base, name)
            parts = [getattr(child, part, None) for part in PARTS] if isinstance(child, DESCRIPTORS) else [child]
            functions = [part for part in parts if isinstance(part, types.FunctionType)]
            for fun in functions:
                self._recorder.when_it_runs(fun.__code__, self.attribute, kind, name, start)
            if not functions:
                self.attribute(kind, name, start)


def _users_bases(kind: type) -> list[type]:
    return [base for base in kind.__mro__ if base is not object and is_users_class(base)]


def _start(kind: type, base: type, name: str) -> int:
    """From where on the attribute of a base is the first of its name: behind the class that hides it."""
    above = kind.__mro__[: kind.__mro__.index(base)]
    return 1 + max((i for i, cls in enumerate(above) if name in vars(cls)), default=-1)


def _is_special(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")
