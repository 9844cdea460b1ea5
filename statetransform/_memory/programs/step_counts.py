"""How often a loop of unknown length runs, said in its name scope.

The sweeps of a checkpointed loop compute on the device how far to go, so their jaxprs do not show how often a step
runs. The schedule knows it. A name scope changes nothing in the program, stays with the equation through further
transforms, and is seen in profiles.
"""

from __future__ import annotations

import contextlib
import re
from typing import Any, NamedTuple

import jax

from ..._jax import name_scopes

_SCOPE = re.compile(r"statetransform\.(steps|again)=(\d+):(\d+)")  # no name that a user would give to a scope


class Count(NamedTuple):
    """How often a loop's body runs in each run of the loop, on average, and whether a plain loop would do without."""

    times: float
    is_recomputation: bool


def counted(steps: int | None, runs: int = 1, is_recomputation: bool = False) -> contextlib.AbstractContextManager[Any]:
    """Annotates the loops traced within: `steps` iterations in all, over `runs` executions of the loop.

    Does nothing if `steps` is None.
    """
    if steps is None:
        return contextlib.nullcontext()
    return jax.named_scope(f"statetransform.{'again' if is_recomputation else 'steps'}={steps}:{runs}")


def count_of(eqn: Any) -> Count | None:
    """The annotation of an equation, or None.

    >>> import jax
    >>> def f(x):
    ...     with counted(30, 4):
    ...         return jax.lax.while_loop(lambda x: x < 3, lambda x: x + 1, x)
    >>> count_of(jax.make_jaxpr(f)(0).jaxpr.eqns[0])
    Count(times=7.5, is_recomputation=False)
    """
    found = _SCOPE.findall(name_scopes(eqn))
    if not found:
        return None
    kind, steps, runs = found[-1]
    return Count(int(steps) / int(runs), kind == "again")
