"""`cost`: what one gradient step costs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from .._analysis.compiled import Compiled, step_of
from .._analysis.sizes import format_bytes, format_count
from .._analysis.staged import stage
from ._table import Report, Table

_BUFFERS = "buffers of the compiled program"
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


def flops_of(compiled: Compiled) -> tuple[float, str, bool]:
    """Operations of a compiled step, where the number comes from, and whether it is an estimate."""
    count = compiled.counts.get("flops")
    if count is not None and not compiled.step.has_loops:
        return count, "the compiler's count", False
    counted = compiled.step.flops
    if count is None:
        why = "counted before compilation, since the backend has no count"
    elif counted.bounded:
        why = "counted before compilation with each loop as often as it runs, which the compiler counts once"
    else:
        why = "counted before compilation; a loop of unknown length counts once"
    return counted.operations, why, True


def cost(f: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Cost:
    """What one gradient step of a function costs, read from the compiled program where it can be read there.

    The step computes the output, what is written to states, and the gradients with respect to all floating-point
    arguments and states; it is compiled for the default device, and not run. The cotangents of outputs that are not
    scalars are arguments of it.

    Args:
      f, `*args`, `**kwargs`: as for `residuals`.

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
    staged = stage(f, args, kwargs)
    compiled = step_of(staged).compile()
    flops, origin, is_estimate = flops_of(compiled)
    once = ", each loop's body once" if compiled.step.has_loops else ""
    return Cost(
        staged.name,
        flops=flops,
        bytes_accessed=compiled.counts.get("bytes accessed"),
        argument_bytes=compiled.bytes_of("argument"),
        output_bytes=compiled.bytes_of("output"),
        temporary_bytes=compiled.bytes_of("temp"),
        origins={
            "flops": origin,
            "bytes_accessed": f"the compiler's, without caches{once}",
            "argument_bytes": _BUFFERS,
            "output_bytes": _BUFFERS,
            "temporary_bytes": _BUFFERS,
        },
        estimates=frozenset(("bytes_accessed", *(["flops"] if is_estimate else []))),
    )
