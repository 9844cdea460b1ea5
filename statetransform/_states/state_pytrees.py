"""Pytrees of states, or of cells that stand for states."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import jax

from .._base.errors import describe, hints
from .adapters import as_state, is_node
from .frame import read
from .pytrees import with_values
from .state import State


class Gathered:
    """A pytree of states, and values in the same structure.

    Args:
      tree: the pytree.
      is_leaf: as in :func:`jax.tree.flatten`.

    Attributes:
      states: its leaves, as states where they are any.
      paths: the way to each of them.
    """

    def __init__(self, tree: Any, is_leaf: Callable[[Any], bool] = lambda leaf: False) -> None:
        is_whole = lambda leaf: is_leaf(leaf) or is_node(leaf)
        found, self._treedef = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_whole)
        self.states: list[Any] = [as_state(leaf) for _, leaf in found]
        self.paths: list[Any] = [path for path, _ in found]
        self._tree = tree

    def values(self, values: Iterable[Any]) -> Any:
        """The pytree with a value for each state."""
        return with_values(self._tree, values)

    def by_state(self, values: Any) -> dict[State, Any]:
        """The values in such a pytree by state."""
        return dict(zip(self.states, self.split(values), strict=True))

    def split(self, values: Any) -> list[Any]:
        """The value of each state, from such a pytree."""
        found = [(value, as_state(value)) for value in self._treedef.flatten_up_to(values)]
        return [value if state is value else read(state) for value, state in found]


def differentiated_states(states: Any, where: str = "") -> Gathered:
    """What `states=` of a derivative names: a `State` or a pytree of them, each once."""
    gathered = Gathered(states)
    for state in gathered.states:
        if not isinstance(state, State):
            is_kind = isinstance(state, type)
            found = f"is the class {state.__name__}" if is_kind else f"has a leaf of type {type(state).__name__}"
            raise TypeError(
                f"{where}`states=` must be a State or a pytree of States, but {found}. "
                f"For the states of a model write {states_of_a_model()}."
            )
        if state._static:
            raise TypeError(
                f"{where}{describe(state)} is static, and derivatives need floating-point values. "
                "Leave it out of `states=`."
            )
    if len(set(gathered.states)) != len(gathered.states):
        raise ValueError(f"{where}a state is listed twice in `states=`; list each state once")
    return gathered


def states_of_a_model() -> str:
    """What `states=` may be, for the frameworks that are there."""
    return f"`states=st.states(model, st.Param)`{hints('states')}"
