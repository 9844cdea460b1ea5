"""`fwd_bwd`: the forward and the backward pass side by side."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax.extend.core as jex

from .. import _jaxcompat as jaxcompat
from .._jaxpr.rewrite import without_dead
from .._jaxpr.walk import backward_slice
from .._planner.view import view_of
from .._report.table import Report, Table
from .._trace.tracebacks import boundary
from ._gradient import Halves


class _Names:
    """The names of variables in both halves of a gradient."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._shown: dict[Any, Any] = {}
        self._others = self.numbered("v")  # JAX uses letters within loops and calls

    def numbered(self, prefix: str) -> Iterator[str]:
        """Names that are free."""
        return (name for i in itertools.count() if (name := f"{prefix}{i}") not in self._taken)

    def give(self, atoms: Iterable[Any], names: Iterable[str]) -> None:
        """Names the variables that have no name yet."""
        new = [atom for atom in atoms if not isinstance(atom, jex.Literal) and atom not in self._shown]
        for var, name in zip(dict.fromkeys(new), names, strict=False):
            self._shown[var] = jaxcompat.NamedVariable(name, var.aval)
            self._taken.add(name)

    def alias(self, variables: Sequence[Any], atoms: Sequence[Any]) -> None:
        """Shows variables as other atoms are shown."""
        self._shown |= zip(variables, map(self.shown, atoms), strict=True)

    def shown(self, atom: Any) -> Any:
        """What is printed in the place of an atom."""
        if isinstance(atom, jex.Literal | jex.DropVar):
            return atom
        self.give([atom], self._others)
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


def _written(halves: Halves) -> tuple[list[str], list[str]]:
    """The lines of the forward and of the backward jaxpr."""
    closed, names, kept = halves.backward(), _Names(), halves.residuals
    body, back = jaxcompat.opened(halves.forward), jaxcompat.opened(closed)
    cotangents = list(back.invars[len(kept) :])
    names.give(body.invars, [label.name for label in halves.view.labels])
    names.give([*body.constvars, *back.constvars], names.numbered("constant"))
    names.give(cotangents, ["ct"] if len(cotangents) == 1 else names.numbered("ct"))
    names.give(kept, names.numbered("r"))
    forward = [
        f"in    {names.typed([*body.invars, *body.constvars])}",
        *names.equations(halves.forward),
        f"out   {', '.join(map(names.text, halves.outputs))}",
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
