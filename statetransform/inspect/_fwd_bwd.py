"""`fwd_bwd`: the forward and the backward pass side by side."""

from __future__ import annotations

import html
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax.extend.core as jex

from .._core import jaxcompat
from .._core.report import WIDTH, wrapped
from .._core.tracebacks import boundary
from .._jaxpr.walk import backward_slice, inner_jaxprs
from .._planner.view import view_of
from ._halves import Halves, halves_of
from ._render import rich_columns

_LONGEST = 48  # characters of a parameter of an equation; longer ones say nothing to a reader


class Piece(NamedTuple):
    """Text, and what it is: "", "argument", "state", "constant", "residual", "cotangent", "primitive" or "note"."""

    text: str
    style: str = ""


Line = list[Piece]


def halves_as_lines(halves: Halves) -> tuple[list[Line], list[Line]]:
    """The lines of the forward and of the backward jaxpr.

    >>> from statetransform.inspect._halves import halves_of
    >>> from statetransform._planner.view import view_of
    >>> import jax.numpy as jnp
    >>> forward, backward = halves_as_lines(halves_of(view_of(jnp.sin, (2.0,), {})))
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
    lines += writer.equations(backward_slice(halves.forward, list(body.outvars)), "")
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
    below += writer.equations(backward_slice(backward, list(back.outvars)), "")
    below += [_gradients(writer, halves, list(back.outvars))]
    return lines, below


def _gradients(writer: _Writer, halves: Halves, atoms: list[Any]) -> Line:
    floats = halves.view.gradients
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
            text = "_" if isinstance(atom, jex.DropVar) else next(free)
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
                lines += self.equations(backward_slice(part.jaxpr, list(body.outvars)), indent + "  ")
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
    return jaxcompat.type_text(atom.aval, short=True)


def _params(eqn: Any) -> str:
    shown = []
    for key, value in eqn.params.items():
        if value is None or value is False or key in ("accuracy", "ft_in", "ft_out", "policy", "prevent_cse", "unroll"):
            continue
        text = str(value)
        if isinstance(value, int | str | float | tuple | bool) and len(text) <= _LONGEST and "{" not in text:
            shown.append(f"{key}={text}")
    return f"[{' '.join(shown)}]" if shown else ""


_RULE = " | "  # between the columns
#: How each kind of piece looks, in rich and in HTML. Bold and italic say the same without colour.
STYLES = {
    "argument": ("bold green", "color:#1a7f37;font-weight:bold"),
    "state": ("bold magenta", "color:#8250df;font-weight:bold"),
    "constant": ("yellow", "color:#9a6700"),
    "residual": ("bold underline", "font-weight:bold;text-decoration:underline"),
    "cotangent": ("italic cyan", "color:#0969da;font-style:italic"),
    "primitive": ("blue", "color:#0550ae"),
    "note": ("dim", "color:#6e7781"),
}


class FwdBwd:
    """The two halves of a gradient as lines of text, side by side when printed.

    Attributes:
        name: of the function.
        forward, backward: the lines.
        states: the names of the states read.
    """

    def __init__(self, name: str, forward: list[Line], backward: list[Line], states: tuple[str, ...]) -> None:
        self.name: str = name
        self.states: tuple[str, ...] = states
        self.lines: tuple[list[Line], list[Line]] = (forward, backward)

    @property
    def forward(self) -> list[str]:
        """The forward jaxpr, line by line."""
        return [_text(line) for line in self.lines[0]]

    @property
    def backward(self) -> list[str]:
        """The backward jaxpr, line by line."""
        return [_text(line) for line in self.lines[1]]

    @property
    def titles(self) -> tuple[str, str]:
        """The headings of the columns."""
        return f"forward of {self.name}", f"backward of {self.name}"

    def text(self, width: int | None = WIDTH) -> str:
        """The two halves side by side.

        Args:
            width: the most characters of a line, 120 as printed; None for as many as it takes.
        """
        widths = _shared([max(len(_text(line)) for line in half) for half in self.lines], width)
        columns = [
            [piece for line in half for piece in _wrapped(line, wide)]
            for half, wide in zip(self.lines, widths, strict=True)
        ]
        left = [self.titles[0], "-" * len(self.titles[0]), *map(_text, columns[0])]
        right = [self.titles[1], "-" * len(self.titles[1]), *map(_text, columns[1])]
        left_width = max(map(len, left))
        rows = itertools.zip_longest(left, right, fillvalue="")
        legend = wrapped(f"states: {', '.join(self.states)}", width) if self.states else []
        return "\n".join([*[f"{a.ljust(left_width)}{_RULE}{b}".rstrip() for a, b in rows], *legend])

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return str(self)

    def __rich__(self) -> Any:
        return rich_columns(self.titles, self.lines, {kind: style for kind, (style, _) in STYLES.items()})

    def _repr_html_(self) -> str:
        cells = []
        for title, half in zip(self.titles, self.lines, strict=True):
            body = "\n".join("".join(map(_span, line)) for line in half)
            pre = f"<pre style='white-space:pre-wrap;margin:0'>{body}</pre>"
            cells.append(f"<td style='vertical-align:top;text-align:left'><b>{html.escape(title)}</b>{pre}</td>")
        return f"<table><tr>{''.join(cells)}</tr></table>"


def _text(line: Line) -> str:
    return "".join(piece.text for piece in line)


def _span(piece: Piece) -> str:
    text = html.escape(piece.text)
    return f"<span style='{STYLES[piece.style][1]}'>{text}</span>" if piece.style in STYLES else text


def _shared(widths: Sequence[int], width: int | None) -> list[int]:
    """The widths of two columns: what one does not need goes to the other."""
    if width is None:
        return list(widths)
    room = width - len(_RULE)
    return [max(room // 2, room - other) for other in reversed(widths)]


def _wrapped(line: Line, widest: int) -> list[Line]:
    """A line in pieces of the widest width, the later ones indented."""
    text = _text(line)
    if len(text) <= widest:
        return [line]
    indent = min(len(text) - len(text.lstrip()) + 4, widest // 2)
    lines: list[Line] = [[]]
    used = 0
    for piece in line:
        if used + len(piece.text) > widest and used > indent:
            lines.append([Piece(" " * indent)])
            used = indent
        for part in _cut(piece, widest - used, widest - indent):
            if lines[-1] and used + len(part.text) > widest:
                lines.append([Piece(" " * indent)])
                used = indent
            lines[-1].append(part)
            used += len(part.text)
    return lines


def _cut(piece: Piece, first: int, rest: int) -> list[Piece]:
    """A piece that is too long for a line in parts, the first of which ends the present line."""
    if len(piece.text) <= first:
        return [piece]
    starts = [0, *range(first, len(piece.text), rest)]
    return [Piece(piece.text[a:b], piece.style) for a, b in itertools.pairwise([*starts, len(piece.text)])]


@boundary
def fwd_bwd(f: Callable[..., Any], /, *args: Any, argnums: Any = None, states: Any = None, **kwargs: Any) -> FwdBwd:
    """The forward and the backward pass of a function as jaxprs, side by side.

    Arguments and states stand under their own names, and a residual has the same name on both sides. With `rich`,
    ``rich.print`` shows it in colour; in a notebook it is HTML.

    Args:
      f, `*args`, `argnums`, `states`, `**kwargs`: as for `residuals`.

    Returns:
      The two halves; each variable has its dtype and shape.

    Raises:
      TypeError: `f` is not callable, or JAX cannot differentiate it at these arguments.

    References:
      https://docs.jax.dev/en/latest/jaxpr.html

    Example:
      >>> from statetransform import State, inspect
      >>> import jax.numpy as jnp
      >>> w = State(jnp.ones(3), name="w")
      >>> def f(x):
      ...     return jnp.sin(w.value * x)
      >>> print(inspect.fwd_bwd(f, jnp.ones(3)))
      forward of f                      | backward of f
      ------------                      | -------------
      in    x:f32[3], w:f32[3]          | kept  x:f32[3], w:f32[3], c:f32[3]
      a:f32[3] = mul w x                | in    ct:f32[3]
      b:f32[3] = sin a                  | d:f32[3] = mul ct c
      c:f32[3] = cos a                  | e:f32[3] = mul w d
      out   b                           | f:f32[3] = mul d x
      keep  x:f32[3], w:f32[3], c:f32[3] | out   d x = e, d w = f
      states: w
    """
    view = view_of(f, args, kwargs, argnums, states)
    forward, backward = halves_as_lines(halves_of(view))
    states = tuple(label.name for label in view.labels if label.kind == "state")
    return FwdBwd(view.name, forward, backward, states)
