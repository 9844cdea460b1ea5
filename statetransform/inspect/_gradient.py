"""The gradient of a function: in two halves, and as one step with what the compiler says of it.

The halves are a forward jaxpr that also returns the residuals, and a backward one that takes them: what reverse mode
keeps. The step is the planner's: from inputs to outputs and gradients.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import time
from typing import Any

import jax
import numpy as np

from .. import _jax
from .._memory.plans.versions import Version
from .._memory.programs.flops import jaxpr_flops
from .._memory.programs.primitives import Kind, kind_of
from .._memory.programs.rewrite import inlined, is_budgeted
from .._memory.programs.sizes import nbytes
from .._memory.programs.walk import walk
from .._memory.targets import Compiled, Target, compiled_by, placed
from .._traces.shardings import standing_for
from ._view import View, differentiated, is_inexact


class Halves:
    """The two halves of a gradient; nothing is computed.

    `forward` is a closed jaxpr from the inputs to `outputs`, what the function returns or writes, and `residuals`.
    """

    def __init__(self, view: View) -> None:
        self.view = view
        self._tree: Any = None

        def forward(*xs: Any) -> tuple[list[Any], list[Any], list[Any]]:
            def run(*chosen: Any) -> Any:
                given = iter(chosen)
                return view.fun(*[next(given) if is_one else x for x, is_one in zip(xs, view.is_chosen, strict=True)])

            out, vjp, aux = jax.vjp(run, *itertools.compress(xs, view.is_chosen), has_aux=True)
            residuals, self._tree = jax.tree.flatten(vjp)
            return out, aux, residuals

        here = standing_for(view.inputs, forward)
        self.forward, (self._out, aux, _) = jax.make_jaxpr(here, return_shape=True)(*view.inputs)
        atoms, n_outputs = list(_jax.opened(self.forward).outvars), len(self._out) + len(aux)
        self.outputs, self.residuals = atoms[:n_outputs], atoms[n_outputs:]

    def backward(self) -> Any:
        """A closed jaxpr from the residuals and the cotangents of the outputs to the gradients."""
        # Integers have cotangents of `float0`, which say nothing.
        moving = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in self._out if is_inexact(x)]

        def backward(residuals: list[Any], cotangents: list[Any]) -> list[Any]:
            given = iter(cotangents)
            still = lambda x: np.zeros(x.shape, jax.dtypes.float0)
            gradients = self._tree.unflatten(residuals)([next(given) if is_inexact(x) else still(x) for x in self._out])
            return [g for g in gradients if getattr(g, "dtype", None) != jax.dtypes.float0]

        return jax.make_jaxpr(backward)([atom.aval for atom in self.residuals], moving)


@dataclasses.dataclass(eq=False, repr=False)
class GradientStep:
    """One gradient step: from the inputs, and the cotangents of outputs that are not scalars, to outputs and gradients.

    `inputs` are the present values, and ones for the cotangents; `is_compiled` says whether the compiler is asked.
    """

    version: Version
    inputs: list[Any]
    is_compiled: bool

    @classmethod
    def of(cls, view: View, is_compiled: bool = True) -> GradientStep:
        """The gradient step of a function."""
        version = Version(*differentiated(view), target=view.target)
        cotangents = version.avals[len(view.inputs) :]
        return cls(version, [*view.inputs, *[np.ones(aval.shape, aval.dtype) for aval in cotangents]], is_compiled)

    @property
    def jaxpr(self) -> Any:
        """The closed jaxpr, in which all cotangents are inputs."""
        return self.version.step

    @functools.cached_property
    def counted(self) -> int:
        """The operations in the jaxpr, loops as often as they run."""
        return jaxpr_flops(self.jaxpr)

    @functools.cached_property
    def needed(self) -> int:
        """The same without the steps that checkpointed loops take again."""
        return jaxpr_flops(self.jaxpr, with_recomputation=False)

    @functools.cached_property
    def has_loops(self) -> bool:
        """Whether the compiler's own count, which takes each loop's body once, would be too low."""
        return any(kind_of(site.eqn) is Kind.LOOP for site in walk(self.jaxpr))

    def without_checkpoints(self) -> GradientStep:
        """The step of the same function with what its checkpoints and budgets contain in their places."""
        closed = self.version.closed
        if not any(_jax.is_remat(site.eqn) or is_budgeted(site.eqn) for site in walk(closed)):
            return self
        version = Version(inlined(closed, budgets=True), self.version.pattern, target=self.version.target)
        return GradientStep(version, self.inputs, self.is_compiled)

    @property
    def target(self) -> Target:
        """What it is compiled for."""
        return self.version.target

    @functools.cached_property
    def compiled(self) -> Compiled | None:
        """What the compiler says of it; None if it is not asked."""
        if not self.is_compiled:
            return None
        run = self.version.as_outermost(self.version.plain_step)
        inputs = self.inputs
        if not self.target.is_here:
            inputs = placed(self.target, [x if hasattr(x, "shape") else _jax.typeof(x) for x in inputs])
        return compiled_by(self.target, jax.jit(run).lower(*inputs))

    def bytes_of(self, what: str) -> int | None:
        """Bytes of "argument", "output" or "temporary"; None for what only a compiler knows, or does not say."""
        if self.compiled is not None:
            return getattr(self.compiled, what)
        outputs = [atom.aval for atom in _jax.opened(self.jaxpr).outvars]
        known = {"argument": self.version.avals, "output": outputs}
        return sum(map(nbytes, known[what])) if what in known else None

    @property
    def flops(self) -> float:
        """Operations: the compiler's count, or if `flops_are_estimated` the one in the jaxpr."""
        counted = None if self.compiled is None or self.has_loops else self.compiled.flops
        return self.counted if counted is None else counted

    @property
    def flops_are_estimated(self) -> bool:
        """Whether the compiler has no count, or takes each loop's body once."""
        return self.compiled is None or self.compiled.flops is None or self.has_loops

    def time(self) -> float | None:
        """The least of several run times in seconds, after a run that warms up; None without concrete inputs."""
        program = None if self.compiled is None else self.compiled.program
        if program is None or any(isinstance(x, jax.ShapeDtypeStruct | _jax.Tracer) for x in self.inputs):
            return None
        inputs = jax.device_put(self.inputs)
        times = []
        for _ in range(8):
            start = time.perf_counter()
            jax.block_until_ready(program(*inputs))
            times.append(time.perf_counter() - start)
        return min(times[1:])
