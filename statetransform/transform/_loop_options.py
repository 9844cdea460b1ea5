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
from .._loops.options import check_carries

Checkpoint = None | int | str | MemoryBudget


def scan_with(where: str, checkpoint: Checkpoint, watch: Watch | None = None) -> Callable[..., Any]:
    """The pure scan that keeps what `checkpoint` says."""
    if checkpoint is None and watch is None:
        return jax.lax.scan
    if checkpoint == "step" and watch is None:
        return lambda step, *args, **options: jax.lax.scan(jax.checkpoint(step), *args, **options)
    return functools.partial(checkpointed.scan, where=where, checkpoint=checkpoint, watch=watch)


def number_of_steps(where: str, name: str, value: Any) -> int:
    """A number of steps as an integer of Python; a traced one is refused as JAX does, with the cure."""
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
    return functools.partial(
        checkpointed.while_loop, where=where, max_steps=max_steps, checkpoint=checkpoint, watch=watch
    )


def check_loop(where: str, checkpoint: Any, *functions: Any) -> None:
    """Refuses a body that is not a function, and what `checkpoint` cannot be."""
    for fun in functions:
        if not callable(fun):
            cure = " The function comes first: `for_loop(f, xs)`, or `for_loop(f, length=100)`."
            cure = cure if where == "for_loop" else ""
            raise TypeError(f"{where}: expected a function, not {fun!r} of type {type(fun).__name__}.{cure}")
    if checkpoint is not None and not isinstance(checkpoint, MemoryBudget):
        check_carries(where, checkpoint)
