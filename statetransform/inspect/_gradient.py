"""The gradient of a function: in two halves, and as one step with what the compiler says of it.

The halves are a forward jaxpr that also returns the residuals, and a backward one that takes them: what reverse mode
keeps. The step is the planner's: from inputs to outputs and gradients.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from .. import _jaxcompat as jaxcompat
from .._jaxpr.flops import Flops, jaxpr_flops
from .._jaxpr.primitives import Kind, kind_of
from .._jaxpr.rewrite import inlined, is_budgeted
from .._jaxpr.sizes import nbytes
from .._jaxpr.walk import walk
from .._planner.versions import Version
from .._planner.view import Label, View, differentiated, is_inexact


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
        def run(*chosen: Any) -> Any:
            given = iter(chosen)
            return view.fun(*[next(given) if is_one else x for x, is_one in zip(xs, view.is_chosen, strict=True)])

        out, vjp, aux = jax.vjp(run, *itertools.compress(xs, view.is_chosen), has_aux=True)
        residuals, seen["tree"] = jax.tree.flatten(vjp)
        return out, aux, residuals

    jaxpr, shapes = jax.make_jaxpr(forward, return_shape=True)(*view.inputs)
    out, aux, _ = shapes
    tree = seen["tree"]
    # Only outputs of a floating-point type have a cotangent that says anything; integers have `float0`.
    is_float = list(map(is_inexact, out))

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


@dataclasses.dataclass(frozen=True)
class GradientStep:
    """One gradient step: from the inputs, and the cotangents of outputs that are not scalars, to outputs and gradients.

    Attributes:
      version: the function and its gradient step, as jaxprs.
      inputs: the present values of the inputs, and ones for the cotangents.
    """

    version: Version
    inputs: list[Any]

    @property
    def jaxpr(self) -> Any:
        """The closed jaxpr, in which all cotangents are inputs."""
        return self.version.step

    @functools.cached_property
    def flops(self) -> Flops:
        """The operations, counted in the jaxpr, loops as often as they run."""
        return jaxpr_flops(self.jaxpr)

    @functools.cached_property
    def plain_flops(self) -> Flops:
        """The same without the steps that checkpointed loops take again."""
        return jaxpr_flops(self.jaxpr, with_recomputation=False)

    @functools.cached_property
    def has_loops(self) -> bool:
        """Whether the compiler's own count, which takes each loop's body once, would be too low."""
        return any(kind_of(site.eqn) is Kind.LOOP for site in walk(self.jaxpr))

    @functools.cached_property
    def has_checkpoints(self) -> bool:
        """Whether anything is computed twice on purpose."""
        return any(jaxcompat.is_remat(site.eqn) or is_budgeted(site.eqn) for site in walk(self.version.closed))

    def without_checkpoints(self) -> GradientStep:
        """The step of the same function with what its checkpoints and budgets contain in their places."""
        return GradientStep(Version(inlined(self.version.closed, budgets=True), self.version.pattern), self.inputs)

    def measured(self, compile: bool = True) -> Measured:
        """What can be said of the step, compiled for the default device or not; it is not run."""
        if not compile:
            return Measured(self)
        run = self.version.as_outermost(self.version.plain_step)
        return Measured(self, jax.jit(run).lower(*self.inputs).compile())


def step_of(view: View) -> GradientStep:
    """The gradient step of a function; nothing is computed.

    >>> from statetransform._planner.view import view_of
    >>> import jax.numpy as jnp
    >>> step = step_of(view_of(lambda x: jnp.sum(jnp.sin(x)), (jnp.ones(3),), {}))
    >>> len(jaxcompat.opened(step.jaxpr).outvars), step.has_loops, step.has_checkpoints
    (2, False, False)
    """
    version = Version(*differentiated(view))
    cotangents = version.avals[len(view.inputs) :]
    return GradientStep(version, [*view.inputs, *[np.ones(aval.shape, aval.dtype) for aval in cotangents]])


@dataclasses.dataclass(frozen=True)
class Measured:
    """A step with the compiler's two reports, or without.

    Attributes:
      step: the step.
      program: the compiled step; None if it was not compiled.
    """

    step: GradientStep
    program: Any = None

    @functools.cached_property
    def counts(self) -> dict[str, float]:
        """What `cost_analysis` says; empty where the backend has none."""
        try:
            counts = self.program.cost_analysis() if self.program is not None else {}
        except Exception:  # not every backend has one
            return {}
        if isinstance(counts, list | tuple):
            counts = counts[0] if counts else {}
        return dict(counts or {})

    def bytes_of(self, what: str) -> int | None:
        """Bytes of "argument", "output" or "temp"; None for what only a compiler knows, or does not say."""
        if self.program is not None:
            return getattr(self.program.memory_analysis(), f"{what}_size_in_bytes", None)
        known = {
            "argument": self.step.version.avals,
            "output": [atom.aval for atom in jaxcompat.opened(self.step.jaxpr).outvars],
        }
        return sum(map(nbytes, known[what])) if what in known else None

    @property
    def flops(self) -> float:
        """Operations: the compiler's count, or if `flops_are_estimated` the one in the jaxpr."""
        return self.step.flops.operations if self.flops_are_estimated else self.counts["flops"]

    @property
    def flops_are_estimated(self) -> bool:
        """Whether the compiler has no count, or takes each loop's body once."""
        return "flops" not in self.counts or self.step.has_loops

    def time(self, repeats: int = 7) -> float | None:
        """The least of several run times in seconds, after a run that warms up; None without concrete inputs."""
        is_abstract = any(isinstance(x, jax.ShapeDtypeStruct | jaxcompat.Tracer) for x in self.step.inputs)
        if self.program is None or is_abstract:
            return None
        inputs = jax.device_put(self.step.inputs)
        times = []
        for _ in range(repeats + 1):
            start = time.perf_counter()
            jax.block_until_ready(self.program(*inputs))
            times.append(time.perf_counter() - start)
        return min(times[1:])
