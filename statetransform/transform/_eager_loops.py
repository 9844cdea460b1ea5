"""Loops and branches in eager mode: each is one compiled program, kept with the trace of its body.

So a call whose functions find their traces again compiles nothing, and a program is gone with its trace. What the
functions close over is an operand: the program holds no array.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax

from .._jax import is_jit_disabled, is_top_level, staging_trace
from .._memory import MemoryBudget, known_lanes, said_of_program
from .._traces.arguments import strict
from .._traces.families import remember
from .._traces.shardings import sharding_of
from ._bodies import TracedFunction

_BOUND = 16  # programs of a trace, for different options


def in_one_program(
    where: str,
    functions: Sequence[TracedFunction],
    options: tuple[Hashable, ...],
    run: Callable[..., Any],
    *operands: Any,
) -> Any:
    """A loop or branch as a compiled program, where no transform around stages; there it is run as it is.

    Args:
      where: the loop or branch.
      functions: what it was given, traced. The trace of the first one keeps the program.
      options: what else it depends on; if that cannot be hashed, nothing is kept.
      run: takes what the functions hold, and the operands. It holds no array itself.
      operands: pytrees of arrays.
    """
    held = [fun.held for fun in functions]
    if is_jit_disabled() or not (is_top_level() or staging_trace() is None):
        return run(held, *operands)
    # A plan for a budget depends on the lanes around and on shardings, which the program's own trace does not see.
    has_budget = any(isinstance(option, MemoryBudget) for option in options)
    leaves = jax.tree.leaves((held, operands)) if has_budget else []
    lanes, shardings = tuple(known_lanes(leaves)), tuple(map(sharding_of, leaves))

    def program(*args: Any) -> Any:
        by_id = dict(zip(map(id, jax.tree.leaves(args)), shardings, strict=False))
        with said_of_program(lanes, by_id):
            return run(*args)

    program.__name__ = program.__qualname__ = where
    programs = functions[0].trace.programs
    key = where, options, strict(options), lanes, shardings, *[(fun.trace.jaxpr, fun.order) for fun in functions]
    try:
        compiled = programs.get(key) or jax.jit(program, inline=True)
    except TypeError:
        return jax.jit(program, inline=True)(held, *operands)
    remember(programs, key, compiled, _BOUND)
    return compiled(held, *operands)
