"""Jaxprs as lines of labelled pieces: arguments and states under their names, residuals under the same name in both
halves."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax.extend.core as jex
import jax.numpy as jnp

from .._core import jaxcompat
from .split import Split, without_dead_code
from .walk import inner_jaxprs

_LONGEST = 48  # characters of a parameter of an equation; longer ones say nothing to a reader


class Piece(NamedTuple):
    """Text, and what it is: "", "argument", "state", "constant", "residual", "cotangent", "primitive" or "note"."""

    text: str
    style: str = ""


Line = list[Piece]


def halves_as_lines(halves: Split) -> tuple[list[Line], list[Line]]:
    """The lines of the forward and of the backward jaxpr.

    >>> from statetransform._analysis.split import split
    >>> from statetransform._analysis.staged import stage
    >>> import jax.numpy as jnp
    >>> forward, backward = halves_as_lines(split(stage(jnp.sin, (2.0,), {})))
    >>> print(*["".join(piece.text for piece in line) for line in forward], sep="\\n")
    in    x:f32[]
    a:f32[] = sin x
    b:f32[] = cos x
    out   a
    keep  b:f32[]
    """
    writer = _Writer()
    body, backward = jaxcompat.opened(halves.forward), halves.backward()
    back = jaxcompat.opened(backward)
    for i, var in enumerate(body.constvars):
        writer.names[var] = Piece(f"constant{i}", "constant")
    for var, label in zip(body.invars, halves.labels, strict=True):
        writer.names[var] = Piece(label.name, label.kind)
    first = halves.n_outputs + halves.n_auxiliary
    outputs, residuals = list(body.outvars)[:first], list(body.outvars)[first:]
    kept = {atom for atom in residuals if not isinstance(atom, jex.Literal)}
    writer.residuals = kept - set(writer.names)
    writer.taken = frozenset(piece.text for piece in writer.names.values())
    lines = [writer.inputs("in    ", [*body.invars, *body.constvars])]
    lines += writer.equations(without_dead_code(halves.forward, list(body.outvars)), "")
    lines += [writer.atoms("out   ", outputs, typed=False), writer.atoms("keep  ", residuals, typed=True)]
    for var, atom in zip(back.invars, residuals, strict=False):
        writer.names[var] = writer.named(atom)
    cotangents = back.invars[len(residuals) :]
    for i, var in enumerate(cotangents):
        writer.names[var] = Piece("ct" if len(cotangents) == 1 else f"ct{i}", "cotangent")
    for i, var in enumerate(back.constvars):
        writer.names[var] = Piece(f"constant{len(body.constvars) + i}", "constant")
    below = [writer.atoms("kept  ", list(back.invars[: len(residuals)]), typed=True)]
    below.append(writer.inputs("in    ", [*cotangents, *back.constvars]))
    below += writer.equations(without_dead_code(backward, list(back.outvars)), "")
    below += [_gradients(writer, halves, list(back.outvars))]
    return lines, below


def _gradients(writer: _Writer, halves: Split, atoms: list[Any]) -> Line:
    floats = [
        label
        for label, aval in zip(halves.labels, halves.staged.avals, strict=True)
        if jnp.issubdtype(aval.dtype, jnp.inexact)
    ]
    line = [Piece("out   ", "note")]
    for i, atom in enumerate(atoms):
        label = floats[i] if i < len(floats) else None
        line += [Piece(", ")] if i else []
        line += [Piece("d ")] + ([Piece(label.name, label.kind), Piece(" = ")] if label else [])
        line.append(writer.named(atom))
    return line


class _Writer:
    """Gives names to variables and writes equations."""

    def __init__(self) -> None:
        self.names: dict[Any, Piece] = {}
        self.residuals: set[Any] = set()
        self.taken: frozenset[str] = frozenset()
        self._fresh = _letters()

    def named(self, atom: Any) -> Piece:
        """What to write for a variable or literal."""
        if isinstance(atom, jex.Literal):
            return Piece(str(atom.val))
        if atom not in self.names:
            free = (name for name in self._fresh if name not in self.taken)
            text = "_" if type(atom).__name__ == "DropVar" else next(free)
            self.names[atom] = Piece(text, "residual" if atom in self.residuals else "")
        return self.names[atom]

    def inputs(self, head: str, variables: list[Any]) -> Line:
        """A line with names and types."""
        return self.atoms(head, variables, typed=True)

    def atoms(self, head: str, atoms: list[Any], typed: bool) -> Line:
        """A line that lists values."""
        line = [Piece(head, "note")]
        for i, atom in enumerate(atoms):
            line += [Piece(", ")] if i else []
            line += [self.named(atom), *([Piece(f":{_type(atom)}", "note")] if typed else [])]
        return line

    def equations(self, eqns: list[Any], indent: str) -> list[Line]:
        """The lines of some equations, with the jaxprs inside them below, indented."""
        lines: list[Line] = []
        for eqn in eqns:
            line = [Piece(indent)]
            for i, var in enumerate(eqn.outvars):
                line += [Piece(" ")] if i else []
                line += [self.named(var), *([] if self.named(var).text == "_" else [Piece(f":{_type(var)}", "note")])]
            name = jaxcompat.name_of(eqn)
            head = f"name {name!r}" if name is not None else eqn.primitive.name
            line += [Piece(" = "), Piece(head, "primitive"), Piece(_params(eqn) if name is None else "", "note")]
            for atom in eqn.invars:
                line += [Piece(" "), self.named(atom)]
            inner = inner_jaxprs(eqn)
            lines.append([*line, Piece(" {")] if inner else line)
            for part in inner:
                body = jaxcompat.opened(part.jaxpr)
                role = "" if len(inner) == 1 else f"{part.role} "
                lines.append(self.inputs(f"{indent}  {role}in ", [*body.constvars, *body.invars]))
                lines += self.equations(without_dead_code(part.jaxpr, list(body.outvars)), indent + "  ")
                lines.append(self.atoms(f"{indent}  out ", list(body.outvars), typed=False))
            if inner:
                lines.append([Piece(indent + "}")])
        return lines


def _letters() -> Iterator[str]:
    alphabet = "abcdefghijklmnopqrstuvwxyz"
    for length in itertools.count(1):
        for letters in itertools.product(alphabet, repeat=length):
            yield "".join(letters)


def _type(atom: Any) -> str:
    return atom.aval.str_short(short_dtypes=True) if hasattr(atom.aval, "str_short") else str(atom.aval)


def _params(eqn: Any) -> str:
    shown = []
    for key, value in eqn.params.items():
        if value is None or value is False or key in ("accuracy", "ft_in", "ft_out", "policy", "prevent_cse", "unroll"):
            continue
        text = str(value)
        if isinstance(value, int | str | float | tuple | bool) and len(text) <= _LONGEST and "{" not in text:
            shown.append(f"{key}={text}")
    return f"[{' '.join(shown)}]" if shown else ""
