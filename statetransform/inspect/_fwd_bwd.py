"""`fwd_bwd`: the forward and the backward pass side by side."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax.extend.core as jex

from .. import _jaxcompat as jaxcompat
from .._jaxpr.rewrite import without_dead
from .._jaxpr.walk import backward_slice
from .._planner.view import view_of
from .._report.table import Report, Table
from .._trace.tracebacks import boundary
from ._gradient import Halves, halves_of


class _Names:
    """The names of variables in both halves of a gradient."""

    def __init__(self) -> None:
        self.given: set[str] = set()
        self._shown: dict[Any, Any] = {}
        self._free = (f"v{i}" for i in itertools.count())  # JAX uses letters within loops and calls

    def give(self, variables: Sequence[Any], names: Iterable[str]) -> None:
        """Names variables; literals keep their value."""
        for var, name in zip(variables, names, strict=False):
            if not isinstance(var, jex.Literal) and var not in self._shown:
                self._shown[var] = jaxcompat.NamedVariable(name, var.aval)
                self.given.add(name)

    def alias(self, variables: Sequence[Any], atoms: Sequence[Any]) -> None:
        """Shows variables as other atoms are shown."""
        self._shown |= zip(variables, map(self.shown, atoms), strict=True)

    def shown(self, atom: Any) -> Any:
        """What is printed in the place of an atom; variables without a name get the next number."""
        if isinstance(atom, jex.Literal | jex.DropVar):
            return atom
        if atom not in self._shown:
            name = next(name for name in self._free if name not in self.given)
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


def _written(halves: Halves) -> tuple[list[str], list[str]]:
    """The lines of the forward and of the backward jaxpr.

    >>> from statetransform._planner.view import view_of
    >>> import jax.numpy as jnp
    >>> forward, backward = _written(halves_of(view_of(jnp.sin, (2.0,), {})))
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
    names.give(body.invars, [label.name for label in halves.labels])
    names.give(constants, (f"constant{i}" for i in itertools.count()))
    names.give(cotangents, ["ct"] if len(cotangents) == 1 else [f"ct{i}" for i in range(len(cotangents))])
    computed = [atom for atom in kept if not isinstance(atom, jex.Literal)]
    computed = [atom for atom in dict.fromkeys(computed) if atom not in {*body.invars, *body.constvars}]
    free = (name for i in itertools.count() if (name := f"r{i}") not in names.given)
    names.give(computed, free)
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
    return forward, backward


class FwdBwd(Report):
    """The two halves of a gradient as lines of text, side by side when printed.

    Attributes:
      name: of the function.
      forward, backward: the jaxprs, line by line.
      states: the names of the states read.
    """

    def __init__(self, name: str, forward: list[str], backward: list[str], states: tuple[str, ...]) -> None:
        self.name: str = name
        self.forward: list[str] = forward
        self.backward: list[str] = backward
        self.states: tuple[str, ...] = states

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
    return FwdBwd(view.name, *_written(halves_of(view)), names)
