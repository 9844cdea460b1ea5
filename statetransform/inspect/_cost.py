"""`cost`: what one gradient step costs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from .._base.table import Report, Table
from .._memory.programs.sizes import format_bytes, format_count
from .._traces.tracebacks import boundary
from ._gradient import GradientStep
from ._view import view_of

_LABELS = {
    "flops": "FLOPs",
    "bytes_accessed": "bytes accessed",
    "argument_bytes": "arguments",
    "output_bytes": "outputs",
    "temporary_bytes": "temporaries",
    "seconds": "time",
}


@dataclasses.dataclass(frozen=True, repr=False)
class Cost(Report):
    """What one gradient step costs: the output and the gradients with respect to all arguments and states.

    Attributes:
      name: of the function.
      flops: floating-point operations.
      bytes_accessed: bytes read and written by all operations.
      argument_bytes, output_bytes, temporary_bytes: sizes of the compiled program's buffers.
      seconds: the compiler's own estimate of time, which those of TPUs make; None from others.
      origins: where each of these comes from.
      estimates: which of them are estimates.
      target: what the step was compiled for.
      notes: what these figures do not know.
    """

    name: str
    flops: float | None
    bytes_accessed: float | None
    argument_bytes: int | None
    output_bytes: int | None
    temporary_bytes: int | None
    seconds: float | None
    origins: dict[str, str]
    estimates: frozenset[str]
    target: str
    notes: tuple[str, ...] = ()

    @property
    def _known(self) -> dict[str, str]:
        return {key: label for key, label in _LABELS.items() if key != "seconds" or self.seconds is not None}

    def to_dicts(self) -> list[dict[str, Any]]:
        """One dict per quantity."""
        return [
            {"quantity": key, "value": getattr(self, key), "from": self.origins[key], "estimate": key in self.estimates}
            for key in self._known
        ]

    def table(self) -> Table:
        """A row per quantity."""
        rows = []
        for key, label in self._known.items():
            value = getattr(self, key)
            show = {"flops": format_count, "seconds": lambda s: f"{1e3 * s:.3g} ms"}.get(key, format_bytes)
            shown = "unknown" if value is None else show(value)
            rows.append([label, shown, ("estimate: " if key in self.estimates else "") + self.origins[key]])
        return Table(f"one gradient step of {self.name}", ["quantity", ">amount", "from"], rows, self.notes)


@boundary
def cost(
    f: Callable[..., Any],
    /,
    *args: Any,
    argnums: Any = None,
    states: Any = None,
    compile: bool = True,
    target: Any = None,
    **kwargs: Any,
) -> Cost:
    """What one gradient step of a function costs. The numbers are the compiler's where it reports them.

    The step computes the output, what is written to states, and the gradients with respect to all floating-point
    arguments and states, or to those that `argnums` and `states` name. It is compiled for the default device, for where
    the arguments are, or for `target`, and not run. The cotangents of outputs that are not scalars are among its
    arguments.

    Args:
      f, `*args`, `argnums`, `states`, `**kwargs`: as for `residuals`.
      compile: False compiles nothing. FLOPs are then counted, arguments and outputs follow from types, and the rest is
        unknown.
      target: the devices to compile for, if they are not there: a :class:`statetransform.Target`, its name ("H100"), or
        devices of a topology. Default: where the arguments are, or what JAX runs on.

    Returns:
      FLOPs (operations) and bytes; prints which numbers are estimates.

    Raises:
      TypeError: `f` is not callable, or JAX cannot differentiate it at these arguments.
      ValueError, ImportError, RuntimeError: `target` cannot be had; see :func:`statetransform.target`.

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
    view = view_of(f, args, kwargs, argnums, states, target)
    step = GradientStep.of(view, compile)
    once = ", each loop's body once" if step.has_loops else ""
    buffers = "buffers of the compiled program" if compile else "types in the program before compilation"
    unknown = "not said by the compiler" if compile else "unknown without the compiler"
    counted = "counted before compilation with each loop as often as it runs, or once if that is not known"
    compiled = step.compiled
    notes = [] if compiled is None else [*compiled.notes, *step.target.notes]
    if len(step.inputs) > len(view.inputs):
        notes.append(
            f"{view.name} returns no scalar, so the step takes a cotangent for each output. If it is a gradient "
            "itself, as `jax.grad(f)` is, these are costs of second derivatives: pass `f`."
        )
    said, seconds = (None, None) if compiled is None else (compiled.bytes_accessed, compiled.seconds)
    return Cost(
        view.name,
        flops=step.flops,
        bytes_accessed=said,
        argument_bytes=step.bytes_of("argument"),
        output_bytes=step.bytes_of("output"),
        seconds=seconds,
        temporary_bytes=step.bytes_of("temporary"),
        origins={
            "flops": counted if step.flops_are_estimated else "the compiler's count",
            "bytes_accessed": f"the compiler's, without caches{once}" if said else unknown,
            "argument_bytes": buffers,
            "output_bytes": buffers,
            "temporary_bytes": buffers if compile else unknown,
            "seconds": f"the compiler's{once}",
        },
        estimates=frozenset(
            ["bytes_accessed"] * bool(said) + ["seconds"] * bool(seconds) + ["flops"] * step.flops_are_estimated
        ),
        target=str(step.target),
        notes=tuple(notes),
    )
