"""A function in one form, with its gradient step, its graph and its plans; its loops may be opened."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from .._core import jaxcompat
from .joint import MODEST, Fusion, Joint, Pattern, build, flattened, joint_step
from .solve import Solver


def closed_of(staged: Any) -> tuple[Any, int]:
    """The closed jaxpr of a staged function, auxiliary outputs last, and how many outputs are not auxiliary."""
    count: list[int] = []

    def both(*xs: Any) -> list[Any]:
        out, aux = staged.fun(*xs)
        count.append(len(out))
        return [*out, *aux]

    return jax.make_jaxpr(both)(*staged.inputs), count[-1]


class Version:
    """The function in one form, with its graph and its solver.

    Args:
      closed: the closed jaxpr.
      pattern: what is differentiated.
      key: tells versions apart.
      fusion: how far cheap values are computed in each of their users.
      same: another version of the same function, whose gradient step need not be traced again.
    """

    def __init__(
        self, closed: Any, pattern: Pattern, key: str = "", fusion: Fusion = MODEST, same: Version | None = None
    ) -> None:
        self.closed, self.pattern, self.key, self.fusion, self._same = closed, pattern, key, fusion, same

    @functools.cached_property
    def step(self) -> Any:
        """The closed jaxpr of the gradient step as JAX differentiates it."""
        return joint_step(self.closed, self.pattern)

    @functools.cached_property
    def flat(self) -> Any:
        """The closed jaxpr of the gradient step, flattened."""
        return flattened(self.step) if self._same is None else self._same.flat

    @functools.cached_property
    def joint(self) -> Joint:
        """Both passes."""
        return build(self.flat, self.pattern, self.fusion)

    @functools.cached_property
    def solver(self) -> Solver:
        """Plans for any budget."""
        return Solver(self.joint.graph)

    @property
    def cotangents(self) -> list[Any]:
        """The abstract values of the cotangents."""
        body = jaxcompat.opened(self.closed)
        return [v.aval for v, active in zip(body.outvars, self.pattern.outputs, strict=True) if active]

    @property
    def avals(self) -> list[Any]:
        """Inputs, and the cotangents that are no scalars."""
        given = [var.aval for var in jaxcompat.opened(self.closed).invars]
        given += [aval for aval in self.cotangents if aval.shape]
        return [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in given]

    def as_outermost(self, step: Callable[..., list[Any]], with_value: bool = False) -> Callable[..., list[Any]]:
        """A gradient step as `grad`, or `value_and_grad`, runs it: the cotangent of a scalar is one."""
        n, active = len(self.pattern.inputs), self.pattern.outputs
        is_scalar = [not var.aval.shape for var in jaxcompat.opened(self.closed).outvars]

        def run(*xs: Any) -> list[Any]:
            rest = iter(xs[n:])
            cts = [next(rest) if aval.shape else jnp.ones((), aval.dtype) for aval in self.cotangents]
            found = step(*xs[:n], *cts)
            outputs, gradients = list(zip(found, active, is_scalar, strict=False)), found[len(active) :]
            values = [x for x, is_active, scalar in outputs if is_active and (with_value or not scalar)]
            return [*values, *gradients, *[x for x, is_active, _ in outputs if not is_active]]

        return run

    def plain_step(self, *xs: Any) -> list[Any]:
        """The gradient step as JAX differentiates it."""
        return jaxcompat.eval_jaxpr(jaxcompat.opened(self.step), jaxcompat.consts_of(self.step), *xs)
