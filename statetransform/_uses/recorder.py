"""The recorder: which structure of its objects a trace depends on, noted while the function runs.

A trace does not depend on which objects a function gets, only on their structure: as it depends on the types of arrays
and not on their values. A `Recorder` listens during one trace. It starts from the *roots*, the function and the
objects among its arguments, and notes *edges*: one step from an object that was reached before to a value (an
attribute, an item, a variable that a function closes over), and the condition on the value. Each object gets a number,
its *register*; two ways to one object are an edge and an alias. Of an object, the attributes that the trace looked up
or set count, also those that were not there; of a container, all of it once it is reached; of a function, what it
closes over, its defaults and the global names that it looks up. What the trace never looks at splits no trace.

Invariant: no edge keeps an object alive. Classes, functions' code and objects that count by identity are held weakly,
but for those that cannot be, see `conditions`.
"""

from __future__ import annotations

import sys
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import jax

from .._base.library import is_framework_class, is_framework_file, is_ours, is_users_class, is_users_function
from .._objects.hooks import hook, listening, not_recorded, settings, unhook, unwatch, watch
from .._objects.lookup import (
    class_lookup,
    instance_attribute,
    instance_dict,
    names_in_any_order,
    names_of_attributes,
    own_getattribute,
    slot_names,
)
from .._objects.plain import MISSING, NOT_SET, identity, is_plain
from .._states.cell import cell_behind, cells_in
from .._states.state import State
from .classes import Classes
from .conditions import NOT_IN_DICT, NOWHERE, UNSET, Absence, Is, Plain, Same, StateOf
from .edges import Edge
from .steps import Attr, ClassOf, Closed, Global, InDict, Inherited, Item, Method, Reader, Root, Step
from .visits import Visit, visit_of

if TYPE_CHECKING:
    from .structure import Structure

_OF_STATES: tuple[Any, ...] = ("_name", "_metadata")  # what counts besides the value, where it is looked up


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
        self._places: list[int] = []  # by register: of the edge that leads there
        self._registers: dict[int, int] = {}
        self._looked_up: dict[int, set[Any]] = {}
        self.changes: list[tuple[int, str, Any]] = []  # attributes set: register, name, and the value before
        self._hooked: dict[type, bool] = {}
        self._tells_all: dict[type, bool] = {}  # whether a class tells of each look-up on its instances
        self._visits: dict[type, Visit] = {}
        self.classes: Classes = Classes(self)
        self._settings: dict[Any, Any] = {}  # as they were when the trace began, by what reads them all
        self._waiting: dict[int, list[tuple[Any, ...]]] = {}  # what is noted once code runs; by the code's identity
        self._started: set[int] = set()
        self._watched: list[types.CodeType] = []  # held, so that no address is used twice
        self._queue: deque[tuple[int, Any]] = deque()  # reached and not yet looked into, by register
        self._is_draining = False
        self._takes_all = False
        self.hidden: dict[int, frozenset[str]] = {}  # attributes of objects that do not count
        self.cells: set[int] = set()  # objects that a state stands for

    def __enter__(self) -> Recorder:
        self._settings = {read: read() for read in settings}
        listening.listeners = (*listening.listeners, self)
        try:
            for i, root in enumerate(self.roots):
                self.reach(-1, Root(i), root)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: Any) -> None:
        listening.listeners = tuple([x for x in listening.listeners if x is not self])
        for cls, listens in self._hooked.items():
            if listens:
                unhook(cls)
        for code in self._watched:
            unwatch(code)
        self._hooked, self._tells_all, self._settings, self._watched = {}, {}, {}, []

    def takes_pytrees(self, tree: Any) -> None:
        """Takes in the user's classes that have nodes in the arguments, or in the value of a state.

        The trace runs their methods on instances that JAX makes. The tree definition of a call says which they are.
        """
        kinds: dict[type, None] = {}
        jax.tree.flatten(tree, is_leaf=lambda node: kinds.setdefault(type(node)) is not None)
        for kind in filter(is_users_class, kinds):
            self._takes_class(kind)

    def _takes_class(self, kind: type) -> None:
        """Takes in a class to whose instances no edge leads."""
        if kind not in self.classes.registers:
            reference = weakref.ref(kind)
            self.reach(0, Reader(lambda _: reference()), kind)

    def register_of(self, obj: Any) -> int | None:
        """The register of an object that was reached."""
        return self._registers.get(identity(obj))

    def add(self, obj: Any) -> int:
        """Gives an object a register, just before the edge to it is added."""
        register = self._registers[identity(obj)] = len(self.objects)
        self.objects.append(obj)
        self._places.append(len(self.edges))
        return register

    def edge_to(self, register: int) -> Edge:
        """The edge that leads to an object."""
        return self.edges[self._places[register]]

    def is_new(self, register: int, name: Any) -> bool:
        """Whether a name is looked up on an object for the first time."""
        looked_up = self._looked_up.setdefault(register, set())
        if name in looked_up:
            return False
        looked_up.add(name)
        return True

    def looks_into(self, register: int, value: Any, names: Iterable[str]) -> None:
        """Adds the edges to some entries of a `__dict__`: of a module, function or object.

        Of those of a function under a transform the private ones are ours.
        """
        attributes, is_transformed = instance_dict(value) or {}, is_ours(type(value))
        for name in names:
            if is_transformed and name.startswith("_"):
                continue
            if name in attributes and self.is_new(register, ("dict", name)):
                self.reach(register, InDict(name), attributes[name])

    def led_to_state(self, obj: Any, key: Any) -> bool:
        """Whether an attribute or item of an object was a state before the trace."""
        register = self.register_of(obj)
        steps = Attr(key), InDict(key), Item(key)
        return any(
            edge.parent == register and isinstance(edge.condition, StateOf) and edge.step in steps
            for edge in self.edges
        )

    def when_it_runs(self, code: types.CodeType, note: Callable[..., None], *args: Any) -> None:
        """Notes something once a function of this code starts; at once if nobody could tell."""
        waiting = self._waiting.get(id(code))
        if waiting is not None:
            waiting.append((note, *args))
        elif id(code) in self._started or self._takes_all or not watch(code):
            note(*args)
        else:
            self._watched.append(code)
            self._waiting[id(code)] = [(note, *args)]

    def runs_later(self, obj: Any) -> None:
        """Code runs after the trace and looks at an object unseen, or is a function: all names of it count."""
        self._takes_all = True
        if isinstance(obj, types.FunctionType):
            self._runs(obj.__code__)
        elif (register := self.register_of(obj)) is not None and is_users_class(type(obj)):
            self._all_attributes(register, obj)

    # -- what the hooks tell

    def looks_up(self, obj: Any, name: str) -> None:
        """Notes what the attribute is before the trace gets it."""
        register, kind = self._registers.get(identity(obj)), type(obj)
        if register is None and kind in self.classes.registers:  # an object that the trace has made
            with not_recorded():
                self.classes.look_up(kind, name)
        elif register is not None and self.is_new(register, name):
            with not_recorded():
                self._attribute(register, obj, name)

    def starts(self, code: types.CodeType) -> None:
        """Notes what the names of a function mean before it runs."""
        self._started.add(id(code))
        with not_recorded():
            for note, *args in self._waiting.pop(id(code), ()):
                note(*args)

    def _runs(self, code: types.CodeType) -> None:
        """Takes code for some that runs, with the functions within it."""
        self.starts(code)
        for const in code.co_consts:
            if isinstance(const, types.CodeType):
                self._runs(const)

    def replays(self, structure: Structure, objects: Sequence[Any]) -> None:
        """Notes what a trace had looked up that is used within this one, in place of running its function."""
        with not_recorded():
            for edge in structure.edges:
                parent = objects[edge.parent] if edge.parent >= 0 else None
                if isinstance(parent, types.FunctionType) and isinstance(edge.step, Global | Reader):
                    self._runs(parent.__code__)  # also of a function made within this trace, to which nothing leads
                if parent is not None and (register := self.register_of(parent)) is not None:
                    self._replay(register, parent, edge)
                if isinstance(edge.step, Reader) and hasattr(edge.step.read, "read_all"):
                    self.asks(edge.step.read)

    def _replay(self, register: int, obj: Any, edge: Edge) -> None:
        step = edge.step
        if isinstance(step, InDict):
            self.looks_into(register, obj, (step.name,))
        elif isinstance(obj, type):
            if isinstance(step, Inherited) and obj in self.classes.registers:
                self.classes.attribute(obj, step.name, step.start)
        elif isinstance(step, Reader):
            if self.is_new(register, step.read):
                self.reach(register, step, step.take(obj))
        elif not isinstance(step, Attr | Method):
            return
        elif step.name in _OF_STATES and isinstance(obj, State):
            if self.is_new(register, step.name):
                self.reach(register, step, step.take(obj))
        elif type(obj) in self._tells_all and self.is_new(register, step.name):
            self._attribute(register, obj, step.name)

    def sets(self, obj: Any, name: str) -> None:
        """Notes what the attribute was before."""
        register = self._registers.get(identity(obj))
        if register is not None and name not in self.hidden.get(register, ()):
            self.looks_up(obj, name)
            self.changes.append((register, name, instance_attribute(obj, name)))

    def asks(self, setting: Any) -> None:
        """Notes what a setting was before the trace."""
        if self.is_new(0, setting):
            read = setting.read_all
            before = self._settings[read] if read in self._settings else self._settings.setdefault(read, read())
            self.reach(0, Reader(setting), before.get(setting.key, NOT_SET))

    def path_to(self, register: int) -> str | None:
        """The way to an object that is being visited, from its root: `linear.kernel`.

        The users' names only: a state among the options of a transform, as in `grad(f, states=...)`, has
        the way from there on.
        """
        steps: list[str] = []
        while (edge := self.edge_to(register)).parent >= 0:
            step = edge.step
            shown = step.key if isinstance(step, Item) else None
            if isinstance(step, Attr | InDict | Global) or (
                isinstance(step, Closed) and is_users_function(self.objects[edge.parent])
            ):
                shown = step.name
            kind = type(self.objects[edge.parent])
            if shown == "_options" and is_ours(kind):
                steps = [] if all(map(str.isdigit, steps[:-1])) else steps[:-1]
            elif shown is not None and not str(shown).startswith("_" if is_framework_class(kind) else "__"):
                steps.append(str(shown))
            register = edge.parent
        return ".".join(reversed(steps)) or None

    # -- reaching

    def reach(self, parent: int, step: Step, value: Any) -> None:
        """Adds the edge to a value, and follows it as far as all of it counts."""
        if is_plain(value):
            self.edges.append(Edge(parent, step, Plain(value)))
            if is_users_class(type(value)):  # a member of an enumeration, whose methods may run
                self._takes_class(type(value))
            return
        known = self._registers.get(identity(value))
        if known is not None:
            if self._takes_all and isinstance(value, types.FunctionType):
                self._runs(value.__code__)
            self.edges.append(Edge(parent, step, Same(known)))
            self.classes.open(value)  # if it is a class, known from an instance so far
            return
        register = self.add(value)
        self._queue.append((register, value))
        self.edges.append(Edge(parent, step, None, register))
        if not self._is_draining:
            self._drain()

    def _drain(self) -> None:
        """Looks into what was reached, nearest first, and into what that leads to, and adds the conditions."""
        self._is_draining = True
        try:
            while self._queue:
                register, value = self._queue.popleft()
                kind: Any = type(value)
                visit = self._visits.get(kind)
                if visit is None:
                    visit = self._visits[kind] = visit_of(kind)
                condition = visit(self, register, value)
                place = self._places[register]
                self.edges[place] = self.edges[place]._replace(condition=condition)
        finally:
            self._is_draining = False
            self._queue.clear()

    def listen_to(self, register: int, value: Any) -> None:
        """From now on look-ups on instances of this class are noted; all attributes count where that cannot be."""
        kind = type(value)
        tells_all = self._tells_all.get(kind)
        if tells_all is None:
            if not self._takes_all:
                self._hooked[kind] = hook(kind)
            tells_all = self._tells_all[kind] = self._hooked.get(kind, False) and not own_getattribute(kind)
        if self._takes_all or not tells_all:
            self._all_attributes(register, value)
        if kind not in self.classes.registers and is_users_class(kind):
            place = self.register_of(kind)
            if place is None:
                place = self.add(kind)
                self.edges.append(Edge(register, ClassOf(), Is(weakref.ref(kind)), place))
            self.classes.take(place, kind)

    def _all_attributes(self, register: int, value: Any) -> None:
        attributes, cells = instance_dict(value), cells_in(type(value))
        if attributes is not None:
            names = names_in_any_order if register in self.hidden else names_of_attributes
            self.reach(register, Reader(names), names(value))
            no_values = {*cells, *self.hidden.get(register, ())}
            self.looks_into(register, value, [name for name in attributes if name not in no_values])
        for name in (*cells, *slot_names(type(value))):
            self._attribute(register, value, name)

    # -- attributes

    def _attribute(self, register: int, obj: Any, name: str) -> None:
        """The edge for an attribute of an instance, as Python would look it up."""
        if name in self.hidden.get(register, ()):
            return
        kind = type(obj)
        # Who looks it up is behind `looks_up` and the hook. A cached property reads its own entry only.
        if name == "__dict__" and sys._getframe(3).f_globals.get("__name__") == "functools":
            self._looked_up[register].discard(name)
            return
        if name in ("__dict__", "__reduce__", "__getstate__"):  # as `copy.copy` does
            self._all_attributes(register, obj)
            return
        found = class_lookup(kind, name)
        if issubclass(kind, State) and found is not MISSING and found is class_lookup(State, name):
            if f"_{name}" in _OF_STATES:
                self.reach(register, Attr(f"_{name}"), getattr(obj, f"_{name}"))
            return
        if (cell := cell_behind(found)) is not None:
            if (state := cell.state_of(obj)) is not None:
                self.reach(register, Reader(cell), state)
            else:
                self._value(register, name, cell.stored(obj), NOWHERE)
        elif isinstance(found, types.MemberDescriptorType):
            self._value(register, name, instance_attribute(obj, name), UNSET)
        elif found is not MISSING and hasattr(type(found), "__set__"):
            self.classes.look_up(kind, name)
        else:
            self._own_or_of_class(register, obj, name, found)

    def _value(self, register: int, name: str, value: Any, absence: Absence) -> None:
        """The edge to what a descriptor gives; `absence` where there is nothing."""
        if value is MISSING:
            self.edges.append(Edge(register, Attr(name), absence))
        else:
            self.reach(register, Attr(name), value)

    def _own_or_of_class(self, register: int, obj: Any, name: str, found: Any) -> None:
        """The edge to an entry of the instance's `__dict__`, or else to what its class has."""
        kind, is_special = type(obj), name.startswith("__") and name.endswith("__")
        value = instance_attribute(obj, name)
        if not self._tells_all.get(kind, True):  # all that the instance has counts
            self.classes.look_up(kind, name)
        elif value is not MISSING:
            self.reach(register, Attr(name), value)
        elif isinstance(found, types.FunctionType):
            if register in self.cells and is_framework_file(found.__code__.co_filename):
                return  # how its own class reads and writes it is taken as given
            if not is_special:
                self.reach(register, Method(name), found)
        elif found is not MISSING and hasattr(type(found), "__get__"):
            if instance_dict(obj) is not None:
                self.edges.append(Edge(register, Attr(name), NOT_IN_DICT))
            self.classes.look_up(kind, name)
        elif found is not MISSING and not is_special:
            self.reach(register, Attr(name), found)
        elif not is_special:
            absence = NOWHERE if class_lookup(kind, "__getattr__") is MISSING else UNSET
            self.edges.append(Edge(register, Attr(name), absence))
