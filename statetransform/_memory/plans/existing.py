"""Which values of a gradient step exist: read from the compiled program.

Compilers fuse. What is computed inside of a fusion has no bytes, and no equation of a jaxpr says so. The compiled text
does: it is the program as scheduled, partitioned and laid out. Each equation runs under a name scope of its own, which
the text keeps as metadata. A value exists if its scope is on an instruction of the entry computation: on one that is no
fusion, on the root of a fusion, or on what that returns.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.extend.core as jex

from ... import _jax

_SCOPE = re.compile(r'op_name="[^"]*?\bvalue(\d+)_\b')
_COMPUTATION = re.compile(r"(ENTRY )?%?([\w.\-]+) .*\{$")
_INSTRUCTION = re.compile(r"\s*(ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\(")
_ARRAY = re.compile(r"([a-z]+\d*[a-z0-9]*)\[([\d,]*)\](?:\{([\d,]*)((?::|)[^}]*)\})?")
_TILE = re.compile(r"T\(([\d,]+)\)")
_NAME = re.compile(r"%([\w.\-]+)")
# These hold nothing of their own.
_VIEWS = frozenset(("bitcast", "tuple", "get-tuple-element", "parameter", "constant", "opt-barrier"))
# What a fusion's root may do with its value on the way out.
_MOVES = frozenset(("bitcast", "copy", "transpose", "convert", "reshape"))


@dataclasses.dataclass(frozen=True)
class Held:
    """What an equation holds in a compiled program.

    Attributes:
      size: bytes of its value on one device.
      scratch: bytes of what is there besides while it is computed: parts of sums, copies of operands, workspaces.
      numbers: the most that one of its arrays has. Compilers compute products with the same operand as one, which
        bears one of their names.
    """

    size: int
    scratch: int
    numbers: int = 0

    def of_one(self, lanes: int) -> Held:
        """The part of one of the lanes that a program is compiled for."""
        return Held(-(-self.size // lanes), -(-self.scratch // lanes), -(-self.numbers // lanes))


class _Buffer(NamedTuple):
    """An array of a compiled program: its bytes on one device, and how many numbers it has."""

    size: int
    numbers: int


def scoped(flat: Any) -> Callable[..., list[Any]]:
    """A flat closed jaxpr as a function that runs each equation under a scope with its number."""
    body, consts = _jax.opened(flat), _jax.consts_of(flat)

    def run(*inputs: Any) -> list[Any]:
        env = dict(zip([*body.constvars, *body.invars], [*consts, *inputs], strict=True))
        read = lambda atom: atom.val if isinstance(atom, jex.Literal) else env[atom]
        for i, eqn in enumerate(body.eqns):
            with jax.named_scope(f"value{i}_"), _jax.in_place_of(eqn):
                outputs = _jax.bind(eqn.primitive, list(map(read, eqn.invars)), eqn.params)
            env.update(zip(eqn.outvars, outputs, strict=True))
        return list(map(read, body.outvars))

    return run


def existing(text: str) -> dict[int, Held]:
    """The equations whose values exist, by number, from a compiled program's text."""
    computations = dict(_computations(text))
    entry = computations.get("ENTRY", {})
    made: dict[str, dict[int, tuple[int, _Buffer]]] = {}  # by the place in what an instruction returns
    for name, line in entry.items():
        match = _INSTRUCTION.match(line)
        if match is not None and match[4] not in _VIEWS:
            made[name] = dict(_made(line, match[4], list(map(_buffer, _ARRAY.finditer(match[3]))), computations))
    readers = _readers(entry)
    kept, passing = dict[int, list[_Buffer]](), dict[int, list[_Buffer]]()
    for name, buffers in made.items():
        for place, (number, buffer) in reversed(buffers.items()):  # of a kernel with a workspace the value is first
            using = readers.get((name, place), ())
            lasts = any(number not in [n for n, _ in made.get(reader, {}).values()] for reader in using)
            (kept if lasts else passing).setdefault(number, []).append(buffer)
    found = dict[int, Held]()
    for number in {**kept, **passing}:
        own, rest = kept.get(number, []), passing.get(number, [])
        own, rest = (own, rest) if own else (rest[-1:], rest[:-1])
        size, scratch = (sum(buffer.size for buffer in some) for some in (own, rest))
        found[number] = Held(size, scratch, max(buffer.numbers for buffer in own))
    return found


def _readers(entry: dict[str, str]) -> dict[tuple[str, int], list[str]]:
    """The instructions that read each buffer, by the instruction that makes it and the place in what that returns.

    What a tuple hands to a loop is read by the loop, which bears the name of the same equation.
    """
    origin, found, tuples = dict[str, tuple[str, int]](), dict[tuple[str, int], list[str]](), set[str]()
    for name, line in entry.items():
        match = _INSTRUCTION.match(line)
        assert match is not None
        operands = _NAME.findall(line[match.end() :].split("), ")[0])
        if match[4] == "get-tuple-element":
            at = int(line.rpartition("index=")[2].split(",")[0].split()[0])
            origin[name] = (operands[0], at)
        elif match[4] in ("bitcast", "opt-barrier") and operands:
            origin[name] = origin.get(operands[0], (operands[0], 0))
        else:
            tuples.update([name] if match[4] == "tuple" else ())
            for operand in operands:
                found.setdefault(origin.get(operand, (operand, 0)), []).append(name)
    read_by = lambda reader: found.get((reader, 0), [reader]) if reader in tuples else [reader]
    return {made: [user for reader in using for user in read_by(reader)] for made, using in found.items()}


def _made(
    line: str, name: str, buffers: list[_Buffer], computations: dict[str, dict[str, str]]
) -> Iterator[tuple[int, tuple[int, _Buffer]]]:
    """The equations whose values an instruction makes, with their buffers, by the place in what it returns."""
    own = _SCOPE.search(line)
    called = re.search(r"calls=%?([\w.\-]+)", line) if name == "fusion" else None
    body = computations.get(called[1], {}) if called else {}
    root = next((inner for inner in body.values() if inner.lstrip().startswith("ROOT")), "")
    if " tuple(" not in root:
        scope = _scope(root, body) or own
        if scope is not None:
            yield from enumerate((int(scope[1]), buffer) for buffer in buffers)
        return
    parts = [part for part in _NAME.findall(root.split(" tuple(", 1)[1].split("), ")[0]) if part in body]
    for place, (part, buffer) in enumerate(zip(parts, buffers, strict=False)):
        if (scope := _scope(body[part], body)) is not None:
            yield place, (int(scope[1]), buffer)


def _scope(line: str, body: dict[str, str]) -> Any:
    """The scope of an instruction in a fusion, or of what it moves."""
    while line:
        if (found := _SCOPE.search(line)) is not None:
            return found
        match = _INSTRUCTION.match(line)
        if match is None or match[4] not in _MOVES:
            return None
        operand = _NAME.search(line, match.end())
        line = body.get(operand[1], "") if operand else ""
    return None


def _computations(text: str) -> Iterator[tuple[str, dict[str, str]]]:
    """The computations by name, each with its instructions by name."""
    name, lines = None, dict[str, str]()
    for line in text.splitlines():
        if name is None:
            head = None if line.startswith(" ") else _COMPUTATION.match(line)
            name = head and ("ENTRY" if head[1] else head[2])
        elif line.startswith("}"):
            yield name, lines
            name, lines = None, {}
        elif (found := _INSTRUCTION.match(line)) is not None:
            lines[found[2]] = line


def _buffer(array: Any) -> _Buffer:
    """An array of some layout, with what its tiles are filled up with; without bytes in the host's memory."""
    kind, dims, order, layout = array[1], array[2], array[3], array[4] or ""
    shape = [int(n) for n in dims.split(",") if n]
    numbers = math.prod(shape)
    if "S(5)" in layout:
        return _Buffer(0, numbers)
    if (tile := _TILE.search(layout)) is not None and order:
        sizes = list(map(int, tile[1].split(",")))
        minor = list(map(int, order.split(",")))[: len(sizes)]
        for axis, size in zip(minor, reversed(sizes), strict=False):
            shape[axis] = -(-shape[axis] // size) * size
    bits = re.search(r"\d+", kind)
    return _Buffer(math.prod(shape) * (1 if bits is None else max(int(bits[0]), 8) // 8), numbers)
