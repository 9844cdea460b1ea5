"""What counts as the structure of the objects that a function gets: recorded while the function is traced.

The objects that a function gets are to its trace what arrays are: only their type counts, and their type is their
structure. A `Recorder` listens during one trace. It starts from the *roots*, the function and the objects among its
arguments, and notes *edges*: how a value was come by from an object that was reached before (an attribute, an item, a
variable that a function closes over), and what has to hold of it. Each object gets a number, its *register*; two
ways to one object are an edge and an alias. Of an object, the attributes that the trace looked up or set count, in
vain or not; of a container, all of it once it is reached; of a function, what it closes over, its defaults and the
global names that it looks up. What the trace never looks at splits no trace.

Invariant: no edge keeps an object alive. Classes, functions' code and objects that count by identity are held weakly.
"""

from __future__ import annotations

import builtins
import collections
import datetime
import decimal
import enum
import fractions
import functools
import pathlib
import re
import sys
import types
import uuid
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from .activation import activate, pending
from .cells import Cells
from .find import names_of
from .foreign import active, attributes_of, cells_of
from .hooks import hook, is_hooked, listening, unhook
from .jaxcompat import has_tracer
from .library import is_of_library, is_open_class, is_ours, is_users_class, is_users_function, is_users_module
from .state import State

#: As `id`, which is a call of its own kind: with JAX imported an audit hook makes it cost 0.2 us.
identity = object.__hash__
MISSING: Any = object()
_ATOMS = frozenset({
    str, bytes, int, float, complex, bool, type(None), type(Ellipsis), type(NotImplemented), range, slice,
    datetime.date, datetime.datetime, datetime.time, datetime.timedelta, datetime.timezone, decimal.Decimal,
    fractions.Fraction, re.Pattern, uuid.UUID, type(pathlib.Path()), pathlib.PurePosixPath, pathlib.PureWindowsPath,
    jax.sharding.PartitionSpec, types.EllipsisType,
})  # fmt: skip
#: Equal ones may still differ in what they show: 0.0 and -0.0, Decimal("1.0") and Decimal("1.00"), range(0, 3, 2).
_BY_TEXT = (
    float, complex, np.generic, decimal.Decimal, range, slice, datetime.datetime, datetime.time,
)  # fmt: skip
_SEQUENCES = (list, tuple, collections.deque)
_MAPPINGS = (dict, collections.OrderedDict, collections.defaultdict, types.MappingProxyType, collections.Counter)
_SETS = (set, frozenset)
#: Classes of the standard library whose instances hold what the user put there.
_HOLDERS = (types.SimpleNamespace, collections.UserDict, collections.UserList, collections.ChainMap)
_WEAK = (weakref.WeakKeyDictionary, weakref.WeakValueDictionary, weakref.WeakSet)
_SMALL = 4096  # bytes: NumPy arrays up to this size are compared by content
_MANY = 32  # plain values in a container: from here on compared at once
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


class Edge(NamedTuple):
    """One step from an object to a value, and what must hold of the value.

    Attributes:
      parent: the register of the object; -1 for a root.
      how: the kind of step: "root", "attr", "dict" (an entry of `__dict__`), "item", "nth" and "nthvalue" (in the
        order of iteration), "cell", "global", "method" (the function behind a bound method), "class", "mro", "call",
        "reader" (what a function gives for it: the handle of a cell of another framework).
      key: the name, index or key; of a cell, its number and name; the function of a "reader".
      what: the kind of condition: "plain" (equal and of equal type), "plains" (all elements are), "same" (an alias),
        "object" and "state" (of a class), "sequence", "mapping", "array" (equal content), "is" (the very
        object), "code" (a function of this code), "type", "absent" (no attribute of the instance), "nowhere" (no
        attribute at all), "unset" (a slot, variable or global name without a value).
      argument: what the condition compares with.
      register: of the value; -1 when it gets none.
    """

    parent: int
    how: str
    key: Any
    what: str
    argument: Any
    register: int


def is_plain(value: Any) -> bool:
    """Whether a value is an immutable one that counts by its type and value."""
    kind = type(value)
    if kind in _ATOMS or isinstance(value, enum.Enum | np.dtype | np.generic | str | bytes | int | float):
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


class Recorder:
    """Listens to one trace.

    Args:
      roots: the function, and the objects among its arguments.

    Attributes:
      objects: what was reached, by register; held while the trace is made.
      edges: in the order of discovery, so that a parent comes before what was reached from it.
      outside: the registers that were reached through the function, a class or a module, not through an argument.
    """

    def __init__(self, roots: Sequence[Any]) -> None:
        self.roots: tuple[Any, ...] = tuple(roots)
        self.objects: list[Any] = []
        self.edges: list[Edge] = []
        self.outside: set[int] = set()
        self._registers: dict[int, int] = {}
        self._looked_up: dict[int, set[str]] = {}
        self._sets: list[tuple[int, str, Any]] = []  # with the value that the attribute had
        self._hooked: dict[type, bool] = {}
        self._classes: dict[type, int] = {}
        self._orders: list[tuple[type, ...]] = []  # in which attributes of a class are looked up
        self._of_classes: list[tuple[type, str]] = []
        self._modules: dict[int, types.ModuleType] = {}
        self._names: set[str] = set()
        self._waiting: dict[str, list[tuple[type, int]]] = {}  # class attributes, by the name that would look them up
        self._is_busy = False
        self._takes_all = False
        self._unseen: dict[int, frozenset[str]] = {}  # attributes of cells that do not count

    def __enter__(self) -> Recorder:
        if pending:
            activate()
        listening.listeners = (*listening.listeners, self)
        try:
            for i, root in enumerate(self.roots):
                self._reach(-1, "root", i, root, outside=i == 0)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: Any) -> None:
        listening.listeners = tuple(x for x in listening.listeners if x is not self)
        for cls, listens in self._hooked.items():
            if listens:
                unhook(cls)
        self._hooked = {}

    def register_of(self, obj: Any) -> int | None:
        """The register of an object that was reached."""
        return self._registers.get(identity(obj))

    def take_all(self, register: int) -> None:
        """From here on all attributes count: code that runs later looks at the object unseen."""
        self._takes_all = True
        self._all_attributes(register, self.objects[register])

    # -- what the hooks tell

    def looks_up(self, obj: Any, name: str) -> None:
        """Notes what the attribute is before the trace gets it."""
        register = self._registers.get(identity(obj))
        if register is None or self._is_busy:
            return
        looked_up = self._looked_up.setdefault(register, set())
        if name in looked_up:
            return
        looked_up.add(name)
        self._is_busy = True  # what follows looks into the object, too
        try:
            self._attribute(register, obj, name)
        finally:
            self._is_busy = False

    def sets(self, obj: Any, name: str) -> None:
        """Notes what the attribute was before."""
        register = self._registers.get(identity(obj))
        if register is None or self._is_busy:
            return
        self.looks_up(obj, name)
        self._sets.append((register, name, instance_attribute(obj, name)))

    # -- reaching

    def _reach(self, parent: int, how: str, key: Any, value: Any, outside: bool = False) -> None:
        """Adds the edge to a value, and follows it as far as all of it counts."""
        if is_plain(value):
            if type(value) in _ATOMS or isinstance(value, enum.Enum) or not _instance_dict(value):
                self.edges.append(Edge(parent, how, key, "plain", value, -1))
            else:  # a number or string of the user's own class, with attributes
                self.edges.append(Edge(parent, how, key, "plain", value, len(self.objects)))
                self._registers[identity(value)] = len(self.objects)
                self.objects.append(value)
                self._all_attributes(len(self.objects) - 1, value)
            return
        known = self._registers.get(identity(value))
        if known is not None:
            self.edges.append(Edge(parent, how, key, "same", known, -1))
            return
        register = self._registers[identity(value)] = len(self.objects)
        self.objects.append(value)
        if outside or parent in self.outside:
            self.outside.add(register)
        place = len(self.edges)
        self.edges.append(Edge(parent, how, key, "", None, register))
        what, argument = self._visit(register, value)
        self.edges[place] = Edge(parent, how, key, what, argument, register)

    def _visit(self, register: int, value: Any) -> tuple[str, Any]:
        """The condition on a value, after its children were reached."""
        kind: Any = type(value)
        if active.has_cells and not isinstance(value, State | type) and (cells := cells_of(value)) is not None:
            return self._cell(register, value, cells)
        if isinstance(value, State):
            if is_users_class(kind):
                self._listen_to(register, value)
            return "state", (weakref.ref(kind), value._static)
        if kind is np.ndarray and value.nbytes <= _SMALL and not value.dtype.hasobject:
            return "array", (value.dtype, value.shape, value.tobytes())
        if kind in _SEQUENCES:
            return self._sequence(register, value)
        if kind in _MAPPINGS:
            return self._mapping(register, value)
        if kind in _SETS:
            return self._set(register, value)
        if isinstance(value, types.FunctionType):
            return self._function(register, value)
        if kind is types.MethodType:
            self._reach(register, "attr", "__func__", value.__func__)
            self._reach(register, "attr", "__self__", value.__self__)
            return "type", weakref.ref(kind)
        if isinstance(value, functools.partial):
            for name in ("func", "args", "keywords"):
                self._reach(register, "attr", name, getattr(value, name))
            return "type", weakref.ref(kind)
        if isinstance(value, type):
            self._class(register, value, makes=True)
            return "is", weakref.ref(value)
        if isinstance(value, weakref.ref):
            self._reach(register, "call", None, value())
            return "type", weakref.ref(kind)
        if kind in _WEAK:
            self._reach(register, "attr", "data", value.data)
            return "type", weakref.ref(kind)
        if kind in (types.BuiltinFunctionType, types.MethodWrapperType):  # a method of a list, for example
            self._reach(register, "attr", "__self__", value.__self__)
            self._reach(register, "attr", "__name__", value.__name__)
            return "type", weakref.ref(kind)
        if isinstance(value, types.ModuleType) and is_users_module(value):
            self._module(register, value, self._names)
            return "is", weakref.ref(value)
        if is_ours(kind):
            return self._transformed(register, value)
        if is_open_class(kind) or isinstance(value, _HOLDERS):
            return self._object(register, value)
        wrapped = getattr(value, "__wrapped__", None) if not isinstance(value, jax.Array | np.ndarray) else None
        if isinstance(wrapped, types.FunctionType):  # `functools.lru_cache` and the like
            self._reach(register, "attr", "__wrapped__", wrapped)
        return "is", reference(value)

    def _cell(self, register: int, value: Any, cells: Cells) -> tuple[str, Any]:
        """A cell of another framework: its handle, and what else the trace looks up of it."""
        state = cells.state_of(value)
        self._unseen[register] = cells.unseen
        if state is not None:
            self._reach(register, "reader", cells, state)
            state._name = state._name or self._path(register)
        if is_open_class(type(value)):
            return self._object(register, value)
        return "type", weakref.ref(type(value))

    def _path(self, register: int) -> str | None:
        """The way to an object that is being visited, from its root: `linear.kernel`."""
        above = {edge.register: edge for edge in self.edges if edge.register >= 0}
        steps: list[str] = []
        while register in above and above[register].parent >= 0:
            edge = above[register]
            shown = {"attr": edge.key, "dict": edge.key, "item": edge.key, "global": edge.key}.get(edge.how)
            if edge.how == "cell":
                shown = edge.key[1]
            if shown is not None and not str(shown).startswith("__"):
                steps.append(str(shown))
            register = edge.parent
        return ".".join(reversed(steps)) or None

    def _sequence(self, register: int, value: Any) -> tuple[str, Any]:
        if len(value) >= _MANY and all(map(is_plain, value)):
            return "plains", (type(value), tuple(value))
        for i, child in enumerate(value):
            self._reach(register, "item", i, child)
        if isinstance(value, collections.deque):
            self._reach(register, "attr", "maxlen", value.maxlen)
        return "sequence", (type(value), len(value))

    def _mapping(self, register: int, value: Any) -> tuple[str, Any]:
        keys = list(value)
        if isinstance(value, collections.defaultdict):
            self._reach(register, "attr", "default_factory", value.default_factory)
        if not all(map(is_plain, keys)):
            for i, (key, child) in enumerate(value.items()):
                self._reach(register, "nth", i, key)
                self._reach(register, "nthvalue", i, child)
            return "sequence", (type(value), len(value))
        if len(keys) >= _MANY and all(map(is_plain, value.values())):
            return "plains", (type(value), tuple(value.items()))
        for key in keys:
            self._reach(register, "item", key, value[key])
        return "mapping", (type(value), keys)

    def _set(self, register: int, value: Any) -> tuple[str, Any]:
        if all(map(is_plain, value)):
            return "plains", (type(value), tuple(value))
        for i, child in enumerate(value):
            self._reach(register, "nth", i, child)
        return "sequence", (type(value), len(value))

    def _function(self, register: int, fun: types.FunctionType) -> tuple[str, Any]:
        for i, cell in enumerate(fun.__closure__ or ()):
            try:
                child = cell.cell_contents
            except ValueError:  # the variable is not bound yet
                self.edges.append(Edge(register, "cell", (i, fun.__code__.co_freevars[i]), "unset", None, -1))
                continue
            self._reach(register, "cell", (i, fun.__code__.co_freevars[i]), child, outside=True)
        for name in ("__defaults__", "__kwdefaults__"):
            if getattr(fun, name):
                self._reach(register, "attr", name, getattr(fun, name), outside=True)
        if is_users_function(fun):
            looked_up, used = names_of(fun.__code__)
            self._add_names(used)
            for name in looked_up:
                if name in fun.__globals__:
                    self._global(register, "global", name, fun.__globals__[name], used)
                elif not hasattr(builtins, name):
                    self.edges.append(Edge(register, "global", name, "unset", None, -1))
        return "code", weakref.ref(fun.__code__)

    def _global(self, register: int, how: str, name: str, value: Any, used: Sequence[str]) -> None:
        """A global name, or an attribute of a module that one leads to."""
        if isinstance(value, types.ModuleType):
            if is_users_module(value) and value is not sys.modules.get("__main__"):
                known = self._registers.get(identity(value))
                if known is None:
                    known = self._registers[identity(value)] = len(self.objects)
                    self.objects.append(value)
                    self.outside.add(known)
                    self.edges.append(Edge(register, how, name, "is", weakref.ref(value), known))
                self._module(known, value, used)
            return
        if isinstance(value, types.FunctionType) and not is_users_function(value) and is_of_library(value):
            return
        if isinstance(value, types.BuiltinFunctionType) or (isinstance(value, type) and not is_users_class(value)):
            return
        self._reach(register, how, name, value, outside=True)

    def _module(self, register: int, module: types.ModuleType, used: Iterable[str]) -> None:
        """The attributes of a module that the code which runs has a name for."""
        self._modules[register] = module
        looked_up = self._looked_up.setdefault(register, set())
        for name in [name for name in used if name in vars(module) and name not in looked_up]:
            looked_up.add(name)
            self._global(register, "attr", name, vars(module)[name], tuple(used))

    def _transformed(self, register: int, value: Any) -> tuple[str, Any]:
        """A function under a transform of this package: its options, and the function."""
        wrapped = getattr(value, "__wrapped__", MISSING)
        if wrapped is MISSING:
            return "is", reference(value)
        for name in ("_options", "_rules"):  # of a function with a derivative rule
            part = vars(value).get(name) if hasattr(value, "__dict__") else None
            if part:
                self._reach(register, "attr", name, part)
        self._reach(register, "attr", "__wrapped__", wrapped)
        return "type", weakref.ref(type(value))

    def _object(self, register: int, value: Any) -> tuple[str, Any]:
        self._listen_to(register, value)
        kind: Any = type(value)
        if isinstance(value, tuple | list):
            for i, child in enumerate(value):
                self._reach(register, "item" if isinstance(value, tuple) else "nth", i, child)
        elif isinstance(value, dict):
            for i, (key, child) in enumerate(dict.items(value)):
                self._reach(register, "nth", i, key)
                self._reach(register, "nthvalue", i, child)
        elif isinstance(value, set | frozenset):
            for i, child in enumerate(value):
                self._reach(register, "nth", i, child)
        else:
            return "object", (weakref.ref(kind), -1)
        return "object", (weakref.ref(kind), len(value))

    def _listen_to(self, register: int, value: Any) -> None:
        """From now on look-ups on instances of this class are noted; all attributes count where that cannot be."""
        kind = type(value)
        if kind not in self._hooked and not self._takes_all:
            self._hooked[kind] = hook(kind)
        if self._takes_all or not self._hooked[kind] or _own_getattribute(kind):
            self._all_attributes(register, value)
        if kind not in self._classes and is_users_class(kind):
            place = len(self.objects)
            self._class_register(kind, register, place)

    def _all_attributes(self, register: int, value: Any) -> None:
        attributes, cells = _instance_dict(value), attributes_of(type(value)) if active.has_cells else {}
        if attributes is not None and cells:  # the values of cells do not count
            self._reach(register, "reader", names_of_attributes, names_of_attributes(value))
            for name in list(attributes):
                self._attribute(register, value, name)
        elif attributes is not None:
            self._reach(register, "attr", "__dict__", attributes)
        for name in cells:
            self._attribute(register, value, name)
        for name in _slot_names(type(value)):
            self._attribute(register, value, name)

    def _class_register(self, kind: type, instance: int, register: int) -> None:
        known = self._registers.get(identity(kind))
        if known is None:
            self._registers[identity(kind)] = register
            self.objects.append(kind)
            self.outside.add(register)
            self.edges.append(Edge(instance, "class", None, "is", weakref.ref(kind), register))
            known = register
        self._class(known, kind, makes=False)

    def _class(self, register: int, kind: type, makes: bool) -> None:
        """The attributes of a class that are looked up by a name which the code that runs has in it."""
        meta: Any = type(kind)
        if kind not in self._classes:
            self._orders.append((*kind.__mro__, *meta.__mro__))
        for i, base in enumerate(kind.__mro__):
            if base is object or not is_users_class(base):
                continue
            if base not in self._classes:
                if base is kind:
                    self._classes[base] = register
                else:
                    self._classes[base] = self._base_register(register, i, base)
                for name, child in list(vars(base).items()):
                    if name.startswith("__") and name.endswith("__"):
                        if name not in _SILENT and (makes or name not in _MAKING):
                            self._class_attribute(base, name, child)
                    elif name in self._names:
                        self._class_attribute(base, name, child)
                    else:
                        self._waiting.setdefault(name, []).append((base, self._classes[base]))
            elif makes:
                for name in _MAKING & vars(base).keys():
                    self._class_attribute(base, name, vars(base)[name])
        for base, name in list(self._of_classes):  # noted for another class
            self._not_hidden((*kind.__mro__, *meta.__mro__), base, name)
        if is_users_class(type(kind)) and type(kind) not in self._classes:
            self._class_register(type(kind), register, len(self.objects))

    def _base_register(self, register: int, i: int, base: type) -> int:
        known = self._registers.get(identity(base))
        if known is not None:
            return known
        known = self._registers[identity(base)] = len(self.objects)
        self.objects.append(base)
        self.outside.add(known)
        self.edges.append(Edge(register, "mro", i, "is", weakref.ref(base), known))
        return known

    def _class_attribute(self, base: type, name: str, child: Any) -> None:
        register = self._classes[base]
        looked_up = self._looked_up.setdefault(register, set())
        if name in looked_up:
            return
        looked_up.add(name)
        if isinstance(child, types.FunctionType):
            if not name.startswith("__") or (is_users_function(child) and child.__code__.co_filename != "<string>"):
                self._reach(register, "dict", name, child, outside=True)
        elif isinstance(child, _DESCRIPTORS):
            place = len(self.objects)
            self.objects.append(child)
            self._registers[identity(child)] = place
            self.outside.add(place)
            self.edges.append(Edge(register, "dict", name, "type", weakref.ref(type(child)), place))
            for part in _PARTS:
                inner = getattr(child, part, None)
                if inner is not None:
                    self._reach(place, "attr", part, inner, outside=True)
        elif isinstance(child, types.MemberDescriptorType | types.GetSetDescriptorType):
            return
        elif not (name.startswith("__") and name.endswith("__")):
            self._reach(register, "dict", name, child, outside=True)
        else:
            return
        self._of_classes.append((base, name))
        for order in self._orders:
            self._not_hidden(order, base, name)

    def _not_hidden(self, order: tuple[type, ...], base: type, name: str) -> None:
        """No class that is looked at before this one has an attribute of this name."""
        for cls in order[: order.index(base)] if base in order else ():
            register = self._classes.get(cls)
            if register is not None and name not in vars(cls):
                edge = Edge(register, "attr", name, "absent", None, -1)
                looked_up = self._looked_up.setdefault(register, set())
                if f"no {name}" not in looked_up:
                    looked_up.add(f"no {name}")
                    self.edges.append(edge)

    def _add_names(self, names: Iterable[str]) -> None:
        """Names that the code which runs may look up on any class."""
        for name in names:
            if name not in self._names:
                self._names.add(name)
                for base, _ in self._waiting.pop(name, ()):
                    if name in vars(base):
                        self._class_attribute(base, name, vars(base)[name])

    # -- attributes

    def _attribute(self, register: int, obj: Any, name: str) -> None:
        """The edge for an attribute of an instance, as Python would look it up."""
        if name in self._unseen.get(register, ()):
            return
        kind = type(obj)
        if name == "__dict__":
            if not _asks_for_its_own_ends():
                attributes = _instance_dict(obj)
                if attributes is not None:
                    self._reach(register, "attr", "__dict__", attributes)
            else:
                self._looked_up[register].discard(name)
            return
        if name in ("__reduce__", "__getstate__"):  # as `copy.copy` does
            self._all_attributes(register, obj)
            return
        found = _class_lookup(kind, name)
        if isinstance(obj, State) and found is not MISSING and found is _class_lookup(State, name):
            if name in ("name", "metadata"):
                self._reach(register, "attr", f"_{name}", getattr(obj, f"_{name}"))
            return
        if isinstance(found, Cells):
            state = found.state_of(obj)
            value = found.raw(obj) if state is None else state
            if state is not None:
                self._reach(register, "reader", found, state)
            elif value is MISSING:
                self.edges.append(Edge(register, "attr", name, "nowhere", None, -1))
            else:
                self._reach(register, "attr", name, value)
            return
        if found is not MISSING and hasattr(type(found), "__set__"):
            if isinstance(found, types.MemberDescriptorType):
                value = instance_attribute(obj, name)
                if value is MISSING:
                    self.edges.append(Edge(register, "attr", name, "unset", None, -1))
                else:
                    self._reach(register, "attr", name, value)
            else:
                self._from_class(kind, name)
            return
        attributes = _instance_dict(obj)
        if attributes is not None and name in attributes:
            how = "dict" if _computes_attributes(kind) else "attr"
            self._reach(register, how, name, attributes[name])
        elif found is MISSING:
            if not (name.startswith("__") and name.endswith("__")):
                what = "unset" if _computes_attributes(kind) else "nowhere"
                self.edges.append(Edge(register, "attr", name, what, None, -1))
        elif isinstance(found, types.FunctionType):
            if not (name.startswith("__") and name.endswith("__")):
                self._reach(register, "method", name, found, outside=True)
        elif hasattr(type(found), "__get__"):
            if attributes is not None:
                self.edges.append(Edge(register, "attr", name, "absent", None, -1))
            self._from_class(kind, name)
        elif not (name.startswith("__") and name.endswith("__")):
            self._reach(register, "attr", name, found)

    def _from_class(self, kind: type, name: str) -> None:
        for base in kind.__mro__:
            if name in vars(base):
                if base in self._classes:
                    self._class_attribute(base, name, vars(base)[name])
                return

    # -- after the trace

    def leaked(self) -> tuple[Any, str, bool] | None:
        """An attribute that the trace set and that now holds a tracer, and whether it held a state before.

        All such attributes get their earlier values again, and containers of the arguments their earlier contents.
        """
        before: dict[tuple[int, str], Any] = {}
        for register, name, value in self._sets:
            before.setdefault((register, name), value)
        found = None
        for (register, name), value in before.items():
            obj = self.objects[register]
            if isinstance(_class_lookup(type(obj), name), Cells):
                continue  # frames take care of it
            now = instance_attribute(obj, name)
            if now is MISSING or now is value or isinstance(now, State) or not _leaks(now):
                continue
            found = found or (obj, name, isinstance(value, State))
            if value is MISSING:
                object.__delattr__(obj, name)
            else:
                object.__setattr__(obj, name, value)
        return found or self._leaked_into_container()

    def _leaked_into_container(self) -> tuple[Any, str, bool] | None:
        found = None
        for edge in self.edges:
            if edge.what not in ("sequence", "mapping", "plains") or edge.register in self.outside:
                continue
            container = self.objects[edge.register]
            if not isinstance(container, list | dict | collections.deque) or not any(
                map(self._is_new, _values(container))
            ):
                continue
            owner = self.objects[edge.parent] if edge.parent >= 0 else container
            name = edge.key if edge.how == "attr" else f"[{edge.key!r}]"
            found = found or (owner, name, False)
            contents = self._contents(edge)
            container.clear()
            container.update(contents) if isinstance(container, dict) else container.extend(contents)
        return found

    def _is_new(self, value: Any) -> bool:
        return identity(value) not in self._registers and _leaks(value)

    def _contents(self, edge: Edge) -> Any:
        """What a container held when it was reached."""
        if edge.what == "plains":
            return edge.argument[1]
        inside = [e for e in self.edges if e.parent == edge.register and e.how in ("item", "nth", "nthvalue")]
        values = [e.argument if e.what == "plain" else self.objects[max(e.register, 0)] for e in inside]
        values = [self.objects[e.argument] if e.what == "same" else v for e, v in zip(inside, values, strict=True)]
        if edge.what == "mapping":
            return zip([e.key for e in inside], values, strict=True)
        return zip(values[::2], values[1::2], strict=True) if inside and inside[-1].how == "nthvalue" else values


def _values(container: Any) -> Iterable[Any]:
    return container.values() if isinstance(container, dict) else container


def _leaks(value: Any) -> bool:
    try:
        return has_tracer(value)
    except Exception:
        return False


def names_of_attributes(obj: Any) -> tuple[str, ...]:
    """Which attributes an instance has."""
    return tuple(_instance_dict(obj) or ())


def _instance_dict(obj: Any) -> dict[str, Any] | None:
    try:
        found = object.__getattribute__(obj, "__dict__")
    except AttributeError:
        return None
    return found if isinstance(found, dict) else None


def instance_attribute(obj: Any, name: str) -> Any:
    """The value that the instance itself has, past properties and classes; MISSING when it has none."""
    found = _class_lookup(type(obj), name)
    if isinstance(found, types.MemberDescriptorType):
        try:
            return found.__get__(obj, type(obj))
        except AttributeError:
            return MISSING
    attributes = _instance_dict(obj)
    return MISSING if attributes is None else attributes.get(name, MISSING)


def _class_lookup(kind: type, name: str) -> Any:
    for base in kind.__mro__:
        if name in base.__dict__:
            return base.__dict__[name]
    return MISSING


@functools.lru_cache(maxsize=1024)
def _slot_names(kind: type) -> tuple[str, ...]:
    return tuple(
        name
        for base in kind.__mro__
        for name, found in vars(base).items()
        if isinstance(found, types.MemberDescriptorType) and not name.startswith("__")
    )


def _computes_attributes(kind: type) -> bool:
    """Whether looking up an attribute that is not there would run the user's code."""
    return _class_lookup(kind, "__getattr__") is not MISSING or _own_getattribute(kind)


def _own_getattribute(kind: type) -> bool:
    """Whether all look-ups run the user's code, which finds values in ways that are not seen."""
    for base in kind.__mro__:
        own = vars(base).get("__getattribute__")
        own = getattr(own, "__wrapped__", own) if is_hooked(base) else own
        if own is not None:
            return own is not object.__getattribute__
    return False


def _asks_for_its_own_ends() -> bool:
    """What the instance's `__dict__` holds does not count when only one entry of it is looked for.

    So do `functools.cached_property`, and the match of a structure within the trace.
    """
    module = sys._getframe(4).f_globals.get("__name__", "")
    return module == "functools" or module.partition(".")[0] == __name__.partition(".")[0]
