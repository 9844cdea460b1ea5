"""`cost`: what one gradient step costs."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._core import jaxcompat
from .._core.report import Report, Table
from .._core.tracebacks import boundary
from .._jaxpr.flops import Flops, jaxpr_flops
from .._jaxpr.primitives import Kind, kind_of
from .._jaxpr.rewrite import inlined
from .._jaxpr.sizes import format_bytes, format_count, nbytes
from .._jaxpr.walk import walk
from .._planner.view import View, view_of
from ._halves import Halves, halves_of


@dataclasses.dataclass(frozen=True)
class Step:
    """One gradient step: the jaxpr, and how to compile it.

    Attributes:
        jaxpr: from the inputs, and the cotangents of outputs that are not scalars, to outputs and gradients.
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
        return any(kind_of(site.eqn) is Kind.LOOP for site in walk(self.jaxpr))

    @property
    def has_checkpoints(self) -> bool:
        """Whether anything is computed twice on purpose."""
        return any(jaxcompat.is_remat(site.eqn) for site in walk(self.jaxpr))

    def function(self) -> Callable[..., list[Any]]:
        """The step as a function."""
        return lambda *xs: jaxcompat.run(self.jaxpr, *xs)

    def measured(self, compile: bool = True) -> Measured:
        """What can be said of the step, compiled for the default device or not."""
        if not compile:
            return Measured(self)
        compiled = jax.jit(self.function()).lower(*self.inputs).compile()
        return Measured(self, compiled, _counts(compiled), compiled.memory_analysis())


@dataclasses.dataclass(frozen=True)
class Measured:
    """A step with the compiler's two reports, or without.

    Attributes:
        step: the step.
        program: the compiled step, None if it was not compiled.
        counts: of `cost_analysis`, empty where the backend has none.
        memory: of `memory_analysis`, None where the backend has none.
    """

    step: Step
    program: Any = None
    counts: dict[str, float] = dataclasses.field(default_factory=dict)
    memory: Any = None

    def bytes_of(self, what: str) -> int | None:
        """Bytes of "argument", "output" or "temp"; None for what only a compiler knows, or does not say."""
        if self.program is not None:
            return getattr(self.memory, f"{what}_size_in_bytes", None)
        body = jaxcompat.opened(self.step.jaxpr)
        known = {"argument": body.invars, "output": body.outvars}
        return sum(nbytes(atom.aval) for atom in known[what]) if what in known else None

    def time(self, repeats: int = 7) -> float | None:
        """The least of several run times in seconds, after a run that warms up; None without concrete inputs."""
        is_abstract = any(isinstance(x, jax.ShapeDtypeStruct | jaxcompat.Tracer) for x in self.step.inputs)
        if self.program is None or is_abstract:
            return None
        inputs = jax.device_put(self.step.inputs)
        jax.block_until_ready(self.program(*inputs))
        times = []
        for _ in range(repeats):
            start = time.perf_counter()
            jax.block_until_ready(self.program(*inputs))
            times.append(time.perf_counter() - start)
        return min(times)


def step_of(halves: Halves) -> Step:
    """The gradient step of which these are the halves.

    >>> from statetransform._planner.view import view_of
    >>> import jax.numpy as jnp
    >>> step = step_of(halves_of(view_of(lambda x: jnp.sum(jnp.sin(x)), (jnp.ones(3),), {})))
    >>> len(jaxcompat.opened(step.jaxpr).outvars), step.has_loops, step.has_checkpoints
    (2, False, False)
    """
    return Step(joint(halves), [*halves.view.inputs, *[_ones(aval) for aval in halves.cotangents if aval.shape]])


def joint(halves: Halves) -> Any:
    """One closed jaxpr of both halves, each kept as it is."""
    forward, backward = halves.forward, halves.backward()
    n = len(halves.labels)

    def step(*xs: Any) -> list[Any]:
        inputs, given = xs[:n], iter(xs[n:])
        results = jaxcompat.run(forward, *inputs)
        out = results[: halves.n_outputs + halves.n_auxiliary]
        cotangents = [next(given) if aval.shape else _ones(aval) for aval in halves.cotangents]
        residuals = results[len(out) :]
        gradients = jaxcompat.run(backward, *residuals, *cotangents)
        return [*out, *gradients]

    arrays = [aval for aval in halves.cotangents if aval.shape]
    return jax.make_jaxpr(step)(*halves.view.inputs, *arrays)


def without_checkpoints(view: View) -> View:
    """The same function with what its checkpoints contain in their places."""
    n_outputs: list[int] = []

    def both(*xs: Any) -> list[Any]:
        out, aux = view.fun(*xs)
        n_outputs.append(len(out))
        return [*out, *aux]

    plain = inlined(jax.make_jaxpr(both)(*view.inputs))

    def fun(*xs: Any) -> tuple[list[Any], list[Any]]:
        results = jaxcompat.run(plain, *xs)
        return results[: n_outputs[0]], results[n_outputs[0] :]

    return dataclasses.replace(view, fun=fun)


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


_LABELS = {
    "flops": "FLOPs",
    "bytes_accessed": "bytes accessed",
    "argument_bytes": "arguments",
    "output_bytes": "outputs",
    "temporary_bytes": "temporaries",
}


@dataclasses.dataclass(frozen=True, repr=False)
class Cost(Report):
    """What one gradient step costs: the output and the gradients with respect to all arguments and states.

    Attributes:
        name: of the function.
        flops: floating-point operations.
        bytes_accessed: bytes read and written by all operations.
        argument_bytes, output_bytes, temporary_bytes: sizes of the compiled program's buffers.
        origins: for each of these where it comes from; None stands for what the backend does not say.
        estimates: which of them are estimates.
    """

    name: str
    flops: float | None
    bytes_accessed: float | None
    argument_bytes: int | None
    output_bytes: int | None
    temporary_bytes: int | None
    origins: dict[str, str]
    estimates: frozenset[str]

    def to_dicts(self) -> list[dict[str, Any]]:
        """One dict per quantity."""
        return [
            {"quantity": key, "value": getattr(self, key), "from": self.origins[key], "estimate": key in self.estimates}
            for key in _LABELS
        ]

    def table(self) -> Table:
        """A row per quantity."""
        rows = []
        for key, label in _LABELS.items():
            value = getattr(self, key)
            shown = "unknown" if value is None else format_count(value) if key == "flops" else format_bytes(value)
            rows.append([label, shown, ("estimate: " if key in self.estimates else "") + self.origins[key]])
        return Table(f"one gradient step of {self.name}", ["quantity", ">amount", "from"], rows)


def flops_of(measured: Measured) -> tuple[float, str, bool]:
    """Operations of a step, where the number comes from, and whether it is an estimate."""
    count = measured.counts.get("flops")
    if count is not None and not measured.step.has_loops:
        return count, "the compiler's count", False
    counted = measured.step.flops
    if measured.program is None:
        why = "counted in the program before compilation"
    elif count is None:
        why = "counted before compilation, since the backend has no count"
    elif counted.bounded:
        why = "counted before compilation with each loop as often as it runs"
    else:
        why = "counted before compilation; a loop of unknown length counts once"
    return counted.operations, why, True


@boundary
def cost(
    f: Callable[..., Any],
    /,
    *args: Any,
    argnums: Any = None,
    states: Any = None,
    compile: bool = True,
    **kwargs: Any,
) -> Cost:
    """What one gradient step of a function costs, read from the compiled program where it can be read there.

    The step computes the output, what is written to states, and the gradients with respect to all floating-point
    arguments and states, or to those that `argnums` and `states` name; it is compiled for the default device, and not
    run. The cotangents of outputs that are not scalars are arguments of it.

    Args:
      f, `*args`, `argnums`, `states`, `**kwargs`: as for `residuals`.
      compile: False compiles nothing. FLOPs are then counted, arguments and outputs follow from types, and the rest is
        unknown.

    Returns:
      FLOPs (operations) and bytes; prints which numbers are estimates.

    Raises:
      TypeError: `f` is not callable, or JAX cannot differentiate it at these arguments.

    References:
      https://docs.jax.dev/en/latest/aot.html#debug-information-and-analyses-when-available

    Example:
      >>> from statetransform import State, inspect
      >>> import jax.numpy as jnp
      >>> w = State(jnp.ones((64, 64)), name="w")
      >>> found = inspect.cost(lambda x: jnp.sum(w.value @ x), jnp.ones((64, 64)))
      >>> found.argument_bytes, found.output_bytes > found.argument_bytes, sorted(found.estimates)
      (32768, True, ['bytes_accessed'])
      >>> print(found)
      one gradient step of <lambda>
      quantity        ...amount  from
      --------------  ...------  ----...
      FLOPs           ...
      bytes accessed  ...
      arguments       ...32 KiB  buffers of the compiled program
      outputs         ...32 KiB  buffers of the compiled program
      temporaries     ...
    """
    view = view_of(f, args, kwargs, argnums, states)
    measured = step_of(halves_of(view)).measured(compile)
    flops, origin, is_estimate = flops_of(measured)
    once = ", each loop's body once" if measured.step.has_loops else ""
    buffers = "buffers of the compiled program" if compile else "types in the program before compilation"
    unknown = "only the compiler knows; it was not asked"
    return Cost(
        view.name,
        flops=flops,
        bytes_accessed=measured.counts.get("bytes accessed"),
        argument_bytes=measured.bytes_of("argument"),
        output_bytes=measured.bytes_of("output"),
        temporary_bytes=measured.bytes_of("temp"),
        origins={
            "flops": origin,
            "bytes_accessed": f"the compiler's, without caches{once}" if compile else unknown,
            "argument_bytes": buffers,
            "output_bytes": buffers,
            "temporary_bytes": buffers if compile else unknown,
        },
        estimates=frozenset([*(["bytes_accessed"] if compile else []), *(["flops"] if is_estimate else [])]),
    )
