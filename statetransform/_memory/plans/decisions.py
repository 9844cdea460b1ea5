"""What a budget leads to for each pattern of what is differentiated, found once, and what users hear of it."""

from __future__ import annotations

import logging
from typing import Any

import jax.extend.core as jex

from ..._base.errors import BudgetError, PolicyWarning
from ..._base.sites import warn
from ..loops.budget import MemoryBudget
from ..loops.choice import FunctionChoice
from ..programs.sizes import format_bytes
from .choose import Decision, Planners, Shortage, excess_message, shortage_message
from .constants import Constants
from .devices import is_unknown
from .gradient import Pattern
from .meter import Meter

logger = logging.getLogger("statetransform")


class Decisions:
    """The decisions for one function.

    Args:
      name: of the function.
      body: an open jaxpr without constants.
      budget: the budget, which records what is chosen.
      shardings: those of the inputs, None where they are not known or in the types.
      constants: inputs that are constants of the program around.
    """

    def __init__(
        self, name: str, body: Any, budget: MemoryBudget, shardings: tuple[Any, ...], constants: Constants
    ) -> None:
        self._name, self._asked, self.budget = name, budget, budget.bytes
        self._is_unknown = is_unknown([var.aval for var in body.invars], shardings)
        meter = Meter(name) if budget.progress else None
        closed = jex.ClosedJaxpr(body, [])
        self.planners = Planners(closed, shardings, budget.compile, meter, budget.target, constants)
        self._found: dict[Pattern, Decision | Shortage] = {}

    def of(self, pattern: Pattern) -> Decision | Shortage:
        """The decision for a pattern."""
        if pattern not in self._found:
            if self._is_unknown:
                warn(
                    f"checkpoint: where {self._name} is planned, it is not known how its arguments are sharded, so the "
                    f"budget of {format_bytes(self.budget)} counts the bytes of all devices together. Use "
                    "`transform.jit`, give the arguments to the checkpointed function as they are, or use a mesh with "
                    "explicit axes.",
                    PolicyWarning,
                )
            found = self.planners.of(pattern).decide(self.budget)
            self._found[pattern] = found
            if isinstance(found, Decision):
                self._record(found)
                self._warn(found)
        return self._found[pattern]

    def notice(self, found: Decision | Shortage, lanes: int) -> None:
        """Says that there are more lanes than were known when the gradient was planned, if they are too many."""
        size = found.least if isinstance(found, Shortage) else found.compiled or found.planned
        if lanes * size <= self.budget:
            return
        warn(
            f"checkpoint: {self._name} was planned within {format_bytes(self.budget)}, and got {lanes} lanes of "
            f"`vmap` later, each of which takes {format_bytes(size)}. A budget counts the lanes that are known where "
            "the function is called: put `jit` around `vmap`, or give a lane its part, "
            f"{format_bytes(max(self.budget // lanes, 1))}.",
            PolicyWarning,
        )

    def refuse(self, found: Shortage) -> BudgetError:
        """The error for a budget that cannot be met."""
        return BudgetError(shortage_message(self._asked.size, found), least=found.least)

    def _record(self, found: Decision) -> None:
        is_plain, target = found.program is None, self.planners.target
        where = "" if target.is_here else str(target)
        chosen = FunctionChoice(
            self._name, found.planned, found.compiled, found.over_plain, is_plain, self.budget, where
        )
        self._asked.record(chosen)
        logger.info("checkpoint: %s", chosen)

    def _warn(self, found: Decision) -> None:
        if found.compiled is not None and found.compiled > self.budget:
            warn(excess_message(self._asked.size, found, self.planners.target), PolicyWarning)
