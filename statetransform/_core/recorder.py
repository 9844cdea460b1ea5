"""The recorder: which structure of its objects a trace depends on, noted while the function runs.

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

import sys
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from .activation import activate, pending
from .cells import cells_behind
from .edges import Edge
from .foreign import NOT_SET, active, attributes_of, cells_of, own_cells, settings, unseen_of
from .hooks import hook, listening, unhook
from .library import is_users_class
from .lookup import (
    class_lookup,
    computes_attributes,
    instance_attribute,
    instance_dict,
    names_of_attributes,
    own_getattribute,
    owner_of,
    slot_names,
)
from .plain import MISSING, identity, is_atom, is_plain
from .recorded_classes import Classes
from .state import State
from .visits import Visit, take_imports, visit_cell, visit_module, visit_of

_MODULES_OWN = ("functools", __name__.partition(".")[0])  # modules that look into `__dict__` for one entry


class Recorder:
    """Listens to one trace.

    Args:
      roots: the function, and the objects among its arguments.

    Attributes:
      objects: what was reached, by register; held while the trace is made.
      edges: in the order of discovery, so that a parent comes before what was reached from it.
    """

    def __init__(self, roots: Sequence[Any]) -> None:
        self.roots: tuple[Any, ...] = tuple(roots)
        self.objects: list[Any] = []
        self.edges: list[Edge] = []
        self._leading_out: set[int] = set()  # edges by number: to what a function, class or module has, not an object
        self._registers: dict[int, int] = {}
        self._looked_up: dict[int, set[Any]] = {}
        self.changes: list[tuple[int, str, Any]] = []  # attributes set: register, name, and the value before
        self._hooked: dict[type, bool] = {}
        self._tells_all: dict[type, bool] = {}  # whether a class tells of each look-up on its instances
        self._computes: dict[type, bool] = {}
        self._visits: dict[type, Visit] = {}
        self.classes: Classes = Classes(self)
        self.importers: list[int] = []  # functions that import modules
        self._settings: dict[Any, Any] = {}  # of frameworks when the trace began
        self._is_busy = False
        self._takes_all = False
        self._everywhere: set[str] = set()  # names of attributes that are looked up unseen on any object
        self.unseen: dict[int, frozenset[str]] = {}  # attributes of cells, and of what holds them, that do not count
        self.cells: set[int] = set()  # of other frameworks

    def __enter__(self) -> Recorder:
        if pending:
            activate()
        for give in settings:
            self._settings.update(give())
        listening.listeners = (*listening.listeners, self)
        try:
            for i, root in enumerate(self.roots):
                self.reach(-1, "root", i, root, outside=i == 0)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: Any) -> None:
        listening.listeners = tuple(x for x in listening.listeners if x is not self)
        for cls, listens in self._hooked.items():
            if listens:
                unhook(cls)
        self._hooked, self._tells_all, self._settings = {}, {}, {}

    def register_of(self, obj: Any) -> int | None:
        """The register of an object that was reached."""
        return self._registers.get(identity(obj))

    def add(self, obj: Any, outside: bool = False) -> int:
        """Gives an object a register, just before the edge to it is added.

        Args:
          outside: whether that edge leads out of what belongs to its parent, as one to a class or a global name does.
        """
        register = self._registers[identity(obj)] = len(self.objects)
        self.objects.append(obj)
        if outside:
            self._leading_out.add(len(self.edges))
        return register

    def of_arguments(self) -> set[int]:
        """The registers of what belongs to an argument, be it reached through a function, class or module, too."""
        below: dict[int, list[int]] = {}
        for i, edge in enumerate(self.edges):
            if i not in self._leading_out:
                below.setdefault(edge.parent, []).append(edge.argument if edge.what == "same" else edge.register)
        found: set[int] = set()
        waiting = below.get(-1, [])
        while waiting:
            register = waiting.pop()
            if register >= 0 and register not in found:
                found.add(register)
                waiting += below.get(register, ())
        return found

    def is_new(self, register: int, name: Any) -> bool:
        """Whether a name is looked up on an object for the first time."""
        looked_up = self._looked_up.setdefault(register, set())
        if name in looked_up:
            return False
        looked_up.add(name)
        return True

    def reach_late_imports(self) -> None:
        """Adds the edges to modules that the trace was the first to import; its look-ups in these are over."""
        self._takes_all = self._takes_all or bool(self.importers)
        for register in list(self.importers):
            take_imports(self, register, self.objects[register])

    def looks_into(self, register: int, value: Any, names: Iterable[str]) -> None:
        """Adds the edges to attributes of a module or function that the code which runs has a name for."""
        if isinstance(value, types.ModuleType):
            visit_module(self, register, value, names)
            return
        for name in [name for name in names if name in value.__dict__ and self.is_new(register, name)]:
            self.reach(register, "dict", name, value.__dict__[name], outside=True)

    def reach_own_cells(self, used: Iterable[State]) -> None:
        """Adds the edges to states in use that stand for cells which a framework keeps for itself."""
        lost = {identity(state) for state in used if self.register_of(state) is None}
        for reader in own_cells if lost else ():
            state = reader(None)
            if identity(state) in lost:
                self.reach(0, "reader", reader, state, outside=True)

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
        if not self.is_new(register, name):
            return
        self._is_busy = True  # what follows looks into the object, too
        try:
            self._attribute(register, obj, name)
        finally:
            self._is_busy = False

    def sets(self, obj: Any, name: str) -> None:
        """Notes what the attribute was before."""
        register = self._registers.get(identity(obj))
        if register is None or self._is_busy or name in self.unseen.get(register, ()):
            return
        self.looks_up(obj, name)
        self.changes.append((register, name, instance_attribute(obj, name)))

    def asks(self, reader: Callable[[Any], Any]) -> None:
        """Notes what a setting was before the trace."""
        if not self._is_busy and self.is_new(0, reader):
            self.reach(0, "reader", reader, self._settings.get(reader, NOT_SET), outside=True)

    # -- reaching

    def reach(self, parent: int, how: str, key: Any, value: Any, outside: bool = False) -> None:
        """Adds the edge to a value, and follows it as far as all of it counts."""
        if is_plain(value):
            if is_atom(value) or not (instance_dict(value) or is_users_class(type(value))):
                self.edges.append(Edge(parent, how, key, "plain", value, -1))
            else:  # a number or string of the user's own class, with attributes
                register = self.add(value)
                self.edges.append(Edge(parent, how, key, "plain", value, register))
                self._all_attributes(register, value)
                self._take_class_of(register, value)
            return
        known = self._registers.get(identity(value))
        if known is not None:
            if outside:
                self._leading_out.add(len(self.edges))
            self.edges.append(Edge(parent, how, key, "same", known, -1))
            return
        register = self.add(value, outside)
        place = len(self.edges)
        self.edges.append(Edge(parent, how, key, "", None, register))
        what, argument = self._visit(register, value)
        self.edges[place] = Edge(parent, how, key, what, argument, register)

    def _visit(self, register: int, value: Any) -> tuple[str, Any]:
        """The condition on a value, after its children were reached."""
        kind: Any = type(value)
        if active.has_cells and not issubclass(kind, (State, type)) and (cells := cells_of(value)) is not None:
            return visit_cell(self, register, value, cells)
        visit = self._visits.get(kind)
        if visit is None:
            visit = self._visits[kind] = visit_of(kind)
        return visit(self, register, value)

    def listen_to(self, register: int, value: Any) -> None:
        """From now on look-ups on instances of this class are noted; all attributes count where that cannot be."""
        kind = type(value)
        if active.has_nodes and (unseen := unseen_of(kind)):
            self.unseen.setdefault(register, unseen)
        tells_all = self._tells_all.get(kind)
        if tells_all is None:
            if not self._takes_all:
                self._hooked[kind] = hook(kind)
            tells_all = self._tells_all[kind] = self._hooked.get(kind, False) and not own_getattribute(kind)
        if self._takes_all or not tells_all:
            self._all_attributes(register, value)
        self._take_class_of(register, value)
        self._look_up_all(register, value)

    def looks_up_everywhere(self, names: Iterable[str]) -> None:
        """Notes what these attributes are of each object that is listened to, now and later: they are read unseen."""
        self._everywhere.update(names)
        for register, value in enumerate(list(self.objects)):
            if type(value) in self._tells_all:
                self._look_up_all(register, value)

    def _look_up_all(self, register: int, value: Any) -> None:
        for name in sorted(self._everywhere):
            if self.is_new(register, name):
                self._attribute(register, value, name)

    def _take_class_of(self, register: int, value: Any) -> None:
        kind = type(value)
        if kind not in self.classes.registers and is_users_class(kind):
            self.classes.of_instance(kind, register)

    def _all_attributes(self, register: int, value: Any) -> None:
        attributes, cells = instance_dict(value), attributes_of(type(value)) if active.has_cells else {}
        if attributes is not None and (cells or register in self.unseen):  # not all of them count
            self.reach(register, "reader", names_of_attributes, names_of_attributes(value))
            for name in list(attributes):
                self._attribute(register, value, name)
        elif attributes is not None:
            self.reach(register, "attr", "__dict__", attributes)
        for name in cells:
            self._attribute(register, value, name)
        for name in slot_names(type(value)):
            self._attribute(register, value, name)

    # -- attributes

    def _attribute(self, register: int, obj: Any, name: str) -> None:
        """The edge for an attribute of an instance, as Python would look it up."""
        if name in self.unseen.get(register, ()):
            return
        kind = type(obj)
        if name == "__dict__":
            if not _asks_for_its_own_ends():
                attributes = instance_dict(obj)
                if attributes is not None and register in self.unseen:
                    self._all_attributes(register, obj)
                elif attributes is not None:
                    self.reach(register, "attr", "__dict__", attributes)
            else:
                self._looked_up[register].discard(name)
            return
        if name in ("__reduce__", "__getstate__"):  # as `copy.copy` does
            self._all_attributes(register, obj)
            return
        found = class_lookup(kind, name)
        if issubclass(kind, State) and found is not MISSING and found is class_lookup(State, name):
            if name in ("name", "metadata"):
                self.reach(register, "attr", f"_{name}", getattr(obj, f"_{name}"))
            return
        if (cells := cells_behind(found)) is not None:
            state = cells.state_of(obj)
            if state is not None:
                self.reach(register, "reader", cells, state)
            else:
                self._value(register, name, cells.raw(obj), "nowhere")
        elif isinstance(found, types.MemberDescriptorType):
            self._value(register, name, instance_attribute(obj, name), "unset")
        elif found is not MISSING and hasattr(type(found), "__set__"):
            self.classes.look_up(kind, name)
        else:
            self._own_or_of_class(register, obj, name, found)

    def _value(self, register: int, name: str, value: Any, absence: str) -> None:
        """The edge to what a descriptor gives; `absence` where there is nothing."""
        if value is MISSING:
            self.edges.append(Edge(register, "attr", name, absence, None, -1))
        else:
            self.reach(register, "attr", name, value)

    def _own_or_of_class(self, register: int, obj: Any, name: str, found: Any) -> None:
        """The edge to an entry of the instance's `__dict__`, or else to what its class has."""
        kind = type(obj)
        attributes = instance_dict(obj)
        if attributes is not None and name in attributes:
            how = "dict" if self._computes_attributes(kind) else "attr"
            self.reach(register, how, name, attributes[name])
        elif found is MISSING:
            if not (name.startswith("__") and name.endswith("__")):
                what = "unset" if self._computes_attributes(kind) else "nowhere"
                self.edges.append(Edge(register, "attr", name, what, None, -1))
        elif isinstance(found, types.FunctionType):
            if register in self.cells and not is_users_class(owner_of(kind, name)):
                return  # how a framework's own class reads and writes is taken as given
            if not (name.startswith("__") and name.endswith("__")):
                self.reach(register, "method", name, found, outside=True)
        elif hasattr(type(found), "__get__"):
            if attributes is not None:
                self.edges.append(Edge(register, "attr", name, "absent", None, -1))
            self.classes.look_up(kind, name)
        elif not (name.startswith("__") and name.endswith("__")):
            self.reach(register, "attr", name, found, outside=True)

    def _computes_attributes(self, kind: type) -> bool:
        found = self._computes.get(kind)
        if found is None:
            found = self._computes[kind] = computes_attributes(kind)
        return found


def _asks_for_its_own_ends() -> bool:
    """What the instance's `__dict__` holds does not count when only one entry of it is looked for.

    So do `functools.cached_property`, and the match of a structure within the trace.
    """
    module = sys._getframe(4).f_globals.get("__name__", "")
    return module.partition(".")[0] in _MODULES_OWN
