"""What a function is differentiated with respect to, and what it returns in addition to the output."""

from __future__ import annotations

from typing import Any

import jax

from .._state.frame import look_at_all
from .._state.gather import differentiated_states, states_of_a_model
from .._state.state import State
from .._trace.arguments import is_reference, without_objects
from .._trace.outcome import Results


class Differentiated:
    """What a function is differentiated with respect to: states, arguments or both.

    All of it is gathered into one pytree, `primal`, so that no index has to be shifted.
    """

    def __init__(self, where: str, states: Any, argnums: Any, args: tuple[Any, ...]) -> None:
        self._has_states, self._has_arguments = states is not None, argnums is not None
        self._gathered = differentiated_states(states, f"{where}: ")
        self.states: list[State] = self._gathered.states
        if self._has_states and not self.states and not self._has_arguments:
            raise ValueError(
                f"{where}: `states=` has no state in it, so there is nothing to differentiate with respect to. If it "
                f"comes from `st.states(model, kind)`, the model has no state of this kind. Write "
                f"for example {states_of_a_model()}."
            )
        self._args = args
        self._single = isinstance(argnums, int)
        self._positions = [_position(where, i, args) for i in ((argnums,) if self._single else argnums or ())]
        values = self._gathered.values(look_at_all(self.states))
        chosen, self._whole = without_objects(tuple([args[i] for i in self._positions]))
        chosen = chosen[0] if self._single else chosen
        self._is_pair = self._has_states and self._has_arguments
        self.primal = (values, chosen) if self._is_pair else values if self._has_states else chosen

    def split(self, primal: Any) -> tuple[dict[State, Any], tuple[Any, ...]]:
        """The states' values and the whole argument list, for other values of `primal`."""
        values, chosen = primal if self._is_pair else (primal, ()) if self._has_states else (None, primal)
        args = list(self._args)
        for i, arg in zip(self._positions, self._whole((chosen,) if self._single else chosen), strict=True):
            args[i] = arg
        return dict(zip(self.states, self._gathered.split(values), strict=True)), tuple(args)


def _position(where: str, index: int, args: tuple[Any, ...]) -> int:
    if not -len(args) <= index < len(args):
        raise ValueError(
            f"{where}: argnums={index}, but the function was called with {len(args)} positional argument(s)"
        )
    arg = args[index]
    if not jax.tree.leaves(arg) and any(map(is_reference, jax.tree.leaves(arg, is_leaf=is_reference))):
        raise TypeError(
            f"{where}: argument {index} is passed by reference (it is a state, or holds states), and nothing can be "
            f"differentiated with respect to it. Name the states instead: {states_of_a_model()}."
        )
    return index % len(args)


def with_aux(results: Results, has_aux: bool, where: str) -> tuple[Any, Any]:
    """Results as `(output, auxiliary data)`, what was written being auxiliary."""
    out, written, born = results
    if not has_aux:
        return out, (None, written, born)
    if not isinstance(out, tuple | list) or len(out) != 2:
        raise TypeError(
            f"{where}: with has_aux=True the function must return a pair (output, aux), not {type(out).__name__}"
        )
    return out[0], (out[1], written, born)
