"""Reverse mode in two halves: a forward jaxpr that also returns the residuals, and a backward one that takes them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import _jaxcompat as jaxcompat
from .._planner.view import Label, View


@dataclasses.dataclass(frozen=True)
class Halves:
    """The two halves of a gradient.

    Attributes:
      view: the function.
      forward: a closed jaxpr from the inputs to the outputs, the auxiliary outputs and the residuals.
      residuals: the last outputs of `forward`, and the first inputs of `backward`.
      cotangents: types, one for each floating-point output.
      n_outputs, n_auxiliary: how many of these `forward` has.
      pull: the backward function: `pull(residuals, cotangents)` gives the gradients.
    """

    view: View
    forward: Any
    n_outputs: int
    n_auxiliary: int
    cotangents: list[Any]
    pull: Callable[[list[Any], list[Any]], list[Any]]

    @property
    def labels(self) -> tuple[Label, ...]:
        """Of the inputs of `forward`."""
        return self.view.labels

    @property
    def residuals(self) -> list[Any]:
        """The atoms of `forward` that reverse mode keeps, one for each residual."""
        return list(jaxcompat.opened(self.forward).outvars)[self.n_outputs + self.n_auxiliary :]

    def backward(self) -> Any:
        """A closed jaxpr from the residuals and the cotangents of the outputs to the gradients."""
        n = len(self.residuals)

        def backward(*xs: Any) -> list[Any]:
            return self.pull(list(xs[:n]), list(xs[n:]))

        return jax.make_jaxpr(backward)(*[atom.aval for atom in self.residuals], *self.cotangents)


def halves_of(view: View) -> Halves:
    """Differentiates a view function; nothing is computed.

    >>> from statetransform._planner.view import view_of
    >>> import jax.numpy as jnp
    >>> halves = halves_of(view_of(lambda x: jnp.sin(x) * x, (2.0,), {}))
    >>> len(halves.residuals), len(jaxcompat.opened(halves.backward()).outvars)
    (3, 1)
    """
    seen: dict[str, Any] = {}

    def forward(*xs: Any) -> tuple[list[Any], list[Any], list[Any]]:
        chosen = [x for x, is_chosen in zip(xs, view.is_chosen, strict=True) if is_chosen]
        out, vjp, aux = jax.vjp(lambda *chosen: view.fun(*merged(xs, chosen, view.is_chosen)), *chosen, has_aux=True)
        residuals, seen["tree"] = jax.tree.flatten(vjp)
        return out, aux, residuals

    jaxpr, shapes = jax.make_jaxpr(forward, return_shape=True)(*view.inputs)
    out, aux, _ = shapes
    tree = seen["tree"]
    # Only outputs of a floating-point type have a cotangent that says anything; integers have `float0`.
    is_float = [jnp.issubdtype(leaf.dtype, jnp.inexact) for leaf in out]

    def pull(residuals: list[Any], cotangents: list[Any]) -> list[Any]:
        given = iter(cotangents)
        whole = [
            next(given) if wanted else np.zeros(x.shape, jax.dtypes.float0)
            for wanted, x in zip(is_float, out, strict=True)
        ]
        gradients = tree.unflatten(residuals)(whole)
        return [g for g in gradients if getattr(g, "dtype", None) != jax.dtypes.float0]

    cotangents = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x, wanted in zip(out, is_float, strict=True) if wanted]
    return Halves(view, jaxpr, len(out), len(aux), cotangents, pull)


def merged(xs: Sequence[Any], chosen: Sequence[Any], is_chosen: Sequence[bool]) -> list[Any]:
    """Inputs with other values for those that are differentiated."""
    given = iter(chosen)
    return [next(given) if is_one else x for x, is_one in zip(xs, is_chosen, strict=True)]
