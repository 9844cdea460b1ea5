"""`fwd_bwd`: the forward and the backward pass side by side."""

from __future__ import annotations

import html
import itertools
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax.extend.core as jex

from .. import _jaxcompat as jaxcompat
from .._jaxpr.rewrite import without_dead
from .._jaxpr.walk import backward_slice
from .._planner.view import view_of
from .._report.optional import require
from .._report.table import WIDTH, wrapped
from .._trace.tracebacks import boundary
from ._gradient import Halves, halves_of


class _Names:
    """The names of variables in both halves of a gradient.

    Attributes:
      kinds: the kind of each name that is highlighted: "argument", "state", "constant", "residual" or "cotangent".
    """

    def __init__(self) -> None:
        self.kinds: dict[str, str] = {}
        self._shown: dict[Any, Any] = {}
        self._free = (f"v{i}" for i in itertools.count())  # JAX uses letters within loops and calls

    def give(self, variables: Sequence[Any], names: Iterable[str], kinds: Sequence[str]) -> None:
        """Names variables; literals keep their value."""
        for var, name, kind in zip(variables, names, kinds, strict=False):
            if not isinstance(var, jex.Literal) and var not in self._shown:
                self._shown[var] = jaxcompat.NamedVariable(name, var.aval)
                self.kinds[name] = kind

    def alias(self, variables: Sequence[Any], atoms: Sequence[Any]) -> None:
        """Shows variables as other atoms are shown."""
        self._shown |= zip(variables, map(self.shown, atoms), strict=True)

    def shown(self, atom: Any) -> Any:
        """What is printed in the place of an atom; variables without a name get the next number."""
        if isinstance(atom, jex.Literal | jex.DropVar):
            return atom
        if atom not in self._shown:
            name = next(name for name in self._free if name not in self.kinds)
            self._shown[atom] = jaxcompat.NamedVariable(name, atom.aval)
        return self._shown[atom]

    def text(self, atom: Any) -> str:
        """The name of a variable, or the value of a literal."""
        shown = self.shown(atom)
        return str(shown.val) if isinstance(shown, jex.Literal) else getattr(shown, "name", "_")

    def typed(self, atoms: Sequence[Any]) -> str:
        """Names with types."""
        return ", ".join(f"{self.text(atom)}:{jaxcompat.type_text(atom.aval, short=True)}" for atom in atoms)

    def equations(self, jaxpr: Any) -> list[str]:
        """The lines that JAX prints for what the outputs of a closed jaxpr depend on."""
        body = jaxcompat.opened(without_dead(jaxpr))
        eqns = [
            eqn.replace(invars=list(map(self.shown, eqn.invars)), outvars=list(map(self.shown, eqn.outvars)))
            for eqn in backward_slice(body, body.outvars)
        ]
        return [line for eqn in eqns for line in str(eqn).splitlines()]


def _written(halves: Halves) -> tuple[list[str], list[str], dict[str, str]]:
    """The lines of the forward and of the backward jaxpr, and the kinds of names.

    >>> from statetransform._planner.view import view_of
    >>> import jax.numpy as jnp
    >>> forward, backward, _ = _written(halves_of(view_of(jnp.sin, (2.0,), {})))
    >>> print(*forward, sep="\\n")
    in    x:f32[]
    v0:f32[] = sin x
    r0:f32[] = cos x
    out   v0
    keep  r0:f32[]
    """
    closed, names = halves.backward(), _Names()
    body, back = jaxcompat.opened(halves.forward), jaxcompat.opened(closed)
    n_outputs, kept = halves.n_outputs + halves.n_auxiliary, halves.residuals
    cotangents, constants = list(back.invars[len(kept) :]), [*body.constvars, *back.constvars]
    names.give(body.invars, [label.name for label in halves.labels], [label.kind for label in halves.labels])
    names.give(constants, (f"constant{i}" for i in itertools.count()), ["constant"] * len(constants))
    numbers = [""] if len(cotangents) == 1 else map(str, range(len(cotangents)))
    names.give(cotangents, [f"ct{i}" for i in numbers], ["cotangent"] * len(cotangents))
    computed = [atom for atom in kept if not isinstance(atom, jex.Literal)]
    computed = [atom for atom in dict.fromkeys(computed) if atom not in {*body.invars, *body.constvars}]
    free = (name for i in itertools.count() if (name := f"r{i}") not in names.kinds)
    names.give(computed, free, ["residual"] * len(computed))
    forward = [
        f"in    {names.typed([*body.invars, *body.constvars])}",
        *names.equations(halves.forward),
        f"out   {', '.join(map(names.text, body.outvars[:n_outputs]))}",
        f"keep  {names.typed(kept)}",
    ]
    names.alias(back.invars[: len(kept)], kept)
    gradients = zip(halves.view.gradients, map(names.text, back.outvars), strict=True)
    backward = [
        f"kept  {names.typed(kept)}",
        f"in    {names.typed([*cotangents, *back.constvars])}",
        *names.equations(closed),
        f"out   {', '.join(f'd {label.name} = {text}' for label, text in gradients)}",
    ]
    return forward, backward, names.kinds


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

    def __init__(self, name: str, forward: list[str], backward: list[str], kinds: dict[str, str]) -> None:
        self.name: str = name
        self.forward: list[str] = forward
        self.backward: list[str] = backward
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

    Arguments and states have their own names. Residuals are `r0`, `r1` and so on, on both sides; all else is as JAX
    prints it. With `rich`,
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
      forward of f                        | backward of f
      ------------                        | -------------
      in    x:f32[3], w:f32[3]            | kept  x:f32[3], w:f32[3], r0:f32[3]
      v0:f32[3] = mul w x                 | in    ct:f32[3]
      v1:f32[3] = sin v0                  | v2:f32[3] = mul ct r0
      r0:f32[3] = cos v0                  | v3:f32[3] = mul w v2
      out   v1                            | v4:f32[3] = mul v2 x
      keep  x:f32[3], w:f32[3], r0:f32[3] | out   d x = v3, d w = v4
      states: w
    """
    view = view_of(f, args, kwargs, argnums, states)
    return FwdBwd(view.name, *_written(halves_of(view)))
