"""What `checkpoint=` may be: how many carries each of its forms stands for. Anything else is refused."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np

_EXAMPLES = {"schedule": "`schedule(100, 20)`", "policies.loops": "`policies.loops(20)`"}


@dataclasses.dataclass(frozen=True)
class Reversible:
    """For `checkpoint=` of a loop whose step can be undone: reverse mode runs the loop backwards.

    The gradient needs the memory of a few carries, whatever the number of steps. Each step is evaluated once forward,
    undone once, and differentiated once. What `inverse` computes is not differentiated.

    Args:
      inverse: the step backwards. It takes what the step takes, with the carry after the step, and returns the carry
        before it, without an output: `inverse(carry, x)` for `scan`, `inverse(i, carry)` for `fori_loop`. States it
        sets back: all those that the step writes. For `for_loop` it takes the slices, and what it returns is ignored.
      every: after how many steps a carry is stored exactly, against the drift of rounding; None for the last one
        alone.

    Raises:
      TypeError, ValueError: `inverse` is not a function, or `every` not a positive number.

    References:
      Griewank and Walther, *Evaluating Derivatives*, 2008, section 12.2, on steps that can be undone.

    Example:
      >>> import jax.numpy as jnp, statetransform as st
      >>> from statetransform import State, transform
      >>> def swing(length, dt=0.01):
      ...     angle, speed = State(1.0, name="angle"), State(0.0, name="speed")
      ...     def step():  # leapfrog
      ...         speed.value = speed.value - dt * jnp.sin(angle.value) / length
      ...         angle.value = angle.value + dt * speed.value
      ...     def back():
      ...         angle.value = angle.value - dt * speed.value
      ...         speed.value = speed.value + dt * jnp.sin(angle.value) / length
      ...     transform.for_loop(step, length=10_000, checkpoint=st.Reversible(back, every=1000))
      ...     return angle.value
      >>> gradient = transform.jit(transform.grad(swing))(1.0)
    """

    inverse: Callable[..., Any]
    every: int | None = None

    def __post_init__(self) -> None:
        if not callable(self.inverse):
            given = f"{self.inverse!r} of type {type(self.inverse).__name__}"
            raise TypeError(f"Reversible: `inverse` must be a function that undoes a step, not {given}")
        if self.every is None:
            return
        if isinstance(self.every, bool) or not isinstance(self.every, int | np.integer):
            given = f"{self.every!r} of type {type(self.every).__name__}"
            raise TypeError(f"Reversible: `every` must be a number of steps, not {given}")
        if self.every < 1:
            raise ValueError(f"Reversible: `every` must be 1 or more, not {self.every}")

    def stored(self, n: int) -> int:
        """How many carries are stored in a loop of `n` steps, without the last one."""
        return (n - 1) // self.every if self.every and n else 0


def check_carries(where: str, checkpoint: Any) -> None:
    """Refuses all but a number of carries, "sqrt", "log", and "step", which `schedule` does not know."""
    names = '"sqrt", "log"'
    if where != "schedule":
        names += ', "step", or for a number of bytes `st.MemoryBudget("2GiB")`'
    cure = f"Write how many carries may be stored, {_EXAMPLES.get(where, 'checkpoint=20')} for example, or {names}."
    name = getattr(checkpoint, "__name__", "")
    if name == "Reversible":
        raise TypeError(f"{where}: Reversible needs an inverse: `checkpoint=st.Reversible(back)`.")
    if isinstance(checkpoint, Reversible):
        raise TypeError(f"{where}: {where} has no use for steps backwards, as it knows none of the loops. {cure}")
    if name in ("MemoryBudget", "fit"):
        raise TypeError(
            f'{where}: {name} is not a budget yet. Call it with a size: `checkpoint=st.MemoryBudget("2GiB")`.'
        )
    if isinstance(checkpoint, str):
        if checkpoint not in ("sqrt", "log") and (checkpoint != "step" or where == "schedule"):
            raise ValueError(f"{where}: {checkpoint!r} does not say which carries to store. {cure}")
    elif isinstance(checkpoint, bool) or not isinstance(checkpoint, int | np.integer):
        if callable(checkpoint) and where not in _EXAMPLES:
            cure = f"A policy belongs to a function: `{where}(transform.checkpoint(body, policy=...), ...)`. {cure}"
        given = f"{checkpoint!r} of type {type(checkpoint).__name__}"
        raise TypeError(f"{where}: the number of stored carries must be an integer, not {given}. {cure}")
    elif checkpoint < 0:
        raise ValueError(f"{where}: the number of stored carries must be 0 or more, not {checkpoint}")


def stored_carries(where: str, checkpoint: Any, n: int | None) -> int:
    """The number of stored carries that a number or a name means in a loop of `n` steps, None if not known."""
    if not isinstance(checkpoint, str):
        return int(checkpoint)
    if n is None:
        raise ValueError(
            f"{where}: checkpoint={checkpoint!r} needs a number of steps that is known when the loop is traced. Write "
            "a number of carries instead, such as checkpoint=20"
            + (", or the largest number of steps, `max_steps=`." if where == "while_loop" else ".")
        )
    if checkpoint == "step":
        return n
    return math.isqrt(max(n - 1, 0)) + 1 if checkpoint == "sqrt" else max(n - 1, 1).bit_length()
