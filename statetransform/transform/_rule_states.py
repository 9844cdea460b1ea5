"""How values of states come into a function with a derivative rule: without tangents, for which it has no rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax

from .._base.errors import StateTraceError
from .._jax import is_differentiable, is_zero_tangent, without_inner_tangents
from .._states.frame import Frame
from .._states.state import State


class RuleFrame(Frame):
    """A frame for a function with a rule, or for the rule.

    Args:
      refusal: gives the error for a state whose value is gone, and None for any other.

    Attributes:
      entered: the values that came from outside.
      lost: the states whose tangents did not come with them.
    """

    def __init__(self, refusal: Callable[[State], StateTraceError | None]) -> None:
        super().__init__()
        self._refusal = refusal
        self.entered: dict[State, Any] = {}
        self.lost: list[State] = []

    def enter(self, state: State) -> Any:
        if state.static:
            return super().enter(state)
        if (error := self._refusal(state)) is not None:
            raise error
        value, is_lost = without_inner_tangents(super().enter(state))
        self.entered[state] = value
        if is_lost:
            self.lost.append(state)
        return value


def undifferentiated(
    values: Mapping[State, Any], args: Any, refusal: Callable[[State], Exception]
) -> tuple[list[Any], Any]:
    """The values of states and the arguments of a function with a rule; an error if such a state is differentiated.

    They go through one identity with a rule of its own, which so is differentiated by the trace that differentiates the
    function, and by no other. In second derivatives, a trace further out goes through the operations of the function's
    rule, and states may have its tangents.
    """
    states = [state for state, value in values.items() if any(map(is_differentiable, jax.tree.leaves(value)))]
    if not states:
        return [*values.values()], args
    same = jax.custom_jvp(lambda *values_and_args: values_and_args)

    def rule(primals: Any, dots: Any) -> Any:
        for state, dot in zip(states, dots[0], strict=True):
            if not all(map(is_zero_tangent, jax.tree.leaves(dot))):
                raise refusal(state)
        return primals, dots

    same.defjvp(rule, symbolic_zeros=True)
    seen, args = same([values[state] for state in states], args)
    return [*{**values, **dict(zip(states, seen, strict=True))}.values()], args
