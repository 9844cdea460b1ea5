"""What a function did: its output, the states that it wrote and the states that it made.

The results travel through JAX as a triple of pytrees, `(out, written values, born values)`; an `Outcome`, fixed by the
run, says whose values they are, and has the values of static states, which are no arrays. Nothing else says which
states were written.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from .._states import pytrees
from .._states.frame import Frame, leave
from .._states.state import State
from .arguments import REFERENCE, is_by_reference, reveal

Results = tuple[Any, list[Any], list[Any]]
Site = tuple[str, int]


class Outcome:
    """Whose values the results of one run are.

    Attributes:
      written: the written states, in the order of their values.
      static_written: written static states with their new values; the values are part of the trace.
      sites: where each written state was written, for messages.
      born: the states that the run made and that are still there.
      static_born: the values of static ones among them, by position; the values are part of the trace.
      objects: what the output contains by reference: objects, and states that the run made.
      is_closed: whether no state that the function made is stored anywhere but in the output. Else a later call
        will find it there.
      has_nodes: whether anything in the output stands for an object, or is made where the output goes.
    """

    __slots__ = ("born", "has_nodes", "is_closed", "objects", "sites", "static_born", "static_written", "written")

    def __init__(
        self,
        changed: dict[State, Any],
        sites: dict[State, Site],
        born: dict[State, Any],
        objects: list[Any],
        is_rebuilt: bool,
    ) -> None:
        self.written: list[State] = [state for state in changed if not state._static]
        self.static_written: list[tuple[State, Any]] = [(s, value) for s, value in changed.items() if s._static]
        self.sites: dict[State, Site] = dict(sites)
        self.born: list[State] = list(born)
        self.static_born: dict[int, Any] = {i: value for i, (s, value) in enumerate(born.items()) if s._static}
        self.objects: list[Any] = objects
        self.is_closed: bool = {*map(id, born)}.issubset(map(id, objects))
        self.has_nodes: bool = bool(objects) or is_rebuilt

    def finish(self, out: Any, written: Sequence[Any] | None, born: Sequence[Any]) -> Any:
        """Leaves the states to whoever is outside, without writes for None, and returns the output."""
        pairs = [] if written is None else [*zip(self.written, written, strict=True), *self.static_written]
        leave(pairs, zip(self.born, with_static(born, self.static_born), strict=True), self.sites)
        return reveal(out, self.objects) if self.has_nodes else out


def with_static(born: Sequence[Any], static: Mapping[int, Any]) -> list[Any]:
    """The values of the states made, with those of static ones, which do not travel, in their places."""
    return [static.get(i, value) for i, value in enumerate(born)]


#: Code whose functions keep the states that they make: to look for garbage once more would be in vain.
_keeps_states: weakref.WeakSet[Any] = weakref.WeakSet()


def pack(frame: Frame, out: Any, code: Any = None) -> tuple[Results, Outcome]:
    """The results of a function that has run in a frame, as arrays, and their outcome.

    The caller must not hold `out` or the function's arguments: what nobody else holds was temporary.

    Args:
      frame: the frame.
      out: the output.
      code: that of the function, if it was traced. A trace that makes states which are stored somewhere serves one
        call only, so it is worth a collection to see that they were temporary; a function that runs at once just
        gives their values, too.
    """
    leaves, treedef = pytrees.flatten(out)
    del out
    changed, survivors = frame.written(), dict(frame.born)  # those born that somebody still holds
    places = {id(state) for state in survivors}
    is_unaccounted = len(survivors) > len([leaf for leaf in leaves if id(leaf) in places])
    if is_unaccounted and code is not None and code not in _keeps_states:
        # What is stored nowhere but in a temporary object that refers to itself is not there any more.
        n = len(survivors)
        del survivors
        gc.collect()
        survivors = dict(frame.born)
        if len(survivors) == n:
            _keeps_states.add(code)
    objects: list[Any] = []
    is_rebuilt = False  # whether the output has pytrees in it that are to be made where it goes
    for i, leaf in enumerate(leaves):
        if isinstance(leaf, jax.Array):
            continue
        if is_by_reference(leaf):
            objects.append(leaf)
            leaves[i] = REFERENCE
        else:
            is_rebuilt = is_rebuilt or not jax.tree_util.all_leaves([leaf])
    outcome = Outcome(changed, frame.sites, survivors, objects, is_rebuilt)
    written = [value for state, value in changed.items() if not state._static]
    born = [None if state._static else value for state, value in survivors.items()]
    return (treedef.unflatten(leaves), written, born), outcome
