"""The walk over a structure, written down as Python source for the compiled calls of `jit`.

`dataclasses` does the same for `__init__`. An edge takes 45 to 110 us to compile, so this is done after a number of
matches (`_PAYS_AFTER` in `transform/_programs.py`).
"""

from __future__ import annotations

import types
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeAlias

from .._base.library import is_ours
from .._objects.plain import identity, same_plain
from .._states.cell import Cell
from .conditions import Absence, Is, Plain, Same, StateOf
from .edges import Edge
from .steps import Reader, ValueOf

Structure: TypeAlias = Any  # the one of `structure`, which imports this module

_FILE = f"{__file__}, written for a structure"  # in this folder, like all code that tracebacks hide
_TOGETHER = 4  # states: from here on their tokens are compared with those of the last call


class WalkWriter:
    """Writes the walk over a structure as the source of a function.

    Args:
      structure: the structure.
      roots: as below.

    Attributes:
      roots: expressions for the roots.
      names: what the function refers to.
      identical: the objects that count by identity, by the name of their register.
      class_of: the names of classes that have been looked at, by the expression for the instance.
      head, lines: of the function; the first ones ask weak references.
    """

    def __init__(self, structure: Structure, roots: Sequence[str]) -> None:
        self.names: dict[str, Any] = {
            "same_plain": same_plain, "identity": identity, "FunctionType": types.FunctionType, "__name__": __name__,
        }  # fmt: skip
        self.head: list[str] = []
        self.lines: list[str] = []
        self.roots: Sequence[str] = roots
        self._constants: dict[int, str] = {}
        self._asked: set[str] = set()  # names that have their value: what weak references lead to, globals
        self.class_of: dict[str, str] = {}
        self._direct = _direct(structure)
        self.identical: dict[str, Any] = {
            f"r{edge.register}": edge.condition.reference() for edge in structure.by_identity
        }
        self._in_place = structure.registers_of(lambda kind: kind._is_in_place)  # which the program copies itself
        self._elsewhere = structure.registers_of(lambda kind: kind._is_elsewhere) - self._in_place
        used = {edge.parent for edge in structure.edges}
        used |= {edge.condition.register for edge in structure.edges if isinstance(edge.condition, Same)}
        self._used = used.union(structure.states, *structure.distinct)
        self._write(structure)

    def _write(self, structure: Structure) -> None:
        """The lines: the edges in order, then which objects have to be different ones."""
        states = {edge.register: edge for edge in structure.edges if isinstance(edge.condition, StateOf)}
        owners = tuple(dict.fromkeys(edge.parent for edge in self._direct.values()))
        groups = [group for group in structure.distinct if group[0] not in states]
        states = {register: edge for register, edge in states.items() if register not in self._direct}
        at_once = len(states) >= _TOGETHER
        for is_busy in dict.fromkeys(_in_dict(edge).is_busy for edge in self._direct.values()):
            if is_busy is not None:
                self.leave_if(f"{self.constant(is_busy)}()")
        for edge in structure.edges:
            self._edge(edge._replace(condition=None) if at_once and edge.register in states else edge)
        if at_once:
            self._states(states)
        elif len(states) > 1:
            self._distinct(states, of_states=True)
        for group in (*groups, owners):
            if len(group) > 1:
                self._distinct(group)

    def constant(self, value: Any) -> str:
        """A name for an object in the function."""
        name = self._constants.get(identity(value))
        if name is None:
            name = self._constants[identity(value)] = f"c{len(self.names)}"
            self.names[name] = value
        return name

    def once(self, name: str, expression: str) -> str:
        """A name for what an expression gives, which is asked once in a walk."""
        if name not in self._asked:
            self._asked.add(name)
            self.lines.append(f"{name} = {expression}")
        return name

    def leave_if(self, condition: str) -> None:
        """Leaves if a condition holds."""
        self.lines.append(f"if {condition}: return OTHER")

    def compile(self, parameters: str, lines: Sequence[str]) -> Callable[..., Any]:
        """The function of these lines."""
        body = "\n ".join([*self.head, *lines])
        exec(compile(f"def walk({parameters}):\n {body}\n", _FILE, "exec"), self.names)
        return self.names.pop("walk")

    def handles(self, registers: Sequence[int]) -> str:
        """The expression for some states, looked for now if nothing else needed them."""
        found = [(i, self._direct.get(i)) for i in registers]
        handles = [f"r{i}" if edge is None else f"{self.constant(edge.step.read)}(r{edge.parent})" for i, edge in found]
        return f"({''.join(f'{handle}, ' for handle in handles)})"

    def value(self, register: int) -> str:
        """The expression for a state's value."""
        edge = self._direct.get(register)
        if edge is not None:
            return f"d{register}[{_in_dict(edge).name!r}]"
        return f"r{register}._bare" if register in self._in_place else f"r{register}._value"

    def runs_code(self, registers: Sequence[int]) -> bool:
        """Whether cells run code of their own where their values are stored."""
        return any(register in self._elsewhere and register not in self._direct for register in registers)

    def marks(self, registers: Sequence[int]) -> list[str]:
        """The lines that say of cells that they have been written."""
        found = [(i, _in_dict(self._direct[i]).mark) for i in registers if i in self._direct]
        return [f"d{i}[{mark!r}] = True" for i, mark in found if mark is not None]

    def _edge(self, edge: Edge) -> None:
        above, condition, register = f"r{edge.parent}", edge.condition, edge.register
        if isinstance(condition, Absence):
            condition.write_at(self, above, edge.step)
            return
        if register in self._direct:
            self.lines.append(f"d{register} = {above}.__dict__")
            return
        if isinstance(edge.step, Reader) and register >= 0 and self._adopted(edge):
            return
        value = edge.step.source(self, above)
        if not isinstance(condition, Same | Plain) and (
            not isinstance(condition, Is) or (register >= 0 and register in self._used)
        ):
            self.lines.append(f"r{register} = {value}")
            value = f"r{register}"
        if condition is not None:
            condition.write(self, value)

    def _adopted(self, edge: Edge) -> bool:
        """Takes a handle out of the slot in which it is; False where there is none."""
        reader, condition, register = edge.step.read, edge.condition, edge.register
        slot = reader.slot() if isinstance(reader, Cell) else None
        if slot is None or not isinstance(condition, StateOf | None):
            return False
        name, kind = slot
        self.lines.append(f"r{register} = r{edge.parent}.{name}")
        self.lines.append(
            f"if type(r{register}) is not {self.constant(kind)}: r{register} = {self.constant(reader)}(r{edge.parent})"
        )
        if condition is not None:
            condition.write(self, f"r{register}")
        return True

    def _states(self, states: dict[int, Edge]) -> None:
        """Classes, and that no two are one. A token belongs to one state: for those of the last call all is known."""
        lines, self.lines = self.lines, []
        for register, edge in states.items():
            edge.condition.write(self, f"r{register}")
        self._distinct(states, of_states=True)
        self.names["seen"] = [None]
        lines.append(f"tokens = [{', '.join(f'r{register}._token' for register in states)}]")
        lines.append("if tokens != seen[0]:")
        self.lines = [*lines, *[f" {line}" for line in self.lines], " seen[0] = tokens"]

    def held(self, reference: Callable[[], Any]) -> str:
        """A name for what is held weakly, asked for once in a walk; classes of this package and modules never go."""
        obj = reference()
        if (isinstance(obj, type) and is_ours(obj)) or isinstance(obj, types.ModuleType):
            return self.constant(obj)
        name = self.constant(reference)
        if name not in self._asked:
            self._asked.add(name)
            self.head.append(f"{name}_now = {name}()")
        return f"{name}_now"

    def _distinct(self, group: Collection[int], of_states: bool = False) -> None:
        """Leaves if two objects of a group are one."""
        names = [f"r{register}" for register in group]
        if len(names) == 2:
            self.leave_if(f"{names[0]} is {names[1]}")
        elif of_states:
            self.leave_if(f"len({{{', '.join(names)}}}) != {len(names)}")  # they are hashed by identity
        else:  # whose addresses were looked at in the last call
            known = self.constant([None])
            self.lines.append(f"places = [*map(identity, ({', '.join(names)},))]")
            self.leave_if(f"places != {known}[0] and len({{*places}}) != {len(names)}")
            self.lines.append(f"{known}[0] = places")


def _direct(structure: Structure) -> dict[int, Edge]:
    """The edges to states for whose values nobody needs the state itself, by register."""
    needed = {edge.parent for edge in structure.edges if not isinstance(edge.step, ValueOf)}
    needed |= {edge.condition.register for edge in structure.edges if isinstance(edge.condition, Same)}
    states = [edge for edge in structure.edges if isinstance(edge.condition, StateOf)]
    cells = [edge for edge in states if getattr(edge.condition.reference(), "_is_handle", False)]
    is_direct = lambda edge: edge.register not in needed and _in_dict(edge) is not None
    # All or none: whether a handle and a cell are one is told by handles only.
    return {edge.register: edge for edge in cells} if all(map(is_direct, cells)) else {}


def _in_dict(edge: Edge) -> Any:
    read = edge.step.read if isinstance(edge.step, Reader) else None
    return read.in_dict(edge.condition.reference()) if isinstance(read, Cell) else None
