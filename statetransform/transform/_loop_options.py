"""What a loop stores for its backward pass: JAX's own loop, or a checkpointed one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

from .._jaxcompat import Tracer
from .._loops import loops as checkpointed
from .._loops.budget import MemoryBudget
from .._loops.chunks import Watch

Checkpoint = None | int | str | MemoryBudget


def scan_with(where: str, checkpoint: Checkpoint, watch: Watch | None = None) -> Callable[..., Any]:
    """The pure scan that keeps what `checkpoint` says."""
    if checkpoint is None and watch is None:
        return jax.lax.scan
    if checkpoint == "step" and watch is None:
        return lambda step, *args, **options: jax.lax.scan(jax.checkpoint(step), *args, **options)
    return functools.partial(checkpointed.scan, where=where, checkpoint=checkpoint, watch=watch)


def number_of_steps(where: str, name: str, value: Any) -> int:
    """A number of steps as an integer of Python; a traced one is refused as JAX does, with the cure.

    Args:
      where: the loop, for messages.
      name: what the argument is called.
      value: the number.
    """
    if isinstance(value, Tracer):
        cure = (
            "Test a computed limit in the condition."
            if where == "while_loop"
            else f"For a computed number of steps write `transform.fori_loop(0, {name}, body, carry)`, with "
            "`checkpoint=20` if it is to be differentiated."
        )
        raise jax.errors.ConcretizationTypeError(
            value,
            f"{where}: `{name}` must be known when the loop is traced, when memory for all steps is allocated. "
            f"Make it static (`static_argnums`, `State(..., static=True)`). {cure}",
        )
    if int(value) < 0:
        raise ValueError(f"{where}: `{name}` must be 0 or more, not {int(value)}")
    return int(value)


def while_with(
    where: str, checkpoint: Checkpoint, max_steps: int | None, watch: Watch | None = None
) -> Callable[..., Any]:
    """The pure loop of unknown length that keeps what `checkpoint` says."""
    if checkpoint == "step" and max_steps is not None:
        checkpoint = max_steps
    if isinstance(checkpoint, str) and checkpoint == "step":
        raise ValueError(
            f'{where}: checkpoint="step" stores the carry of every step, but the number of steps is not known. Write '
            "how many carries may be stored, checkpoint=20 for example"
            + (", or the largest number of steps, `max_steps=`." if where == "while_loop" else ".")
        )
    return functools.partial(
        checkpointed.while_loop, where=where, max_steps=max_steps, checkpoint=checkpoint, watch=watch
    )


def check_loop(where: str, checkpoint: Any, *functions: Any) -> None:
    """Refuses a body that is not a function, and a `checkpoint` that is a policy or a budget without a size."""
    for fun in functions:
        if not callable(fun):
            cure = " The function comes first: `for_loop(f, xs)`, or `for_loop(f, length=100)`."
            cure = cure if where == "for_loop" else ""
            raise TypeError(f"{where}: expected a function, not {fun!r} of type {type(fun).__name__}.{cure}")
    if getattr(checkpoint, "__name__", "") in ("MemoryBudget", "fit"):
        raise TypeError(
            f"{where}: checkpoint={checkpoint.__name__} is not a budget yet. Call it with a size: "
            '`checkpoint=st.MemoryBudget("2GiB")`.'
        )
    if isinstance(checkpoint, bool) or (callable(checkpoint) and not isinstance(checkpoint, MemoryBudget)):
        cure = 'Write how many carries may be stored, checkpoint=20 for example, or "step", "sqrt", "log"'
        if callable(checkpoint):
            cure = f"A policy belongs to a function: `{where}(transform.checkpoint(body, policy=...), ...)`. {cure}"
        raise TypeError(f"{where}: checkpoint={checkpoint!r} does not tell which carries to store. {cure}.")
