"""Values of states apart from the states: the mapping that travels through JAX, and its keys.

Invariant: nothing here keeps a `State` alive. JAX's caches hold tree definitions for ever, so a tree
definition may hold tokens, which know their state weakly, but never the state itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.export

from .state import State
from .tokens import Token


class Named:
    """In the tree definition of an exported program that was read from a file, any state of this name."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Token):
            return getattr(other.get(), "_name", None) == self.name
        return isinstance(other, Named) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)

    def get(self) -> None:
        """The state is not known."""

    def __repr__(self) -> str:
        return f"<state {self.name!r}>"


@jax.tree_util.register_pytree_with_keys_class
class Values(Mapping["State", Any]):
    """The values of some states: a mapping from `State` to value that is also a pytree.

    Its tree structure is the set of its states and the structure of each value, so it can be an
    argument and a result of any JAX transform. The states are held weakly.

    Args:
      values: a mapping from `State` to value.

    Raises:
      TypeError: a key is no state.

    Example:
      >>> import jax, statetransform as st
      >>> u = st.State(1.0, name="u")
      >>> values = st.Values({u: 2.0})
      >>> jax.tree.map(lambda x: x * 10, values)[u]
      20.0
    """

    __slots__ = ("_children", "_places", "_tokens")
    _tokens: tuple[Token[State], ...]
    _children: tuple[Any, ...]
    _places: dict[Token[State], int] | None  # made at the first look-up: most are only passed on by JAX

    def __init__(self, values: Mapping[State, Any] | None = None) -> None:
        for key in values or ():
            if not isinstance(key, State):
                raise TypeError(f"Values: a key must be a state, but {key!r} is of type {type(key).__name__}")
        pairs = [(state._token, value) for state, value in (values or {}).items()]
        pairs.sort(key=lambda pair: pair[0].serial)
        self._tokens = tuple([token for token, _ in pairs])
        self._children = tuple([value for _, value in pairs])
        self._places = None

    def __getitem__(self, state: State) -> Any:
        if self._places is None:
            self._places = {token: i for i, token in enumerate(self._tokens)}
        token: Any = getattr(state, "_token", None)
        place = self._places.get(token)
        if place is None:
            place = next((i for i, other in enumerate(self._tokens) if other == token), None)  # a `Named`
        if place is None:
            raise KeyError(state)
        return self._children[place]

    def __iter__(self) -> Iterator[State]:
        for token in self._tokens:
            if isinstance(token, Named):
                raise TypeError(
                    "Values: these come from an exported program that was read from a file, which knows the names of "
                    f"its states only: {self!r}. Look each of your states up: `values[state]`."
                )
            state = token.get()
            if state is not None:
                yield state

    def __len__(self) -> int:
        return len(self._tokens)

    def __repr__(self) -> str:
        keys = [token if isinstance(token, Named) else token.get() for token in self._tokens]
        shown = zip(keys, self._children, strict=True)
        return f"Values({{{', '.join(f'{key!r}: {value!r}' for key, value in shown if key is not None)}}})"

    def tree_flatten_with_keys(self) -> tuple[list[tuple[Any, Any]], tuple[Token[State], ...]]:
        """Children are the values, in the order in which the states were made."""
        keys = [jax.tree_util.DictKey(token.get()) for token in self._tokens]
        return list(zip(keys, self._children, strict=True)), self._tokens

    def tree_flatten(self) -> tuple[tuple[Any, ...], tuple[Token[State], ...]]:
        """The same without keys."""
        return self._children, self._tokens

    @classmethod
    def tree_unflatten(cls, aux: tuple[Token[State], ...], children: Any) -> Values:
        """Rebuilds a mapping; `children` may be anything that JAX puts in the place of values."""
        values = object.__new__(cls)
        values._tokens, values._children, values._places = aux, tuple(children), None
        return values


def _to_file(tokens: tuple[Any, ...]) -> bytes:
    """The names of states, for a file with an exported program."""
    names = [token.name if isinstance(token, Named) else getattr(token.get(), "_name", None) for token in tokens]
    if None in names or len(set(names)) < len(names):
        raise ValueError(
            f"an exported program finds its states by their names, which have to be all there and different, but they "
            f"are {names}. Give each state a name of its own: `State(value, name=...)`."
        )
    return json.dumps(names).encode()


jax.export.register_pytree_node_serialization(
    Values,
    serialized_name="statetransform.Values",
    serialize_auxdata=_to_file,
    deserialize_auxdata=lambda data: tuple(map(Named, json.loads(bytes(data)))),
)
