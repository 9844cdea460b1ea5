"""`fwd_bwd`: the forward and the backward pass side by side."""

from __future__ import annotations

import html
import itertools
from collections.abc import Callable
from typing import Any

from .._analysis.pretty import Line, Piece, halves_as_lines
from .._analysis.split import split
from .._analysis.staged import stage

_WIDEST = 76  # characters of one column
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

    def __str__(self) -> str:
        columns = [[piece for line in half for piece in _wrapped(line)] for half in self.lines]
        left = [self.titles[0], "-" * len(self.titles[0]), *map(_text, columns[0])]
        right = [self.titles[1], "-" * len(self.titles[1]), *map(_text, columns[1])]
        width = max(map(len, left))
        rows = itertools.zip_longest(left, right, fillvalue="")
        legend = [f"states: {', '.join(self.states)}"] if self.states else []
        return "\n".join([*[f"{a.ljust(width)} | {b}".rstrip() for a, b in rows], *legend])

    def __repr__(self) -> str:
        return str(self)

    def __rich__(self) -> Any:
        from ._render import rich_columns

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


def _wrapped(line: Line) -> list[Line]:
    """A line in pieces of the widest width, the later ones indented."""
    text = _text(line)
    if len(text) <= _WIDEST:
        return [line]
    indent = len(text) - len(text.lstrip()) + 4
    lines: list[Line] = [[]]
    used = 0
    for piece in line:
        if used + len(piece.text) > _WIDEST and used > indent:
            lines.append([Piece(" " * indent)])
            used = indent
        lines[-1].append(piece)
        used += len(piece.text)
    return lines


def fwd_bwd(f: Callable[..., Any], /, *args: Any, **kwargs: Any) -> FwdBwd:
    """The forward and the backward pass of a function as jaxprs, side by side.

    Arguments and states stand under their own names, and a residual has the same name on both sides. With `rich`,
    ``rich.print`` shows it in colour; in a notebook it is HTML.

    Args:
      f, `*args`, `**kwargs`: as for `residuals`.

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
    staged = stage(f, args, kwargs)
    forward, backward = halves_as_lines(split(staged))
    states = tuple(label.name for label in staged.labels if label.kind == "state")
    return FwdBwd(staged.name, forward, backward, states)
