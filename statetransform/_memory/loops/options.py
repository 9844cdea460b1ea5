"""What `checkpoint=` may be: how many carries each of its forms stands for. Anything else is refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

_EXAMPLES = {"schedule": "`schedule(100, 20)`", "policies.loops": "`policies.loops(20)`"}


def check_carries(where: str, checkpoint: Any) -> None:
    """Refuses all but a number of carries, "sqrt", "log", and "step", which `schedule` does not know."""
    names = '"sqrt", "log"'
    if where != "schedule":
        names += ', "step", or for a number of bytes `st.MemoryBudget("2GiB")`'
    cure = f"Write how many carries may be stored, {_EXAMPLES.get(where, 'checkpoint=20')} for example, or {names}."
    name = getattr(checkpoint, "__name__", "")
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
