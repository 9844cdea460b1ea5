"""The walk over a structure, written down as Python source for the compiled calls of `jit`.

`dataclasses` does the same for `__init__`. An edge takes 45 to 110 us to compile, so this is done after a number of
matches (`_PAYS_AFTER` in `transform/_programs.py`).
"""

from __future__ import annotations

import keyword
import types
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeAlias

from .._base.library import is_ours
from .._objects.plain import identity, same_plain
from .._states.cell import Cell
from .edges import Edge, absent, holds, step

Structure: TypeAlias = Any  # the one of `structure`, which imports this module

_FILE = f"{__file__}, written for a structure"  # in this folder, like all code that tracebacks hide
_KEYS = 8  # of a dict: up to here each has a name of its own
_TOGETHER = 4  # states: from here on their tokens are compared with those of the last call


class WalkWriter:
    """Writes the walk over a structure as the source of a function.

    Args:
      structure: the structure.
      roots: expressions for the roots.

    Attributes:
      names: what the function refers to.
      head, lines: of the function; the first ones ask weak references.
    """

    def __init__(self, structure: Structure, roots: Sequence[str]) -> None:
        self.names: dict[str, Any] = {
            "same_plain": same_plain, "identity": identity, "holds": holds, "absent": absent, "step": step,
            "FunctionType": types.FunctionType, "__name__": __name__,
        }  # fmt: skip
        self.head: list[str] = []
        self.lines: list[str] = []
        self._roots = roots
        self._constants: dict[int, str] = {}
        self._asked: set[str] = set()  # names that have their value: what weak references lead to, globals
        self._class_of: dict[str, str] = {}
        self._direct = _direct(structure)
        self._classes = {f"r{edge.register}": edge.argument() for edge in structure.edges if edge.what == "is"}
        self._in_place = structure.registers_in_place()  # which the program copies itself
        used = {edge.parent for edge in structure.edges}
        used |= {edge.argument for edge in structure.edges if edge.what == "same"}
        self._used = used.union(structure.states, *structure.distinct)
        states = {edge.register: edge for edge in structure.edges if edge.what == "state"}
        owners = tuple(dict.fromkeys(edge.parent for edge in self._direct.values()))
        groups = [group for group in structure.distinct if group[0] not in states]
        states = {register: edge for register, edge in states.items() if register not in self._direct}
        at_once = len(states) >= _TOGETHER
        for is_busy in dict.fromkeys(_in_dict(edge).is_busy for edge in self._direct.values()):
            if is_busy is not None:
                self.leave_if(f"{self.constant(is_busy)}()")
        for edge in structure.edges:
            self._edge(edge._replace(what="", argument=None) if at_once and edge.register in states else edge)
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
        handles = [f"r{i}" if edge is None else f"{self.constant(edge.key)}(r{edge.parent})" for i, edge in found]
        return f"({''.join(f'{handle}, ' for handle in handles)})"

    def value(self, register: int) -> str:
        """The expression for a state's value."""
        edge = self._direct.get(register)
        if edge is not None:
            return f"d{register}[{_in_dict(edge).name!r}]"
        return f"r{register}._bare" if register in self._in_place else f"r{register}._value"

    def marks(self, registers: Sequence[int]) -> list[str]:
        """The lines that say of cells that they have been written."""
        found = [(i, _in_dict(self._direct[i]).mark) for i in registers if i in self._direct]
        return [f"d{i}[{mark!r}] = True" for i, mark in found if mark is not None]

    def _edge(self, edge: Edge) -> None:
        parent, how, key, what, argument, register = edge
        above = f"r{parent}"
        if what == "absent":
            self.leave_if(f"{key!r} in {above}.__dict__")
            return
        if what == "nowhere":
            self.leave_if(f"hasattr({above}, {key!r})")
            return
        if what == "unset":
            self.leave_if(f"not absent({above}, {how!r}, {key!r}, {what!r})")
            return
        if register in self._direct:
            self.lines.append(f"d{register} = {above}.__dict__")
            return
        if how == "reader" and register >= 0 and self._adopted(edge):
            return
        value = self._expression(above, how, key)
        if what == "same":
            self.leave_if(f"{value} is not r{argument}")
        elif what == "plain":
            self._plain(value, argument)
        else:
            if what != "is" or (register >= 0 and register in self._used):
                self.lines.append(f"r{register} = {value}")
                value = f"r{register}"
            self._condition(value, what, argument)

    def _adopted(self, edge: Edge) -> bool:
        """Takes a handle out of the slot in which it is; False where there is none."""
        parent, _, reader, what, _, register = edge
        slot = reader.slot() if isinstance(reader, Cell) else None
        if slot is None or what not in ("state", ""):
            return False
        name, kind = slot
        self.lines.append(f"r{register} = r{parent}.{name}")
        self.lines.append(
            f"if type(r{register}) is not {self.constant(kind)}: r{register} = {self.constant(reader)}(r{parent})"
        )
        if what:
            self._condition(f"r{register}", what, edge.argument)
        return True

    def _states(self, states: dict[int, Edge]) -> None:
        """Classes, and that no two are one. A token belongs to one state: for those of the last call all is known."""
        lines, self.lines = self.lines, []
        for register, edge in states.items():
            self._condition(f"r{register}", "state", edge.argument)
        self._distinct(states, of_states=True)
        self.names["seen"] = [None]
        lines.append(f"tokens = [{', '.join(f'r{register}._token' for register in states)}]")
        lines.append("if tokens != seen[0]:")
        self.lines = [*lines, *[f" {line}" for line in self.lines], " seen[0] = tokens"]

    def _expression(self, above: str, how: str, key: Any) -> str:
        if how == "root":
            return str(self._roots[key])
        if how in ("attr", "method"):
            plain = key.isidentifier() and not keyword.iskeyword(key)
            found = f"{above}.{key}" if plain else f"getattr({above}, {key!r})"
            return f"{found}.__func__" if how == "method" else found
        if how == "value":
            return self.value(int(above[1:]))
        if how == "reader":
            return f"{self.constant(key)}({above})"
        if how == "class":
            return self._class_of.get(above) or f"type({above})"
        if how == "cell":
            return f"{above}.__closure__[{key[0]}].cell_contents"
        if how == "inherited":
            is_direct = key[1] == 0 and above in self._classes and key[0] in vars(self._classes[above])
            return f"{above}.__dict__[{key[0]!r}]" if is_direct else f"step({above}, {how!r}, {self.constant(key)})"
        index = repr(key) if type(key) in (int, str) else self.constant(key)
        if how == "global":
            name = f"g{above[1:]}"
            if name not in self._asked:
                self._asked.add(name)
                self.lines.append(f"{name} = {above}.__globals__")
            return f"{name}[{index}]"
        return f"{above}[{index}]" if how == "item" else f"{above}.__dict__[{index}]"

    def _plain(self, value: str, argument: Any) -> None:
        """Compares with a plain value."""
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
            cls = self._class(argument)
            self.leave_if(f"type({value}) is not {cls}")
            self._class_of[value] = cls
        elif what == "sequence":
            self.leave_if(f"type({value}) is not {self.constant(argument[0])} or len({value}) != {argument[1]}")
        elif what == "":
            pass
        elif (
            what == "mapping"
            and argument[0] is dict
            and len(argument[1]) <= _KEYS
            and {*map(type, argument[1])} == {str}
        ):
            self._mapping(value, argument)
        elif what == "code":
            # Code holds nothing of the user's but code, so it need not be held weakly; gone, it is found nowhere.
            code = self.constant(argument())
            self.leave_if(f"type({value}) is not FunctionType or {value}.__code__ is not {code}")
        elif what == "is":
            if value != (expected := self._class(argument)):  # the class of an object has been looked at
                is_gone = f" or {value} is None" if expected.endswith("_now") else ""
                self.leave_if(f"{value} is not {expected}{is_gone}")
        elif what == "type":
            self.leave_if(f"type({value}) is not {self._class(argument)}")
        else:
            self.leave_if(f"not holds({value}, {what!r}, {self.constant(argument)})")

    def _mapping(self, value: str, argument: Any) -> None:
        """Keys that are the very same objects are of the same type; strings mostly are."""
        keys = [self.constant(key) for key in argument[1]]
        self.leave_if(f"type({value}) is not dict")
        self.lines.append(f"{''.join(f'key{i}, ' for i in range(len(keys)))}= {value}")
        is_other = " or ".join(f"key{i} is not {key}" for i, key in enumerate(keys))
        self.leave_if(f"({is_other}) and not holds({value}, 'mapping', {self.constant(argument)})")

    def _class(self, reference: Callable[[], Any]) -> str:
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
    needed = {edge.parent for edge in structure.edges if edge.how != "value"}
    needed |= {edge.argument for edge in structure.edges if edge.what == "same"}
    states = [edge for edge in structure.edges if edge.what == "state"]
    cells = [edge for edge in states if getattr(edge.argument[0](), "_is_handle", False)]
    is_direct = lambda edge: edge.register not in needed and _in_dict(edge) is not None
    # All or none: whether a handle and a cell are one is told by handles only.
    return {edge.register: edge for edge in cells} if all(map(is_direct, cells)) else {}


def _in_dict(edge: Edge) -> Any:
    return edge.key.in_dict(edge.argument[0]()) if isinstance(edge.key, Cell) else None
