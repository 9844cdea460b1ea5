"""What `checkpoint=` may be: how many carries each of its forms stands for. Anything else is refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

NAMES = ("sqrt", "log")


def stored_carries(where: str, checkpoint: Any, n: int | None) -> int:
    """The number of stored carries that `checkpoint` means in a loop of `n` steps.

    Args:
      where: the loop or function, for messages.
      checkpoint: a number, "sqrt" or "log".
      n: the number of steps; None if it is not known in advance.

    Raises:
      TypeError, ValueError: it is none of these.
    """
    if isinstance(checkpoint, str):
        return _by_name(where, checkpoint, n)
    if isinstance(checkpoint, bool):
        raise TypeError(
            f'{where}: the number of stored carries must be an integer, "sqrt" or "log", not {checkpoint} of type '
            f"bool. Write how many may be stored, {_example(where)}"
        )
    if callable(checkpoint):
        name = getattr(checkpoint, "__name__", type(checkpoint).__name__)
        raise TypeError(
            f"{where}: `checkpoint=` takes a number of stored carries, such as checkpoint=20, but {name!r} is a "
            "function. If it is a policy, put it around the loop's body: `transform.checkpoint(body, policy=...)`."
        )
    if not isinstance(checkpoint, int | np.integer):
        raise TypeError(
            f'{where}: the number of stored carries must be an integer, "sqrt" or "log", not {checkpoint!r} of type '
            f"{type(checkpoint).__name__}. For a number of bytes write `st.MemoryBudget(...)`."
        )
    if checkpoint < 0:
        raise ValueError(f"{where}: the number of stored carries must be 0 or more, not {checkpoint}")
    return int(checkpoint)


def _by_name(where: str, name: str, n: int | None) -> int:
    if name == "step" and where == "schedule":
        raise ValueError(
            'schedule: k="step" stores the carry of every step, which is k=n; a plan needs a number of carries, "sqrt" '
            'or "log".'
        )
    if name not in NAMES:
        given = repr(name) if where == "policies.loops" else f"checkpoint={name!r}"
        raise ValueError(
            f'{where}: {given} is not recognized. Write a number of carries, "sqrt", "log", "step", or '
            '`st.MemoryBudget("2GiB")`.'
        )
    if n is None:
        raise ValueError(
            f"{where}: checkpoint={name!r} needs a number of steps that is known when the loop is traced. Write a "
            "number of carries instead, such as checkpoint=20."
        )
    return math.isqrt(max(n - 1, 0)) + 1 if name == "sqrt" else max(n - 1, 1).bit_length()


def _example(where: str) -> str:
    if where == "schedule":
        return "`schedule(100, 20)` for example."
    if where == "policies.loops":
        return "`policies.loops(20)` for example."
    return "checkpoint=20 for example" + ("." if where == "while_loop" else ', or "step" for all of them.')
