"""The way in of a program: one generated function for a call on a known signature.

`write_way_in` writes down what every such call has to do: unpack the arguments, follow the recorded paths from the
function, the instance and the arguments to the states, check the structure on the way, call the compiled program with
the states' values, and store what comes back. Nothing is interpreted and no pytree is walked in Python. The function
gives `OTHER` when the call does not match, before it has changed anything.

For one state, one array and a closure it reads::

    def walk(program, jitted, obj, args, kwargs):
        try:
            if obj is not NO_SELF: return OTHER
            a0, = args
            if kwargs: return OTHER
            r0 = jitted._fun
            if type(r0) is not FunctionType or r0.__code__ is not c7: return OTHER
            r1 = r0.__closure__[0].cell_contents
            if type(r1) is not State or r1._static is not False: return OTHER
            v0, = r1._value,
        except Exception:
            return OTHER
        try:
            out, new = run(v0, a0)
        except Exception as error:
            return jitted._failed(program, error, obj, args, kwargs)
        if type(new) is not list or len(new) != 1: return jitted._finish(program, obj, args, kwargs, (out, new), (r1, ))
        n0, = new
        if (type(n0) is not Array) and not is_top_level(): refuse_tracers(zip((r1, ), (n0,)))
        r1._value = n0
        return out
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import jax

from .._jax import concrete_array, is_top_level
from .._objects.plain import same_plain
from .._states.frame import leave, refuse_tracers
from .._traces.arguments import NO_SELF, Static, is_hidden, is_reference
from .._uses.generated import WalkWriter

Program: TypeAlias = Any  # the one of `_programs`, which imports this module

#: What the generated function gives when the structure or the arguments are others than the program's.
OTHER: Any = object()
WayIn = Callable[[Any, Any, Any, tuple[Any, ...], dict[str, Any]], Any]
_NAMES = {
    "NO_SELF": NO_SELF,
    "OTHER": OTHER,
    "is_top_level": is_top_level,
    "leave": leave,
    "refuse_tracers": refuse_tracers,
}
_LOOKED_AT = 8  # with more results than this, asking JAX for its context is cheaper than testing the type of each


def no_way_in(jitted: Any, obj: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The way in where none is written down."""
    return OTHER


def write_way_in(program: Program, has_self: bool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> WayIn | None:
    """Writes the way in of a program, from the hidden arguments of one call; None where there can be none."""
    structure = program.structure
    if structure is None:
        return None
    arguments = _Arguments(program.keeps_places)
    if not arguments.unpack(has_self, args, kwargs):
        return None
    writer = WalkWriter(structure, arguments.roots)
    writer.lines[:0] = arguments.lines
    writer.names.update(arguments.names, **_NAMES, run=program.jitted, Array=concrete_array())
    written = [structure.states[i] for i in program.written]
    # Read in here: what fails on the way says that the structure is another.
    inputs = [structure.states[i] for i in program.inputs]
    leading = [f"v{k}" for k in range(len(inputs))]
    if leading:
        writer.lines.append(f"{', '.join(leading)}, = {', '.join(map(writer.value, inputs))},")
    call = ["try:", f" out, new = run({', '.join([*leading, *arguments.passed])})", "except Exception as error:"]
    call.append(" return jitted._failed(program, error, obj, args, kwargs)")
    states = writer.handles(structure.states)
    other = f"return jitted._finish(program, obj, args, kwargs, (out, new), {states})"
    store = _stores(writer, written, other)
    store += writer.marks(written)
    guarded = ["try:", *[f" {line}" for line in writer.lines], "except Exception:", " return OTHER"]
    # If anything fails on the way, in the user's code as well, the structure is another one.
    return writer.compile("program, jitted, obj, args, kwargs", [*guarded, *call, *store, "return out"])


def _stores(writer: WalkWriter, written: list[int], other: str) -> list[str]:
    """The lines that store the new values: all or none, since nothing can interrupt them."""
    lines = [f"if type(new) is not list or len(new) != {len(written)}: {other}"]
    if not written:
        # What comes out may belong to a raw transform around, where the states that were read are constants.
        look = "jitted._look_at(program, obj, args, kwargs)"
        return [*lines, f"if type(out) is not Array and not is_top_level(): {look}"]
    handles = writer.handles(written)
    if writer.runs_code(written):
        return [*lines, f"leave(zip({handles}, new))"]
    places = [*map(writer.value, written)]
    if len(written) > _LOOKED_AT:
        lines.append(f"if not is_top_level(): refuse_tracers(zip({handles}, new))")
        return [*lines, f"{', '.join(places)} = new"]
    values = [f"n{i}" for i in range(len(written))]
    lines.append(f"{', '.join(values)}, = new")
    is_other = " or ".join(f"type({value}) is not Array" for value in values)
    pairs = f"zip({handles}, ({', '.join(values)},))"
    lines.append(f"if ({is_other}) and not is_top_level(): refuse_tracers({pairs})")
    return lines + [f"{place} = {value}" for place, value in zip(places, values, strict=True)]


def is_dropped(arg: Any) -> bool:
    """Whether an argument has nothing for JAX: static values and objects only."""
    leaves = jax.tree.leaves(arg, is_leaf=is_hidden)
    return bool(leaves) and all(map(is_hidden, leaves))


class _Arguments:
    """How the arguments of a call are unpacked and checked: lines, and the names that they use.

    `roots` and `passed` are expressions: for the roots of the structure, and for what JAX gets.
    """

    def __init__(self, keeps_places: bool) -> None:
        self.lines: list[str] = []
        self.names: dict[str, Any] = {"same_plain": same_plain}
        self.roots: list[str] = ["jitted._fun"]
        self.passed: list[str] = []
        self._keeps_places = keeps_places

    def unpack(self, has_self: bool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Writes the lines; False when one of the arguments cannot be written down."""
        if has_self:
            self.roots.append("obj")
            args = args[1:]
        else:
            self.lines.append("if obj is not NO_SELF: return OTHER")
        self.lines.append(f"{''.join(f'a{i}, ' for i in range(len(args)))}= args" if args else "if args: return OTHER")
        self.lines.append(f"if len(kwargs) != {len(kwargs)}: return OTHER" if kwargs else "if kwargs: return OTHER")
        for i, key in enumerate(sorted(kwargs)):
            self.lines.append(f"k{i} = kwargs[{key!r}]")
        given = [(f"a{i}", "", arg) for i, arg in enumerate(args)]
        given += [(f"k{i}", f"{key}=", kwargs[key]) for i, key in enumerate(sorted(kwargs))]
        if not all(key.isidentifier() for key in kwargs):
            return False
        for name, prefix, hidden in given:
            text = self._argument(name, hidden)
            if text is None:
                return False
            if self._keeps_places or not is_dropped(hidden):
                self.passed.append(f"{prefix}{text}")
        return True

    def _constant(self, value: Any) -> str:
        name = f"h{len(self.names)}"
        self.names[name] = value
        return name

    def _argument(self, given: str, hidden: Any) -> str | None:
        """Checks one argument; gives the expression for what JAX is to get, None where it cannot be written down."""
        if not any(map(is_hidden, jax.tree.leaves(hidden, is_leaf=is_hidden))):
            return given
        if is_reference(hidden):
            self.roots.append(given)
            return self._constant(hidden)
        if isinstance(hidden, Static):
            value = self._constant(hidden.value)
            self.lines.append(f"if {given} is not {value} and not same_plain({given}, {value}): return OTHER")
            return self._constant(hidden)
        kind = type(hidden)
        if kind not in (list, tuple, dict):
            return None
        self.lines.append(f"if type({given}) is not {kind.__name__} or len({given}) != {len(hidden)}: return OTHER")
        if kind is dict:
            if not all(type(key) in (str, int) for key in hidden):
                return None
            inner = {key: self._argument(f"{given}[{key!r}]", hidden[key]) for key in sorted(hidden)}
            return None if None in inner.values() else f"{{{', '.join(f'{k!r}: {v}' for k, v in inner.items())}}}"
        items = [self._argument(f"{given}[{i}]", child) for i, child in enumerate(hidden)]
        if None in items:
            return None
        text = "".join(f"{item}, " for item in items)
        return f"[{text}]" if kind is list else f"({text})"
