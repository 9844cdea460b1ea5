"""Whether the objects of a call have the structure that a trace was made for, and which states these are.

A `Structure` is what a `Recorder` has noted, ready to be compared: the edges are followed from the roots of a call, one
after the other, and each condition is checked. The first one that does not hold says that the structure is another,
and which edge it is. A structure that is matched often writes the walk down as one Python function, as `dataclasses`
does for `__init__`: 45 to 110 us of compilation an edge, which pays after some 500 matches.
"""

from __future__ import annotations

import gc
import itertools
import keyword
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from .held import held_by
from .library import is_ours
from .state import State
from .structure import MISSING, Edge, Recorder, identity, instance_attribute, is_plain, reference, same_plain

_GENERATE_AFTER = 400  # interpreted matches
_GENERATE_AT_MOST = 20_000  # edges
_TOGETHER = 4  # states: from here on their tokens are compared with those of the last call
_ABSENCE = ("absent", "nowhere", "unset")
_UNIQUE = (types.FunctionType, types.ModuleType, type, tuple, frozenset)  # identity of these is not looked at


class Other(Exception):
    """The structure is another: the edge that does not hold, and what stands there now."""

    def __init__(self, edge: Edge, now: Any, is_alias: bool = False) -> None:
        super().__init__()
        self.edge, self.now, self.is_alias = edge, now, is_alias


def step(parent: Any, how: str, key: Any) -> Any:
    """Takes one step; `parent` is the sequence of roots for the first one."""
    if how == "attr":
        return getattr(parent, key)
    if how == "item" or how == "root":
        return parent[key]
    if how == "method":
        return getattr(parent, key).__func__
    if how == "cell":
        return parent.__closure__[key[0]].cell_contents
    if how == "global":
        return parent.__globals__[key]
    if how == "dict":
        return parent.__dict__[key]
    if how == "reader":
        return key(parent)
    if how == "class":
        return type(parent)
    if how == "mro":
        return parent.__mro__[key]
    if how == "nth":
        return next(itertools.islice(parent, key, None))
    if how == "nthvalue":
        return next(itertools.islice(parent.values(), key, None))
    return parent()  # a weak reference


def holds(x: Any, what: str, argument: Any) -> bool:
    """Whether a value meets a condition, aliases and absence apart."""
    if what == "plain":
        return x is argument or same_plain(x, argument)
    if what == "state":
        return type(x) is argument[0]() and x._static is argument[1]
    if what == "object":
        return type(x) is argument[0]() and (argument[1] < 0 or len(x) == argument[1])
    if what == "sequence":
        return type(x) is argument[0] and len(x) == argument[1]
    if what == "mapping":
        return type(x) is argument[0] and [*x] == argument[1] and all(map(_same_type, x, argument[1]))
    if what == "code":
        return type(x) is types.FunctionType and x.__code__ is argument()
    if what == "is":
        return x is argument() and x is not None
    if what == "type":
        return type(x) is argument()
    if what == "plains":
        elements = tuple(x.items() if hasattr(x, "items") else x) if type(x) is argument[0] else ()
        return type(x) is argument[0] and same_plain(elements, argument[1])
    if what == "array":
        dtype, shape, content = argument
        return type(x) is np.ndarray and x.dtype == dtype and x.shape == shape and x.tobytes() == content
    raise AssertionError(what)


def _same_type(x: Any, y: Any) -> bool:
    return type(x) is type(y)


def absent(parent: Any, how: str, key: Any, what: str) -> bool:
    """Whether an instance or class has no such attribute itself; "nowhere": no attribute; "unset": no value."""
    if what == "nowhere":
        return not hasattr(parent, key)
    if what == "absent":
        return key not in parent.__dict__
    if how == "global":
        return key not in parent.__globals__
    if how == "attr":
        return instance_attribute(parent, key) is MISSING
    try:
        parent.__closure__[key[0]].cell_contents  # noqa: B018 - whether it raises
    except ValueError:
        return True
    return False


class Structure:
    """The structure of the objects that a function gets, as one trace has seen it.

    Args:
      edges: as in `Recorder`.
      states: the registers of the states in use, in the order in which `match` gives them.
      size: the number of registers.
      objects: by register; looked at for their classes only.
    """

    def __init__(self, edges: Sequence[Edge], states: Sequence[int], size: int, objects: Sequence[Any]) -> None:
        self.edges: tuple[Edge, ...] = tuple(edges)
        self.states: tuple[int, ...] = tuple(states)
        self.size: int = size
        self.distinct: tuple[tuple[int, ...], ...] = tuple(_distinct(self.edges, objects))
        self._uses = 0
        self._generated: Callable[[Sequence[Any]], list[State] | None] | None = None

    def match(self, roots: Sequence[Any]) -> list[State] | None:
        """The states in use as this call finds them; None when the structure is another."""
        if self._generated is not None:
            return self._generated(roots)
        self._uses += 1
        if self._uses > _GENERATE_AFTER and len(self.edges) <= _GENERATE_AT_MOST:
            self._generated = _generate_match(self)
        try:
            found = self.registers_at(roots)
        except Other:
            return None
        return [found[i] for i in self.states]

    def registers_at(self, roots: Sequence[Any]) -> list[Any]:
        """All objects by register.

        Raises:
          Other: the structure is another.
        """
        found: list[Any] = [None] * self.size
        edge, x = self.edges[0], None
        try:
            for edge in self.edges:
                parent, how, key, what, argument, register = edge
                x = MISSING
                if what in _ABSENCE:
                    if not absent(found[parent], how, key, what):
                        x = step(found[parent], how, key)
                        raise Other(edge, x)
                    continue
                x = step(roots if parent < 0 else found[parent], how, key)
                if what == "same":
                    if x is not found[argument]:
                        raise Other(edge, x)
                    continue
                if not holds(x, what, argument):
                    raise Other(edge, x)
                if register >= 0:
                    found[register] = x
        except Other:
            raise
        except Exception as error:  # whatever fails on the way, in user code too, says the same
            raise Other(edge, x) from error
        for group in self.distinct:
            if len({identity(found[i]) for i in group}) != len(group):
                raise Other(self._first_alias(group, found), "the same object as another", is_alias=True)
        return found

    def _first_alias(self, group: tuple[int, ...], found: list[Any]) -> Edge:
        seen: set[int] = set()
        for register in group:
            if identity(found[register]) in seen:
                return next(edge for edge in self.edges if edge.register == register)
            seen.add(identity(found[register]))
        raise AssertionError("two of them are one")

    def may_refuse(self) -> bool:
        """Whether storing a value in one of the states may fail."""
        kinds = [edge.argument[0]() for edge in self.edges if edge.what == "state"]
        return any(kind is None or kind._may_refuse for kind in kinds)

    def path(self, edge: Edge, root_names: Sequence[str]) -> str:
        """How the user would write the way to an edge: `self.layers[0].w`."""
        return show_path(self.edges, edge, root_names)

    def owners_of_arrays(self, roots: Sequence[Any]) -> list[Any]:
        """The objects to which the arrays belong that count by identity; for a global name there is none.

        Likewise those to which an object belongs that cannot be held weakly, such as an iterator over other objects.
        """
        by_register = {edge.register: edge for edge in self.edges if edge.register >= 0}
        arrays = [e for e in self.edges if e.what == "is" and _holds_much(e.argument)]
        pinned = [e for e in self.edges if e.what == "is" and isinstance(e.argument(), types.FunctionType)]
        owners: list[Any] = [e.argument() for e in pinned]
        found = self.registers_at(roots) if arrays else []
        for edge in arrays:
            while edge.parent >= 0 and edge.how not in ("global", "class"):
                owner = found[edge.parent]
                if type(owner).__weakrefoffset__ or isinstance(owner, types.FunctionType):
                    owners.append(owner)
                    break
                edge = by_register[edge.parent]
        return owners

    def with_states(self, states: Sequence[State], roots: Sequence[Any]) -> Structure:
        """The same structure, giving some states more."""
        found = self.registers_at(roots)
        places = {identity(obj): i for i, obj in reversed([*enumerate(found)]) if obj is not None}
        more = [places[identity(state)] for state in states]
        return Structure(self.edges, [*self.states, *more], self.size, found)

    def merged(self, other: Structure, roots: Sequence[Any]) -> Structure:
        """A structure with the conditions of both, which both fit these roots; the states are this one's."""
        mine, theirs = self.registers_at(roots), other.registers_at(roots)
        places = {identity(obj): i for i, obj in reversed([*enumerate(mine)]) if obj is not None}
        known = {edge[:3] for edge in self.edges}
        edges, objects = list(self.edges), list(mine)
        for parent, how, key, what, argument, register in other.edges:
            above = parent if parent < 0 else places[identity(theirs[parent])]
            if what == "same":
                argument = places[identity(theirs[argument])]
            elif register >= 0:
                obj = theirs[register]
                place = places.get(identity(obj))
                if place is not None:
                    what, argument, register = "same", place, -1
                else:
                    register = places[identity(obj)] = len(objects)
                    objects.append(obj)
            if (above, how, key) not in known:
                known.add((above, how, key))
                edges.append(Edge(above, how, key, what, argument, register))
        return Structure(edges, self.states, len(objects), objects)


def show_path(edges: Sequence[Edge], edge: Edge, root_names: Sequence[str]) -> str:
    """How the user would write the way to an edge: `self.layers[0].w`."""
    by_register = {e.register: e for e in edges if e.register >= 0}
    steps = [edge]
    while edge.parent >= 0:
        edge = by_register[edge.parent]
        steps.append(edge)
    return "".join(_show(edge, root_names) for edge in reversed(steps)).removeprefix(".")


def _show(edge: Edge, root_names: Sequence[str]) -> str:
    if edge.how == "root":
        return str(root_names[edge.key]) if edge.key < len(root_names) else f"argument {edge.key}"
    if edge.how in ("attr", "dict", "method"):
        return f".{edge.key}" if edge.key not in ("__wrapped__", "__func__", "__dict__") else ""
    if edge.how == "item":
        return f"[{edge.key!r}]"
    if edge.how == "reader":
        return f".{edge.key.name}" if getattr(edge.key, "shows", False) else ""
    if edge.how == "global":
        return f".{edge.key}"
    if edge.how == "cell":
        return f".{edge.key[1]}"
    return {"class": ".__class__", "nth": f"[{edge.key}]", "call": "()"}.get(edge.how, "")


def _distinct(edges: Sequence[Edge], objects: Sequence[Any]) -> Iterator[tuple[int, ...]]:
    """Groups of registers that must hold different objects.

    States must. So must all objects of one class, unless each is told apart by a state first found below it.
    """
    owner = {edge.register: edge for edge in edges if edge.register >= 0}
    states = [edge.register for edge in edges if edge.what == "state"]
    if len(states) > 1:
        yield tuple(states)
    told_apart: set[int] = set()
    for register in states:
        edge = owner[register]
        while edge.parent >= 0 and edge.how in _OWN and edge.parent not in told_apart:
            told_apart.add(edge.parent)
            edge = owner[edge.parent]
    groups: dict[type, list[int]] = {}
    for edge in edges:
        if edge.register >= 0 and edge.what not in ("state", "is", "plain", "code") and edge.register < len(objects):
            kind = type(objects[edge.register])
            if kind not in _UNIQUE:
                groups.setdefault(kind, []).append(edge.register)
    for group in groups.values():
        if len(group) > 1 and not told_apart.issuperset(group):
            yield tuple(group)


_OWN = ("attr", "dict", "item", "nth", "nthvalue", "reader")


def _holds_much(argument: Callable[[], Any]) -> bool:
    """Whether what an edge says of identity keeps more alive than itself."""
    obj = argument()
    return isinstance(obj, jax.Array | np.ndarray) or (not isinstance(argument, weakref.ref) and gc.is_tracked(obj))


_SHARED = ("object", "sequence", "mapping", "set", "plains", "state", "array")


class Settled:
    """What became of the structure that a trace has seen.

    Attributes:
      structure: what a later call is compared with; None when the trace serves one call only.
      loose: the states in use to which no path leads.
      changed: the edge on an argument that the function itself changed, with the value before and after.
    """

    def __init__(self, recorder: Recorder, used: Sequence[State], jaxpr: Any) -> None:
        self.structure: Structure | None = None
        self.changed: tuple[Edge, str, str] | None = None
        self._edges = recorder.edges
        registers = [recorder.register_of(state) for state in used]
        self.loose: list[State] = [s for s, register in zip(used, registers, strict=True) if register is None]
        if self.loose:
            return
        kept = self._unchanged(recorder, {register for register in registers if register is not None}, jaxpr)
        if kept is not None:
            self.structure = Structure(kept, registers, len(recorder.objects), recorder.objects)  # type: ignore[arg-type]

    def path(self, edge: Edge, root_names: Sequence[str]) -> str:
        """How the user would write the way to an edge."""
        return show_path(self._edges, edge, root_names)

    def _unchanged(self, recorder: Recorder, used: set[int], jaxpr: Any) -> list[Edge] | None:
        """The edges that still hold. Of those that do not, the function has changed what they lead to."""
        dropped: set[int] = set()
        kept: list[Edge] = []
        self._pinned: set[int] = set()
        is_shared = lambda obj: (place := recorder.register_of(obj)) is not None and whats.get(place) in _SHARED
        whats = {edge.register: edge.what for edge in recorder.edges}
        for obj, is_rule in held_by(jaxpr, is_shared):
            # The program is about this object, and no other of its structure; a rule is yet to look at it.
            register = recorder.register_of(obj)
            assert register is not None
            self._pinned.add(register)
            if is_rule and whats[register] == "object":
                recorder.take_all(register)
        self._by_register = {edge.register: edge for edge in recorder.edges if edge.register >= 0}
        for edge in recorder.edges:
            if edge.parent in dropped or (edge.what == "same" and edge.argument in dropped):
                if edge.register >= 0:
                    dropped.add(edge.register)
                continue
            holds_still, now = _still_holds(edge, recorder)
            if holds_still:
                kept.append(edge)
                continue
            if not self._is_outside(edge, recorder):
                self.changed = edge, said_of(edge), brief(now)
                return None
            if edge.register >= 0:
                dropped.add(edge.register)
            self._pin(edge, recorder)
        if dropped & used:
            edge = next(e for e in recorder.edges if e.register in dropped)
            self.changed = edge, said_of(edge), brief(_still_holds(edge, recorder)[1])
            return None
        return [
            edge._replace(what="is", argument=reference(recorder.objects[edge.register]))
            if edge.register in self._pinned
            else edge
            for edge in kept
        ]

    def _pin(self, edge: Edge, recorder: Recorder) -> None:
        """A function that changes what it closes over is itself part of the structure: another one has to run, too."""
        while edge.parent >= 0 and edge.how not in ("global", "class", "mro"):
            if isinstance(recorder.objects[edge.parent], types.FunctionType):
                self._pinned.add(edge.parent)
                return
            edge = self._by_register[edge.parent]

    def _is_outside(self, edge: Edge, recorder: Recorder) -> bool:
        if edge.parent < 0:
            return edge.key == 0
        return edge.parent in recorder.outside


def _still_holds(edge: Edge, recorder: Recorder) -> tuple[bool, Any]:
    parent = recorder.roots if edge.parent < 0 else recorder.objects[edge.parent]
    try:
        if edge.what in _ABSENCE:
            is_absent = absent(parent, edge.how, edge.key, edge.what)
            return is_absent, MISSING if is_absent else step(parent, edge.how, edge.key)
        now = step(parent, edge.how, edge.key)
        if edge.what == "same":
            return now is recorder.objects[edge.argument], now
        if edge.register >= 0 and edge.how != "nth" and now is not recorder.objects[edge.register]:
            return edge.how == "method" and now is recorder.objects[edge.register], now
        return holds(now, edge.what, edge.argument), now
    except Exception:
        return False, MISSING


class Writer:
    """Writes the walk over a structure as the source of a function.

    Args:
      structure: the structure.
      roots: expressions for the roots.
      failure: the statement that leaves when the structure is another.
    """

    def __init__(self, structure: Structure, roots: Sequence[str], failure: str = "return None") -> None:
        self.names: dict[str, Any] = {
            "same_plain": same_plain, "identity": identity, "holds": holds, "absent": absent, "step": step,
            "FunctionType": types.FunctionType, "__name__": __name__,
        }  # fmt: skip
        self.lines: list[str] = []
        self._constants: dict[int, str] = {}
        self._asked: set[str] = set()  # for what the weak references lead to
        self._class_of: dict[str, str] = {}
        self._failure = failure
        self._unpacked = _unpacked(structure)
        used = {edge.parent for edge in structure.edges}
        used |= {edge.argument for edge in structure.edges if edge.what == "same"}
        self._used = used.union(structure.states, *structure.distinct)
        states = {edge.register: edge for edge in structure.edges if edge.what == "state"}
        at_once = len(states) >= _TOGETHER
        for edge in structure.edges:
            self._edge(edge._replace(what="", argument=None) if at_once and edge.register in states else edge, roots)
        for group in structure.distinct:
            if not at_once or group[0] not in states:
                self._distinct(group, group[0] in states)
        if at_once:
            self._states(states)

    def constant(self, value: Any) -> str:
        """A name for an object in the function."""
        name = self._constants.get(identity(value))
        if name is None:
            name = self._constants[identity(value)] = f"c{len(self.names)}"
            self.names[name] = value
        return name

    def unless(self, condition: str) -> None:
        """Leaves unless a condition holds."""
        self.lines.append(f"if not ({condition}): {self._failure}")

    def leave_if(self, condition: str) -> None:
        """Leaves if a condition holds."""
        self.lines.append(f"if {condition}: {self._failure}")

    def compile(self, parameters: str, lines: Sequence[str]) -> Callable[..., Any]:
        """The function of these lines."""
        body = "\n ".join(lines)
        exec(compile(f"def walk({parameters}):\n {body}\n", "<structure>", "exec"), self.names)
        return self.names.pop("walk")

    def _edge(self, edge: Edge, roots: Sequence[str]) -> None:
        parent, how, key, what, argument, register = edge
        above = f"r{parent}"
        if what == "absent":
            self.leave_if(f"{key!r} in {above}.__dict__")
            return
        if what == "nowhere":
            self.leave_if(f"hasattr({above}, {key!r})")
            return
        if what == "unset":
            self.unless(f"absent({above}, {how!r}, {key!r}, {what!r})")
            return
        is_known = parent in self._unpacked and how == "item"
        value = self._unpacked[parent][key] if is_known else self._expression(above, how, key, roots)
        if what == "same":
            self.leave_if(f"{value} is not r{argument}")
        elif what == "plain":
            if register >= 0 and not is_known:
                self.lines.append(f"r{register} = {value}")
                value = f"r{register}"
            self._plain(value, argument)
        else:
            if not is_known and (register in self._used or what != "is"):
                self.lines.append(f"r{register} = {value}")
                value = f"r{register}"
            self._condition(value, what, argument)
            if register in self._unpacked:
                self.lines.append(f"{''.join(f'{name}, ' for name in self._unpacked[register])}= {value}")

    def _states(self, states: dict[int, Edge]) -> None:
        """Classes, and that no two are one. A token belongs to one state: for those of the last call all is known."""
        lines, self.lines = self.lines, []
        for register, edge in states.items():
            self._condition(f"r{register}", "state", edge.argument)
        self._distinct(tuple(states), are_states=True)
        self.names["seen"] = [None]
        lines.append(f"tokens = [{', '.join(f'r{register}._token' for register in states)}]")
        lines.append("if tokens != seen[0]:")
        self.lines = [*lines, *[f" {line}" for line in self.lines], " seen[0] = tokens"]

    def _expression(self, above: str, how: str, key: Any, roots: Sequence[str]) -> str:
        if how == "root":
            return str(roots[key])
        if how in ("attr", "method"):
            plain = key.isidentifier() and not keyword.iskeyword(key)
            found = f"{above}.{key}" if plain else f"getattr({above}, {key!r})"
            return f"{found}.__func__" if how == "method" else found
        if how == "reader":
            return f"{self.constant(key)}({above})"
        index = repr(key) if type(key) in (int, str) else self.constant(key)
        simple = {
            "item": f"{above}[{index}]",
            "cell": f"{above}.__closure__[{key[0] if how == 'cell' else ''}].cell_contents",
            "global": f"{above}.__globals__[{index}]",
            "dict": f"{above}.__dict__[{index}]",
            "class": self._class_of.get(above) or f"type({above})",
            "mro": f"{above}.__mro__[{index}]",
            "call": f"{above}()",
        }
        return simple.get(how) or f"step({above}, {how!r}, {index})"

    def _plain(self, value: str, argument: Any) -> None:
        if argument is None or argument is True or argument is False:
            self.leave_if(f"{value} is not {argument}")
            return
        name = self.constant(argument)
        self.lines.append(f"x = {value}")
        if type(argument) in (int, str):
            self.leave_if(f"x is not {name} and (x != {name} or type(x) is not {type(argument).__name__})")
        else:
            self.leave_if(f"x is not {name} and not same_plain(x, {name})")

    def _condition(self, value: str, what: str, argument: Any) -> None:
        if what == "state":
            self.leave_if(f"type({value}) is not {self._class(argument[0])} or {value}._static is not {argument[1]}")
        elif what == "object":
            cls = self._class(argument[0])
            length = f" or len({value}) != {argument[1]}" if argument[1] >= 0 else ""
            self.leave_if(f"type({value}) is not {cls}{length}")
            self._class_of[value] = cls
        elif what == "sequence":
            # Unpacking looks at the length, too.
            length = "" if int(value[1:]) in self._unpacked else f" or len({value}) != {argument[1]}"
            self.leave_if(f"type({value}) is not {self.constant(argument[0])}{length}")
        elif what == "":
            pass
        elif what == "code":
            # Code holds nothing of the user's but code, so it need not be held weakly; gone, it is found nowhere.
            code = self.constant(argument())
            self.leave_if(f"type({value}) is not FunctionType or {value}.__code__ is not {code}")
        elif what == "is":
            if value != (expected := self._class(argument)):  # the class of an object has been looked at
                self.leave_if(f"{value} is not {expected} or {value} is None")
        elif what == "type":
            self.leave_if(f"type({value}) is not {self._class(argument)}")
        else:
            self.unless(f"holds({value}, {what!r}, {self.constant(argument)})")

    def _class(self, reference: Callable[[], Any]) -> str:
        """A name for what is held weakly, asked for once in a walk; this package's own classes never go."""
        if isinstance(cls := reference(), type) and is_ours(cls):
            return self.constant(cls)
        name = self.constant(reference)
        if name not in self._asked:
            self._asked.add(name)
            self.lines.append(f"{name}_now = {name}()")
        return f"{name}_now"

    def _distinct(self, group: tuple[int, ...], are_states: bool) -> None:
        names = [f"r{i}" for i in group]
        if len(names) == 2:
            self.leave_if(f"{names[0]} is {names[1]}")
        elif are_states:
            self.leave_if(f"len({{{', '.join(names)}}}) != {len(names)}")  # states are hashed by identity
        else:
            self.leave_if(f"len({{*map(identity, ({', '.join(names)}))}}) != {len(names)}")


def _unpacked(structure: Structure) -> dict[int, list[str]]:
    """For each sequence all of whose items are looked at, by register, the names that its items get."""
    items: dict[int, dict[int, str]] = {}
    for edge in structure.edges:
        if edge.how == "item" and type(edge.key) is int:
            name = f"r{edge.register}" if edge.register >= 0 else f"i{edge.parent}_{edge.key}"
            items.setdefault(edge.parent, {})[edge.key] = name
    return {
        edge.register: [found[i] for i in range(edge.argument[1])]
        for edge in structure.edges
        if edge.what == "sequence" and len(found := items.get(edge.register, {})) == edge.argument[1] > 0
    }


def _generate_match(structure: Structure) -> Callable[[Sequence[Any]], list[State] | None]:
    roots = [f"roots[{i}]" for i in range(1 + max((e.key for e in structure.edges if e.how == "root"), default=0))]
    writer = Writer(structure, roots)
    found = f"return [{', '.join(f'r{i}' for i in structure.states)}]"
    walk = writer.compile("roots", [*writer.lines, found])

    def match(roots: Sequence[Any]) -> list[State] | None:
        try:
            return walk(roots)
        except Exception:  # as in `registers_at`
            return None

    return match


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


def said_of(edge: Edge) -> str:
    """How tables and warnings show what an edge has to lead to."""
    if edge.what == "plain":
        return brief(edge.argument)
    if edge.what in _ABSENCE:
        return "not there"
    if edge.what in ("state", "object", "type"):
        kind = edge.argument[0]() if isinstance(edge.argument, tuple) else edge.argument()
        return kind.__name__ if kind is not None else "an object of a class that is gone"
    if edge.what in ("sequence", "mapping", "plains"):
        size = edge.argument[1]
        return f"{edge.argument[0].__name__} of {size if isinstance(size, int) else len(size)}"
    return {"code": "another function", "is": "another object", "array": "another array", "same": "another object"}[
        edge.what
    ]
