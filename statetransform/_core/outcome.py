"""What a function did: its output, the states that it wrote and the states that it made.

The results travel through JAX as a triple of pytrees, `(out, written values, born values)`; a `Layout`,
fixed by the trace, says whose values they are. Nothing else says which states were written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from .arguments import Ref, hide
from .frame import Frame, leave
from .state import State
from .values import Token

Results = tuple[Any, list[Any], list[Any]]


@jax.tree_util.register_static
class Birth:
    """In an output, the place of the i-th state that the call itself made."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Birth) and self.index == other.index

    def __hash__(self) -> int:
        return hash((Birth, self.index))


class Layout:
    """Whose values the results of one trace are.

    Attributes:
      written: tokens of the written states, in the order of their values.
      static_written: tokens and new values of written static states; the values are part of the trace.
      sites: where each written state was written, for messages.
      is_reusable: whether a later call may use the trace again. Not so when a state that the function
        made is stored somewhere else than in the output: next time the function will find it there.
      is_plain: whether nothing but ordinary values of written states comes out.
    """

    __slots__ = (
        "_blanks",
        "_first",
        "_kept",
        "is_plain",
        "is_reusable",
        "sites",
        "static_written",
        "written",
    )

    def __init__(self, frame: Frame, born: list[State], has_nodes: bool, is_reusable: bool) -> None:
        changed = frame.written()
        self.written: tuple[Token[State], ...] = tuple(state._token for state in changed if not state._static)
        self.static_written: tuple[tuple[Token[State], Any], ...] = tuple(
            (s._token, value) for s, value in changed.items() if s._static
        )
        self.sites: dict[Token[State], tuple[str, int]] = {state._token: site for state, site in frame.sites.items()}
        self.is_reusable: bool = is_reusable
        self.is_plain: bool = not (born or self.static_written or has_nodes)
        self._first: list[State] | None = born
        self._blanks = [state._blank() for state in born]
        self._kept: Any = None

    @property
    def created(self) -> list[State]:
        """The states that the trace made, or such as they were."""
        return list(self._first or self._blanks)

    def finish(self, out: Any, written: Sequence[Any], born: Sequence[Any]) -> Any:
        """Leaves the states to whoever is outside and returns the output; once for each call."""
        births, self._first = self._first, None
        if births is None:
            births = [blank._blank() for blank in self._blanks]
        pairs = [*zip(self.written, written, strict=True), *self.static_written]
        alive = [(state, value) for token, value in pairs if (state := token.get()) is not None]
        leave(alive, zip(births, born, strict=True), {s: self.sites[s._token] for s, _ in alive})
        if not self.is_plain:
            out = jax.tree.map(lambda node: _reveal(node, births), out, is_leaf=_is_node)
        self._kept = None
        return out


def pack(frame: Frame, out: Any) -> tuple[Results, Layout]:
    """The results of a function that has run in a frame, as arrays, and their layout."""
    changed, survivors = frame.written(), frame.survivors()
    born = list(survivors)
    index = {id(state): i for i, state in enumerate(born)}
    leaves, treedef = jax.tree.flatten(out)
    nodes = hide([Birth(index[id(leaf)]) if id(leaf) in index else leaf for leaf in leaves])
    objects = [leaf for leaf, node in zip(leaves, nodes, strict=True) if _is_node(node)]
    in_out = {id(leaf) for leaf in objects}
    layout = Layout(frame, born, bool(objects), in_out.issuperset(index))
    # An object that holds states is referred to weakly; until `finish` has put it back, keep it here.
    layout._kept = objects
    written = [value for state, value in changed.items() if not state._static]
    return (treedef.unflatten(nodes), written, list(survivors.values())), layout


def _is_node(node: Any) -> bool:
    return isinstance(node, Ref | Birth)


def _reveal(node: Any, births: list[State]) -> Any:
    if isinstance(node, Birth):
        return births[node.index]
    return node.value if isinstance(node, Ref) else node
