"""What of the user's classes a trace depends on: the attributes that the code which runs has a name for."""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from .edges import Edge
from .library import is_users_class, is_users_function

if TYPE_CHECKING:
    from .recorder import Recorder

# Special methods that run without a look-up of their name on the instance.
_SILENT = frozenset({
    "__repr__", "__str__", "__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__sizeof__", "__dir__",
    "__del__", "__format__", "__init_subclass__", "__class_getitem__", "__subclasshook__", "__copy__", "__deepcopy__",
    "__getattribute__", "__setattr__", "__delattr__",
})  # fmt: skip
_MAKING = frozenset({"__init__", "__new__", "__post_init__"})
_DESCRIPTORS = (
    staticmethod, classmethod, property, functools.cached_property, functools.partialmethod,
    functools.singledispatchmethod,
)  # fmt: skip
_PARTS = ("__func__", "fget", "fset", "fdel", "func", "args", "keywords", "dispatcher")


_NOTHING = property()  # which is a descriptor


class Classes:
    """The classes of one recorder, and the bases of these.

    Attributes:
      registers: of each class.
      names: those that the code which runs may look up on any class.
      before: what classes, and functions with attributes, had when they were reached.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.registers: dict[type, int] = {}
        self.names: set[str] = set()
        self.before: dict[Any, dict[str, Any]] = {}
        self._recorder: Recorder = weakref.proxy(recorder)  # which holds this, and the user's objects
        self._orders: list[tuple[type, ...]] = []  # in which attributes of a class are looked up
        self._noted: list[tuple[type, str]] = []
        self._takes_values = False
        self._waiting: dict[str, list[type]] = {}  # class attributes, by the name that would look them up
        self._named: list[tuple[int, Any]] = []  # modules and functions, whose attributes count if they are named

    def of_instance(self, kind: type, instance: int) -> None:
        """Takes in the class of an object."""
        known = self._recorder.register_of(kind)
        if known is None:
            known = self._recorder.add(kind, outside=True)
            self._recorder.edges.append(Edge(instance, "class", None, "is", weakref.ref(kind), known))
        self.take(known, kind, makes=False)

    def take(self, register: int, kind: type, makes: bool) -> None:
        """Takes in a class with its bases.

        Args:
          register: its own.
          kind: the class.
          makes: whether the function may make instances.
        """
        meta: Any = type(kind)
        if kind not in self.registers:
            self._orders.append((*kind.__mro__, *meta.__mro__))
        for i, base in enumerate(kind.__mro__):
            if base is object or not is_users_class(base):
                continue
            if base not in self.registers:
                self.registers[base] = register if base is kind else self._base(register, i, base)
                self.before[base] = dict(vars(base))
                for name, child in list(vars(base).items()):
                    if name.startswith("__") and name.endswith("__"):
                        if name not in _SILENT and (makes or name not in _MAKING):
                            self._attribute(base, name, child)
                    elif name in self.names:
                        self._attribute(base, name, child)
                    else:
                        self._waiting.setdefault(name, []).append(base)
                        if self._takes_values:
                            self._value(base, name)
            elif makes:
                for name in _MAKING & vars(base).keys():
                    self._attribute(base, name, vars(base)[name])
        for base, name in list(self._noted):  # for another class
            self._not_hidden((*kind.__mro__, *meta.__mro__), base, name)
        if is_users_class(meta) and meta not in self.registers:
            self.of_instance(meta, register)

    def add_names(self, names: Iterable[str]) -> None:
        """Names that the code which runs may look up on any class."""
        new = [name for name in names if name not in self.names]
        self.names.update(new)
        for name in new:
            for base in self._waiting.pop(name, ()):
                if name in vars(base):
                    self._attribute(base, name, vars(base)[name])
        for register, value in list(self._named if new else ()):
            self._recorder.looks_into(register, value, new)

    def take_named(self, register: int, value: Any) -> None:
        """Takes in a module that was found in a variable or a container, or a function with attributes."""
        self._named.append((register, value))
        if isinstance(value, types.FunctionType):
            self.before[value] = dict(value.__dict__)
        self._recorder.looks_into(register, value, tuple(self.names))

    def add_values(self) -> None:
        """Names may be computed: of each class, all attributes count that are neither functions nor descriptors."""
        self._takes_values = True
        for name, bases in list(self._waiting.items()):
            for base in bases:
                self._value(base, name)

    def _value(self, base: type, name: str) -> None:
        child = vars(base).get(name, _NOTHING)
        if not isinstance(child, types.FunctionType) and not hasattr(type(child), "__get__"):
            self._attribute(base, name, child)

    def look_up(self, kind: type, name: str) -> None:
        """Notes an attribute that an instance has from its class."""
        for base in kind.__mro__:
            if name in vars(base):
                if base in self.registers:
                    self._attribute(base, name, vars(base)[name])
                return

    def _base(self, register: int, i: int, base: type) -> int:
        known = self._recorder.register_of(base)
        if known is None:
            known = self._recorder.add(base, outside=True)
            self._recorder.edges.append(Edge(register, "mro", i, "is", weakref.ref(base), known))
        return known

    def _attribute(self, base: type, name: str, child: Any) -> None:
        register, recorder = self.registers[base], self._recorder
        if not recorder.is_new(register, name):
            return
        is_special = name.startswith("__") and name.endswith("__")
        if isinstance(child, types.FunctionType):
            if not name.startswith("__") or (is_users_function(child) and child.__code__.co_filename != "<string>"):
                recorder.reach(register, "dict", name, child, outside=True)
        elif isinstance(child, _DESCRIPTORS) and (known := recorder.register_of(child)) is not None:
            recorder.edges.append(Edge(register, "dict", name, "same", known, -1))  # two names for one property
        elif isinstance(child, _DESCRIPTORS):
            place = recorder.add(child, outside=True)
            recorder.edges.append(Edge(register, "dict", name, "type", weakref.ref(type(child)), place))
            for part in _PARTS:
                if (inner := getattr(child, part, None)) is not None:
                    recorder.reach(place, "attr", part, inner, outside=True)
        elif isinstance(child, (types.MemberDescriptorType, types.GetSetDescriptorType)) or is_special:
            return
        else:
            recorder.reach(register, "dict", name, child, outside=True)
        self._noted.append((base, name))
        for order in self._orders:
            self._not_hidden(order, base, name)

    def _not_hidden(self, order: tuple[type, ...], base: type, name: str) -> None:
        """No class that is looked at before this one has an attribute of this name."""
        for cls in order[: order.index(base)] if base in order else ():
            register = self.registers.get(cls)
            if register is not None and name not in vars(cls) and self._recorder.is_new(register, f"no {name}"):
                self._recorder.edges.append(Edge(register, "attr", name, "absent", None, -1))
