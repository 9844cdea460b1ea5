"""`fwd_bwd`: the forward and the backward pass side by side."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable
from typing import Any

import jax.extend.core as jex

from .. import _jax
from .._base.table import Report, Table
from .._memory.programs.rewrite import without_dead
from .._memory.programs.walk import backward_slice
from .._traces.tracebacks import boundary
from ._gradient import Halves
from ._view import view_of

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def _names(halves: Halves, closed: Any) -> dict[Any, Any]:
    """What is printed in the place of the variables of both halves."""
    kept, labels = halves.residuals, halves.view.labels
    body, back = _jax.opened(halves.forward), _jax.opened(closed)
    cotangents = back.invars[len(kept) :]
    names = {var: label.name for var, label in zip(body.invars, labels, strict=True)}
    names |= dict.fromkeys(cotangents, "ct") if len(cotangents) == 1 else {}
    taken = set(names.values())
    made = [var for half in (halves.forward, closed) for eqn in _needed(half) for var in eqn.outvars]
    constants = [*body.constvars, *back.constvars]
    # JAX uses letters within loops and calls.
    for prefix, atoms in (("constant", constants), ("ct", cotangents), ("r", kept), ("v", made)):
        free = (name for i in itertools.count() if (name := f"{prefix}{i}") not in taken)
        new = [a for a in atoms if not isinstance(a, jex.Literal | jex.DropVar) and a not in names]
        names |= zip(dict.fromkeys(new), free, strict=False)
    shown: dict[Any, Any] = {var: _jax.NamedVariable(name, var.aval) for var, name in names.items()}
    for var, atom in zip(back.invars, kept, strict=False):
        shown[var] = atom if isinstance(atom, jex.Literal) else shown[atom]
    return shown


def _needed(jaxpr: Any) -> list[Any]:
    """The equations that the outputs of a closed jaxpr depend on."""
    body = _jax.opened(without_dead(jaxpr))
    return backward_slice(body, body.outvars)


def _written(halves: Halves) -> tuple[list[str], list[str]]:
    """The lines of the forward and of the backward jaxpr."""
    closed, kept = halves.backward(), halves.residuals
    body, back = _jax.opened(halves.forward), _jax.opened(closed)
    names = _names(halves, closed)

    def shown(atom: Any) -> Any:
        return atom if isinstance(atom, jex.Literal) else names.get(atom, atom)

    text = lambda atom: str(shown(atom).val if isinstance(shown(atom), jex.Literal) else shown(atom).name)
    typed = lambda atoms: ", ".join(f"{text(a)}:{_jax.type_text(a.aval, short=True)}" for a in atoms)

    def lines(jaxpr: Any) -> list[str]:
        eqns = [
            eqn.replace(invars=list(map(shown, eqn.invars)), outvars=list(map(shown, eqn.outvars)))
            for eqn in _needed(jaxpr)
        ]
        # JAX colours what it prints, unless it is to a file.
        return [line for eqn in eqns for line in _COLOUR.sub("", str(eqn)).splitlines()]

    forward = [
        f"in    {typed([*body.invars, *body.constvars])}",
        *lines(halves.forward),
        f"out   {', '.join(map(text, halves.outputs))}",
        f"keep  {typed(kept)}",
    ]
    gradients = zip(halves.view.gradients, map(text, back.outvars), strict=True)
    backward = [
        f"kept  {typed(kept)}",
        f"in    {typed([*back.invars[len(kept) :], *back.constvars])}",
        *lines(closed),
        f"out   {', '.join(f'd {label.name} = {text}' for label, text in gradients)}",
    ]
    return forward, backward


@dataclasses.dataclass(repr=False, eq=False)
class FwdBwd(Report):
    """The two halves of a gradient as lines of text, side by side when printed.

    Attributes:
      name: of the function.
      forward, backward: the jaxprs, line by line.
      states: the names of the states read.
    """

    name: str
    forward: list[str]
    backward: list[str]
    states: tuple[str, ...]

    def to_dicts(self) -> list[dict[str, Any]]:
        """A single dict, with the text of both halves."""
        return [{"forward": "\n".join(self.forward), "backward": "\n".join(self.backward)}]

    def table(self) -> Table:
        """The two halves as columns."""
        notes = [f"states: {', '.join(self.states)}"] if self.states else []
        rows = [list(half.values()) for half in self.to_dicts()]
        return Table("", [f"forward of {self.name}", f"backward of {self.name}"], rows, notes)


@boundary
def fwd_bwd(f: Callable[..., Any], /, *args: Any, argnums: Any = None, states: Any = None, **kwargs: Any) -> FwdBwd:
    """The forward and the backward pass of a function as jaxprs, side by side.

    Arguments and states have their own names. Residuals are `r0`, `r1` and so on, on both sides; all else is as JAX
    prints it.

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
      forward of f                         backward of f
      -----------------------------------  -----------------------------------
      in    x:f32[3], w:f32[3]             kept  x:f32[3], w:f32[3], r0:f32[3]
      v0:f32[3] = mul w x                  in    ct:f32[3]
      v1:f32[3] = sin v0                   v2:f32[3] = mul ct r0
      r0:f32[3] = cos v0                   v3:f32[3] = mul w v2
      out   v1                             v4:f32[3] = mul v2 x
      keep  x:f32[3], w:f32[3], r0:f32[3]  out   d x = v3, d w = v4
      states: w
    """
    view = view_of(f, args, kwargs, argnums, states)
    names = tuple(dict.fromkeys(label.name for label in view.labels if label.kind == "state"))
    return FwdBwd(view.name, *_written(Halves(view)), names)
