"""Reading and writing many states at once."""

from __future__ import annotations

from typing import Any

import jax

from .._base.errors import StateStructureError, describe
from .._base.library import is_users_class
from .._jax import Tracer
from .adapters import as_state, is_node
from .find import states as find_states
from .formatting import show_types, show_unmatched, type_of
from .frame import look_at, own_arrays, read
from .state import State
from .state_pytrees import Gathered


def values(states: Any) -> Any:
    """The values of a pytree of states, in the same structure.

    They are a snapshot: JAX arrays do not change, and NumPy arrays are copied. Only `jit(donate_states=True)` deletes
    arrays, those that its states had before: keep a copy, `jax.tree.map(jnp.copy, st.values(states))`.

    Args:
      states: a `State` or a pytree of them, as `states` returns; or an object that holds states.

    Returns:
      The pytree with each state replaced by its value; of an object, a dict by the paths of its states.

    Example:
      >>> import statetransform as st
      >>> st.values({"a": st.State(1.0), "b": st.State(2.0)})
      {'a': 1.0, 'b': 2.0}
    """
    gathered = Gathered(_all_of(states))
    return gathered.values([own_arrays(look_at(_state(state))) for state in gathered.states])


def update(states: Any, values: Any) -> None:
    """Writes a pytree of states at once.

    Every structure, shape and dtype is checked first; nothing is written when one is wrong.

    Args:
      states: a `State` or a pytree of them; or an object that holds states.
      values: a pytree in the same structure with a value in the place of each state.

    Raises:
      StateStructureError: a value has another structure, shape or dtype than the one that is held.
      ValueError: a value is an array that was deleted, since its buffer was donated.

    Example:
      >>> import statetransform as st
      >>> a = st.State(1.0)
      >>> st.update({"a": a}, {"a": 5.0})
      >>> a.value
      5.0
    """
    gathered = Gathered(_all_of(states))
    try:
        new = gathered.split(values)
    except ValueError as error:
        raise StateStructureError(
            "update: the values do not have the structure of the states. Nothing was written.\n"
            + (_difference(gathered, values) or str(error))
        ) from error
    paths = [(path, _state(state)) for path, state in zip(gathered.paths, gathered.states, strict=True)]
    for (path, state), value in zip(paths, new, strict=True):
        state._check(value)
        held = read(state)
        if not state.static and type_of(held) != type_of(value):
            where = jax.tree_util.keystr(path) or "the state"
            raise StateStructureError(
                f"update: the value for {where} does not fit {describe(state)}.\n"
                f"  held  : {show_types(held)}\n"
                f"  given : {show_types(value)}\n"
                "Nothing was written. Assign `.value` directly to change a state's type."
            )
        if any(
            isinstance(leaf, jax.Array) and not isinstance(leaf, Tracer) and leaf.is_deleted()
            for leaf in jax.tree.leaves(value)
        ):
            raise ValueError(
                f"update: the value for {describe(state)} is an array that was deleted: its buffer was donated to a "
                "program, by `donate_states=True` for example. Nothing was written.\n"
                "Copy the values before that: `saved = jax.tree.map(jnp.copy, st.values(states))`."
            )
    for (_, state), value in zip(paths, new, strict=True):
        state.value = value


def _difference(gathered: Gathered, values: Any) -> str:
    """Which paths the values lack, and which they have too many; nothing if it is another container."""
    found = jax.tree_util.tree_flatten_with_path(values, is_leaf=lambda value: not jax.tree.leaves(value))[0]
    ends = set(gathered.paths)
    begins = {path[:i] for path, _ in found for i in range(len(path) + 1)}
    show = lambda paths: [jax.tree_util.keystr(path, simple=True, separator=".") for path in paths]
    missing = [path for path in gathered.paths if path not in begins]
    unexpected = [path for path, _ in found if ends.isdisjoint(path[:i] for i in range(len(path) + 1))]
    part = "To write a part, pass its states: `st.update({path: states[path] for path in values}, values)`."
    return show_unmatched(show(missing), show(unexpected)) + part if missing or unexpected else ""


def _all_of(states: Any) -> Any:
    """All states of an object that is no pytree, or goes by reference, by their paths; anything else as it is."""
    is_object = is_users_class(type(states)) and not isinstance(states, State) and as_state(states) is states
    if is_object and (is_node(states) or jax.tree.leaves(states) == [states]):
        return find_states(states) or states
    return states


def _state(leaf: Any) -> State:
    if not isinstance(leaf, State):
        raise TypeError(
            f"expected a pytree of States, but found a leaf of type {type(leaf).__name__}. "
            "For the states of a model write `st.states(model)`."
        )
    return leaf
