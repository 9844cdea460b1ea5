"""`fwd_bwd`: the forward and the backward pass side by side."""

from __future__ import annotations

import html
import itertools
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax.extend.core as jex

from .. import _jaxcompat as jaxcompat
from .._jaxpr.walk import backward_slice, inner_jaxprs
from .._planner.view import view_of
from .._report.optional import require
from .._report.table import WIDTH, wrapped
from .._trace.tracebacks import boundary
from ._halves import Halves, halves_of

_LONGEST = 48  # characters of a parameter of an equation; longer ones say nothing to a reader
_QUIET = ("accuracy", "ft_in", "ft_out", "policy", "prevent_cse", "unroll")  # parameters that say nothing either


class _JaxprWriter:
    """Gives names to variables and writes equations as JAX does. (JAX's own printer takes no names.)

    Attributes:
      kinds: the kind of each name that is highlighted: "argument", "state", "constant", "residual" or "cotangent".
    """

    def __init__(self) -> None:
        self.kinds: dict[str, str] = {}
        self._names: dict[Any, str] = {}
        self._residuals: set[Any] = set()
        self._letters = _letters()

    def halves(self, halves: Halves) -> tuple[list[str], list[str]]:
        """The lines of the forward and of the backward jaxpr.

        >>> from statetransform._planner.view import view_of
        >>> import jax.numpy as jnp
        >>> forward, backward = _JaxprWriter().halves(halves_of(view_of(jnp.sin, (2.0,), {})))
        >>> print(*forward, sep="\\n")
        in    x:f32[]
        a:f32[] = sin x
        b:f32[] = cos x
        out   a
        keep  b:f32[]
        """
        closed = halves.backward()
        body, back = jaxcompat.opened(halves.forward), jaxcompat.opened(closed)
        n_outputs, kept = halves.n_outputs + halves.n_auxiliary, halves.residuals
        cotangents = list(back.invars[len(kept) :])
        self._name(body.invars, [label.name for label in halves.labels], [label.kind for label in halves.labels])
        constants = [*body.constvars, *back.constvars]
        self._name(constants, [f"constant{i}" for i in range(len(constants))], ["constant"] * len(constants))
        numbers = [""] if len(cotangents) == 1 else map(str, range(len(cotangents)))
        self._name(cotangents, [f"ct{i}" for i in numbers], ["cotangent"] * len(cotangents))
        self._residuals = {atom for atom in kept if not isinstance(atom, jex.Literal)}
        forward = [
            f"in    {self._typed([*body.invars, *body.constvars])}",
            *self._equations(halves.forward, ""),
            f"out   {', '.join(map(self._text, body.outvars[:n_outputs]))}",
            f"keep  {self._typed(kept)}",
        ]
        self._names |= {var: self._text(atom) for var, atom in zip(back.invars, kept, strict=False)}
        backward = [
            f"kept  {self._typed(back.invars[: len(kept)])}",
            f"in    {self._typed([*cotangents, *back.constvars])}",
            *self._equations(closed, ""),
        ]
        pairs = zip(halves.view.gradients, map(self._text, back.outvars), strict=True)
        return forward, [*backward, f"out   {', '.join(f'd {label.name} = {text}' for label, text in pairs)}"]

    def _name(self, variables: Sequence[Any], names: Sequence[str], kinds: Sequence[str]) -> None:
        self._names |= dict(zip(variables, names, strict=True))
        self.kinds |= dict(zip(names, kinds, strict=True))

    def _text(self, atom: Any) -> str:
        """The name of a variable, or the value of a literal."""
        if isinstance(atom, jex.Literal):
            return str(atom.val)
        if isinstance(atom, jex.DropVar):
            return "_"
        if atom not in self._names:
            name = next(name for name in self._letters if name not in self.kinds)
            self._names[atom] = name
            if atom in self._residuals:
                self.kinds[name] = "residual"
        return self._names[atom]

    def _typed(self, atoms: Sequence[Any], separator: str = ", ") -> str:
        text = lambda atom: f"{self._text(atom)}:{jaxcompat.type_text(atom.aval, short=True)}"
        return separator.join("_" if isinstance(atom, jex.DropVar) else text(atom) for atom in atoms)

    def _equations(self, jaxpr: Any, indent: str) -> list[str]:
        """The lines of a jaxpr, with the jaxprs inside of its equations below them, indented."""
        lines = []
        for eqn in backward_slice(jaxpr, list(jaxcompat.opened(jaxpr).outvars)):
            name, outputs, inner = jaxcompat.name_of(eqn), self._typed(eqn.outvars, " "), inner_jaxprs(eqn)
            head = f"name {name!r}" if name is not None else f"{eqn.primitive.name}{_params(eqn)}"
            operands = "".join(f" {self._text(atom)}" for atom in eqn.invars)
            lines.append(f"{indent}{outputs} = {head}{operands}{' {' if inner else ''}")
            for part in inner:
                body = jaxcompat.opened(part.jaxpr)
                role = "" if len(inner) == 1 else f"{part.role} "
                lines.append(f"{indent}  {role}in {self._typed([*body.constvars, *body.invars])}")
                lines += self._equations(part.jaxpr, indent + "  ")
                lines.append(f"{indent}  out {', '.join(map(self._text, body.outvars))}")
            lines += [f"{indent}}}"] if inner else []
        return lines


def _letters() -> Iterator[str]:
    for length in itertools.count(1):
        yield from map("".join, itertools.product("abcdefghijklmnopqrstuvwxyz", repeat=length))


def _params(eqn: Any) -> str:
    shown = []
    for key, value in eqn.params.items():
        text = str(value)
        is_plain = isinstance(value, int | str | float | tuple) and value is not False and key not in _QUIET
        if is_plain and len(text) <= _LONGEST and "{" not in text:
            shown.append(f"{key}={text}")
    return f"[{' '.join(shown)}]" if shown else ""


_RULE = " | "  # between the columns
#: How each kind of name looks, in rich and in HTML. Bold and italic say the same without colour.
_STYLES = {
    "argument": ("bold green", "color:#1a7f37;font-weight:bold"),
    "state": ("bold magenta", "color:#8250df;font-weight:bold"),
    "constant": ("yellow", "color:#9a6700"),
    "residual": ("bold underline", "font-weight:bold;text-decoration:underline"),
    "cotangent": ("italic cyan", "color:#0969da;font-style:italic"),
}


class FwdBwd:
    """The two halves of a gradient as lines of text, side by side when printed.

    Attributes:
      name: of the function.
      forward, backward: the jaxprs, line by line.
      states: the names of the states read.
    """

    def __init__(self, name: str, halves: tuple[list[str], list[str]], kinds: dict[str, str]) -> None:
        self.name: str = name
        self.forward: list[str] = halves[0]
        self.backward: list[str] = halves[1]
        self.states: tuple[str, ...] = tuple(name for name, kind in kinds.items() if kind == "state")
        self._kinds = kinds

    @property
    def _columns(self) -> list[tuple[str, list[str]]]:
        return [(f"forward of {self.name}", self.forward), (f"backward of {self.name}", self.backward)]

    def text(self, width: int | None = WIDTH) -> str:
        """The two halves side by side.

        Args:
          width: the most characters of a line, 120 as printed; None for as many as it takes.
        """
        widths = _shared([max(map(len, lines)) for _, lines in self._columns], width)
        left, right = (
            [title, "-" * len(title), *[part for line in lines for part in _wrapped(line, widest)]]
            for (title, lines), widest in zip(self._columns, widths, strict=True)
        )
        left_width = max(map(len, left))
        rows = itertools.zip_longest(left, right, fillvalue="")
        legend = wrapped(f"states: {', '.join(self.states)}", width) if self.states else []
        return "\n".join([*[f"{a.ljust(left_width)}{_RULE}{b}".rstrip() for a, b in rows], *legend])

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return str(self)

    def _pieces(self, lines: list[str]) -> Iterator[tuple[str, str | None]]:
        """The text of some lines in pieces, with the kind of those that are names."""
        names = "|".join(map(re.escape, sorted(self._kinds, key=len, reverse=True))) or "$^"
        parts = re.split(rf"(?<![\w.])({names})(?![\w.\[])", "\n".join(lines))
        return ((part, self._kinds[part] if i % 2 else None) for i, part in enumerate(parts))

    def __rich__(self) -> Any:
        table, text, box = (require(f"rich.{name}", "rich", "this rendering") for name in ("table", "text", "box"))
        grid = table.Table(box=box.MINIMAL, show_edge=False)
        cells = []
        for title, lines in self._columns:
            grid.add_column(title, overflow="fold", ratio=1)
            pieces = [(part, _STYLES[kind][0] if kind else "") for part, kind in self._pieces(lines)]
            cells.append(text.Text.assemble(*pieces))
        grid.add_row(*cells)
        return grid

    def _repr_html_(self) -> str:
        span = lambda text, kind: f"<span style='{_STYLES[kind][1]}'>{text}</span>" if kind else text
        cells = []
        for title, lines in self._columns:
            body = "".join(span(html.escape(part), kind) for part, kind in self._pieces(lines))
            pre = f"<pre style='white-space:pre-wrap;margin:0'>{body}</pre>"
            cells.append(f"<td style='vertical-align:top;text-align:left'><b>{html.escape(title)}</b>{pre}</td>")
        return f"<table><tr>{''.join(cells)}</tr></table>"


def _shared(widths: Sequence[int], width: int | None) -> list[int]:
    """The widths of two columns: what one does not need goes to the other."""
    if width is None:
        return list(widths)
    room = width - len(_RULE)
    return [max(room // 2, room - other) for other in reversed(widths)]


def _wrapped(line: str, widest: int) -> list[str]:
    """A line in parts of the widest width, the later ones indented."""
    indent = min(len(line) - len(line.lstrip()) + 4, widest // 2)
    return textwrap.wrap(line, max(widest, 1), subsequent_indent=" " * indent, break_on_hyphens=False) or [""]


@boundary
def fwd_bwd(f: Callable[..., Any], /, *args: Any, argnums: Any = None, states: Any = None, **kwargs: Any) -> FwdBwd:
    """The forward and the backward pass of a function as jaxprs, side by side.

    Arguments and states have their own names, and a residual has the same name on both sides. With `rich`,
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
    writer = _JaxprWriter()
    return FwdBwd(view.name, writer.halves(halves_of(view)), writer.kinds)
