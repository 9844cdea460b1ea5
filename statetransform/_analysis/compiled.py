"""The compiled gradient step of a function, and what can be read from it.

A step computes the output, what is written to states, and the gradients with respect to all floating-point inputs. The
cotangent of a scalar output is one, as in `jax.grad`; of other outputs it is an argument of the program, so that the
compiler cannot fold it away.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._core import jaxcompat
from .flops import Flops, jaxpr_flops
from .rewrite import inlined
from .split import Split, split
from .staged import Staged
from .walk import walk

_LOOPS = ("scan", "while")


@dataclasses.dataclass(frozen=True)
class Step:
    """One gradient step: the jaxpr, and how to compile it.

    Attributes:
        jaxpr: from the inputs, and the cotangents of outputs that are no scalars, to outputs and gradients.
        inputs: the present values of the inputs, and ones for the cotangents.
    """

    jaxpr: Any
    inputs: list[Any]

    @property
    def flops(self) -> Flops:
        """The operations, counted in the jaxpr, loops as often as they run."""
        return jaxpr_flops(self.jaxpr)

    @property
    def plain_flops(self) -> Flops:
        """The same without the steps that checkpointed loops take again."""
        return jaxpr_flops(self.jaxpr, with_recomputation=False)

    @property
    def has_loops(self) -> bool:
        """Whether the compiler's own count, which takes each loop's body once, would be too low."""
        return any(site.primitive in _LOOPS for site in walk(self.jaxpr))

    @property
    def has_checkpoints(self) -> bool:
        """Whether anything is computed twice on purpose."""
        return any(jaxcompat.is_remat(site.eqn) for site in walk(self.jaxpr))

    def function(self) -> Callable[..., list[Any]]:
        """The step as a function."""
        body, consts = jaxcompat.opened(self.jaxpr), jaxcompat.consts_of(self.jaxpr)
        return lambda *xs: jaxcompat.eval_jaxpr(body, consts, *xs)

    def compile(self) -> Compiled:
        """Compiles the step for the default device."""
        compiled = jax.jit(self.function()).lower(*self.inputs).compile()
        return Compiled(compiled, _counts(compiled), compiled.memory_analysis(), self)


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A compiled step with the compiler's two reports.

    Attributes:
        program: the compiled step.
        counts: of `cost_analysis`, empty where the backend has none.
        memory: of `memory_analysis`, None where the backend has none.
        step: what was compiled.
    """

    program: Any
    counts: dict[str, float]
    memory: Any
    step: Step

    def bytes_of(self, what: str) -> int | None:
        """Bytes of "argument", "output", "temp" or "alias"; None where the compiler does not say."""
        return getattr(self.memory, f"{what}_size_in_bytes", None)

    def time(self, repeats: int = 7) -> float | None:
        """The least of several run times in seconds, after a run that warms up; None without concrete inputs."""
        if any(isinstance(x, jax.ShapeDtypeStruct | jaxcompat.Tracer) for x in self.step.inputs):
            return None
        inputs = jax.device_put(self.step.inputs)
        jax.block_until_ready(self.program(*inputs))
        times = []
        for _ in range(repeats):
            start = time.perf_counter()
            jax.block_until_ready(self.program(*inputs))
            times.append(time.perf_counter() - start)
        return min(times)


def step_of(staged: Staged) -> Step:
    """The gradient step of a staged function.

    >>> from statetransform._analysis.staged import stage
    >>> import jax.numpy as jnp
    >>> step = step_of(stage(lambda x: jnp.sum(jnp.sin(x)), (jnp.ones(3),), {}))
    >>> len(jaxcompat.opened(step.jaxpr).outvars), step.has_loops, step.has_checkpoints
    (2, False, False)
    """
    halves = split(staged)
    return Step(joint(halves), [*staged.inputs, *[_ones(aval) for aval in halves.cotangents if aval.shape]])


def joint(halves: Split) -> Any:
    """One closed jaxpr of both halves, each kept as it is."""
    forward, backward = halves.forward, halves.backward()
    n = len(halves.labels)

    def step(*xs: Any) -> list[Any]:
        inputs, given = xs[:n], iter(xs[n:])
        results = jaxcompat.eval_jaxpr(jaxcompat.opened(forward), jaxcompat.consts_of(forward), *inputs)
        out = results[: halves.n_outputs + halves.n_auxiliary]
        cotangents = [next(given) if aval.shape else _ones(aval) for aval in halves.cotangents]
        residuals = results[len(out) :]
        gradients = jaxcompat.eval_jaxpr(
            jaxcompat.opened(backward), jaxcompat.consts_of(backward), *residuals, *cotangents
        )
        return [*out, *gradients]

    arrays = [aval for aval in halves.cotangents if aval.shape]
    return jax.make_jaxpr(step)(*halves.staged.inputs, *arrays)


def without_checkpoints(staged: Staged) -> Staged:
    """The same function with what its checkpoints contain in their places."""
    n_outputs: list[int] = []

    def both(*xs: Any) -> list[Any]:
        out, aux = staged.fun(*xs)
        n_outputs.append(len(out))
        return [*out, *aux]

    plain = inlined(jax.make_jaxpr(both)(*staged.inputs))
    body, consts = jaxcompat.opened(plain), jaxcompat.consts_of(plain)

    def fun(*xs: Any) -> tuple[list[Any], list[Any]]:
        results = jaxcompat.eval_jaxpr(body, consts, *xs)
        return results[: n_outputs[0]], results[n_outputs[0] :]

    return dataclasses.replace(staged, fun=fun)


def _ones(aval: Any) -> Any:
    return np.ones(aval.shape, aval.dtype) if aval.shape else jnp.ones((), aval.dtype)


def _counts(compiled: Any) -> dict[str, float]:
    try:
        counts = compiled.cost_analysis()
    except Exception:  # not every backend has one
        return {}
    if isinstance(counts, list | tuple):
        counts = counts[0] if counts else {}
    return dict(counts or {})
