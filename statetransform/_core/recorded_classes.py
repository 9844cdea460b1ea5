"""What of the user's classes a trace depends on: the functions that run, and what running code has a name for."""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

from .edges import Edge
from .library import is_users_class, is_users_function
from .starts import can_tell

Recorder: TypeAlias = Any  # the one of `recorder`, which imports this module

_HOOKED = ("__getattribute__", "__setattr__", "__delattr__")
_MAKING = frozenset({"__init__", "__new__", "__post_init__"})
_DESCRIPTORS = (
    staticmethod, classmethod, property, functools.cached_property, functools.partialmethod,
    functools.singledispatchmethod,
)  # fmt: skip
_PARTS = ("__func__", "fget", "fset", "fdel", "func", "args", "keywords", "dispatcher")
_TO_CLASSES = frozenset({"type", "__class__", "__mro__"})


class Classes:
    """The classes of one recorder, and the bases of these.

    Attributes:
      registers: of each class.
      names: those that running code may look up on any class.
      before: what classes, and functions with attributes, had when they were reached.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.registers: dict[type, int] = {}
        self.names: set[str] = set()
        self.before: dict[Any, dict[str, Any]] = {}
        self._recorder: Recorder = weakref.proxy(recorder)  # which holds this, and the user's objects
        self._noted: list[tuple[type, str]] = []
        self._takes_values = False
        self._open: set[type] = set()  # classes that code can get at; of others it has instances only
        self._named: list[tuple[int, Any]] = []  # modules and functions, whose attributes count if they are named

    def of_instance(self, kind: type, instance: int, is_open: bool = False) -> None:
        """Takes in the class of an object."""
        known = self._recorder.register_of(kind)
        if known is None:
            known = self._recorder.add(kind, outside=True)
            self._recorder.edges.append(Edge(instance, "class", None, "is", weakref.ref(kind), known))
        self.take(known, kind, is_open or not self.names.isdisjoint(_TO_CLASSES))

    def take(self, register: int, kind: type, is_open: bool, makes: bool = False) -> None:
        """Takes in a class with its bases.

        Args:
          register: its own.
          kind: the class.
          is_open: whether running code can get at the class, and so at its attributes, and not only at instances.
          makes: whether it was reached by itself, so that running code may make instances.
        """
        for i, base in enumerate(kind.__mro__):
            if base is object or not is_users_class(base):
                continue
            if base not in self.registers:
                self.registers[base] = register if base is kind else self._base(register, i, base)
                self.before[base] = dict(vars(base))
                for name, child in self.before[base].items():
                    if _is_special(name) and name not in _HOOKED and (name not in _MAKING or can_tell()):
                        self._when_it_runs(base, name, child)
                for noted in list(self._noted):  # for another class
                    self._not_hidden(kind, *noted)
            for name in _MAKING & vars(base).keys() if makes and not can_tell() else ():
                self._when_it_runs(base, name, vars(base)[name])
            if is_open and base not in self._open:
                self._open.add(base)
                self._named_on(base, self.names)

    def add_names(self, names: Iterable[str]) -> None:
        """Names that running code may look up on any class."""
        new = set(names) - self.names
        self.names.update(new)
        if not new.isdisjoint(_TO_CLASSES):
            for kind in list(self.registers):
                self.take(self.registers[kind], kind, is_open=True)
        for base in list(self._open):
            self._named_on(base, new)
        for register, value in list(self._named if new else ()):
            self._recorder.looks_into(register, value, new)
        if new:
            self._recorder.names_appear(new)

    def take_named(self, register: int, value: Any) -> None:
        """Takes in a module that was found in a variable or a container, or a function with attributes."""
        self._named.append((register, value))
        if isinstance(value, types.FunctionType):
            self.before[value] = dict(value.__dict__)
        self._recorder.looks_into(register, value, tuple(self.names))

    def add_values(self) -> None:
        """Names may be computed: of each class, all attributes count that are neither functions nor descriptors."""
        self._takes_values = True
        for base in list(self._open):
            self._named_on(base, ())

    def look_up(self, kind: type, name: str) -> None:
        """Notes an attribute that an instance has from its class."""
        for base in kind.__mro__:
            if name in vars(base):
                if base in self.registers:
                    self.attribute(base, name)
                return

    def attribute(self, base: type, name: str) -> None:
        """Notes an attribute of a class."""
        register, recorder, child = self.registers[base], self._recorder, vars(base)[name]
        if not recorder.is_new(register, name):
            return
        if isinstance(child, types.FunctionType):
            if child.__code__.co_filename == "<string>" and not is_users_function(child):
                return
            recorder.reach(register, "dict", name, child, outside=True)
        elif isinstance(child, _DESCRIPTORS) and (known := recorder.register_of(child)) is not None:
            recorder.edges.append(Edge(register, "dict", name, "same", known, -1))  # two names for one property
        elif isinstance(child, _DESCRIPTORS):
            place = recorder.add(child, outside=True)
            recorder.edges.append(Edge(register, "dict", name, "type", weakref.ref(type(child)), place))
            for part in _PARTS:
                if (inner := getattr(child, part, None)) is not None:
                    recorder.reach(place, "attr", part, inner, outside=True)
        elif isinstance(child, (types.MemberDescriptorType, types.GetSetDescriptorType)) or _is_special(name):
            return
        else:
            recorder.reach(register, "dict", name, child, outside=True)
        self._noted.append((base, name))
        for kind in list(self.registers):
            self._not_hidden(kind, base, name)

    def _named_on(self, base: type, names: Iterable[str]) -> None:
        found = vars(base)
        for name in [name for name in names if name in found and not _is_special(name)]:
            self._when_it_runs(base, name, found[name])
        for name, child in list(found.items()) if self._takes_values else ():
            if not _is_special(name) and not isinstance(child, types.FunctionType) and not hasattr(child, "__get__"):
                self.attribute(base, name)

    def _when_it_runs(self, base: type, name: str, child: Any) -> None:
        """Functions count once they run, everything else at once."""
        functions = list(_functions_of(child))
        for fun in functions:
            self._recorder.when_it_runs(fun.__code__, self.attribute, base, name)
        if not functions:
            self.attribute(base, name)

    def _base(self, register: int, i: int, base: type) -> int:
        known = self._recorder.register_of(base)
        if known is None:
            known = self._recorder.add(base, outside=True)
            self._recorder.edges.append(Edge(register, "mro", i, "is", weakref.ref(base), known))
        return known

    def _not_hidden(self, kind: type, base: type, name: str) -> None:
        """No class that is looked at before this one has an attribute of this name."""
        for cls in kind.__mro__[: kind.__mro__.index(base)] if base in kind.__mro__ else ():
            register = self.registers.get(cls)
            if register is not None and name not in vars(cls) and self._recorder.is_new(register, f"no {name}"):
                self._recorder.edges.append(Edge(register, "attr", name, "absent", None, -1))


def _is_special(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _functions_of(child: Any) -> Iterator[types.FunctionType]:
    """The functions that are run for an attribute of a class."""
    parts = [getattr(child, part, None) for part in _PARTS] if isinstance(child, _DESCRIPTORS) else [child]
    return (part for part in parts if isinstance(part, types.FunctionType))
