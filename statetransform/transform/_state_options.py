"""Options that say something of states: `state_axes`, `state_specs`, `state_shardings`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .._state import adapters
from .._state.errors import describe
from .._state.find import selects
from .._state.sites import warn
from .._state.state import State
from .._trace.arguments import name_of


class ByState:
    """A mapping from states, kinds and predicates to what is said of these states.

    Args:
      given: the mapping.
      nothing: the entry that asks for nothing.

    Attributes:
      states: the states that it names, with what it says of them.
      kinds: predicates, with what it says of the states that they select.
    """

    def __init__(self, given: Mapping[Any, Any], nothing: Any = None) -> None:
        entries = [(adapters.handle(key), entry) for key, entry in given.items()]
        self._wanted = [key for key, entry in entries if not isinstance(key, State) and entry != nothing]
        self.states = {key: entry for key, entry in entries if isinstance(key, State)}
        self.kinds = [(selects(key), entry) for key, entry in entries if not isinstance(key, State)]

    def of(self, state: State, default: Any = None) -> Any:
        """What is said of a state: by its name, or else by the first kind that it is of."""
        if state in self.states:
            return self.states[state]
        return next((entry for is_kind, entry in self.kinds if is_kind(state)), default)

    def warn_unmatched(self, option: str, fun: Any, used: Iterable[State]) -> None:
        """Says which kinds and predicates select none of the states that a function uses."""
        used = list(dict.fromkeys(used))
        for key in self._wanted:
            if not any(map(selects(key), used)):
                there = f"It uses {', '.join(map(describe, used))}" if used else "It uses no state"
                shown = getattr(key, "__name__", None) or repr(key)
                text = f"{option} lists {shown}, but {name_of(fun)} uses no state of this kind. {there}."
                warn(text, UserWarning)


def checked(
    where: str, option: str, says: str, example: str, given: Any, check: Callable[[Any, Any], Any]
) -> dict[Any, Any]:
    """Such a mapping as a dict, each entry checked; empty for None.

    Args:
      where: the transform's name.
      option: the name of the option.
      says: what an entry says of a state, for messages.
      example: an entry as one writes it, for messages.
      given: the mapping.
      check: takes a key and its entry, gives the entry, and raises if the entry is of another kind.
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise TypeError(
            f"{where}: `{option}` says for each state, kind or predicate {says}, `{option}={{u: {example}}}`; "
            f"it cannot be {given!r} of type {type(given).__name__}"
        )
    return {key: check(key, entry) for key, entry in given.items()}
