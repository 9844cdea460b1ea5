"""Whether the objects of a call have the structure that a trace was made for, and which states these are.

A `Structure` is what a `Recorder` has noted, ready to be compared: the edges are followed from the roots of a call, one
after the other, and each condition is checked. The first one that does not hold says that the structure is another,
and which edge it is. For the compiled calls of `jit` the walk is written down as Python source, see `generated`.
"""

from __future__ import annotations

import gc
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from .._objects.hooks import listening, not_recorded
from .._objects.plain import MISSING, identity
from .._states.state import State
from .conditions import Absence, Is, Same, StateOf, brief
from .edges import Edge, compare, show_path
from .steps import ClassOf, Global

_UNIQUE = (types.FunctionType, types.ModuleType, type, tuple, frozenset)  # identity of these is not looked at


class Mismatch(Exception):
    """The structure is another: the edge that does not hold, and what stands there now."""

    def __init__(self, edge: Edge, now: Any, is_alias: bool = False) -> None:
        super().__init__()
        self.edge, self.now, self.is_alias = edge, now, is_alias

    def explained(self, edges: Sequence[Edge], root_names: Sequence[str]) -> tuple[str, str, str]:
        """For messages: the way to what differs, as the user would write it, and what was and is there."""
        now = self.now if isinstance(self.now, str) and self.is_alias else brief(self.now)
        return show_path(edges, self.edge, root_names), self.edge.condition.said, now


class Structure:
    """The structure of the objects that a function gets, as one trace has seen it.

    Args:
      edges: as in `Recorder`.
      states: the registers of the states in use, in the order in which `match` gives them.
      objects: by register; looked at for their classes only.

    Attributes:
      by_identity: the edges to what must be the very same object.
      distinct: groups of registers that must hold different objects.
    """

    def __init__(self, edges: Sequence[Edge], states: Sequence[int], objects: Sequence[Any]) -> None:
        self.edges: tuple[Edge, ...] = tuple(edges)
        self.states: tuple[int, ...] = tuple(states)
        self.by_identity: tuple[Edge, ...] = tuple([edge for edge in self.edges if isinstance(edge.condition, Is)])
        self.size: int = len(objects)
        self.distinct: tuple[tuple[int, ...], ...] = tuple(_distinct(self.edges, objects))

    def match(self, roots: Sequence[Any]) -> list[State] | None:
        """The states in use as this call finds them; None when the structure is another.

        A trace within which this one is found depends on what this one depends on.
        """
        try:
            found = self.registers_at(roots)
        except Mismatch:
            return None
        for listener in listening.listeners:
            listener.replays(self, found)
        return [found[i] for i in self.states]

    def registers_at(self, roots: Sequence[Any]) -> list[Any]:
        """All objects by register.

        Raises:
          Mismatch: the structure is another.
        """
        found: list[Any] = [None] * self.size
        edge, x = self.edges[0], None
        try:
            with not_recorded():
                for edge in self.edges:
                    place, step, condition, register = edge
                    parent, x = roots if place < 0 else found[place], MISSING
                    if isinstance(condition, Absence):
                        if not condition.holds_at(parent, step):
                            x = step.take(parent)
                            raise Mismatch(edge, x)
                        continue
                    x = step.take(parent)
                    if not condition.holds(x, found):
                        raise Mismatch(edge, x)
                    if register >= 0:
                        found[register] = x
        except Mismatch:
            raise
        except Exception as error:  # whatever fails on the way, in user code too, says the same
            raise Mismatch(edge, x) from error
        for group in self.distinct:
            if len({identity(found[i]) for i in group}) != len(group):
                firsts = {identity(found[i]): i for i in reversed(group)}
                alias = next(i for i in group if firsts[identity(found[i])] != i)
                edge = next(edge for edge in self.edges if edge.register == alias)
                raise Mismatch(edge, "the same object as another", is_alias=True)
        return found

    def registers_of(self, is_kind: Callable[[Any], bool]) -> set[int]:
        """The registers of states whose class is of a kind."""
        states = [edge for edge in self.edges if isinstance(edge.condition, StateOf)]
        kinds = [(edge.register, edge.condition.reference()) for edge in states]
        return {register for register, kind in kinds if kind is not None and is_kind(kind)}

    def forget_in_raw(self, roots: Sequence[Any]) -> None:
        """Has JAX trace the raw jitted functions again for which an edge has changed: it has the old values."""
        found: dict[int, Any] = {-1: roots}
        raw_above: dict[int, Any] = {}  # by register
        raw = {edge.register for edge in self.by_identity}
        for edge in self.edges:
            parent = edge.parent
            if parent not in found:
                continue
            is_wrapped = getattr(edge.step, "name", None) == "__wrapped__"
            jitted = found[parent] if is_wrapped and parent in raw else raw_above.get(parent)
            is_same, x = compare(edge, found[parent], found)
            if edge.register >= 0 and is_same:
                found[edge.register], raw_above[edge.register] = x, jitted
            if jitted is not None and not is_same and hasattr(jitted, "clear_cache"):
                jitted.clear_cache()

    def arrays(self) -> dict[int, weakref.ref[Any]]:
        """The arrays that must be the very same ones, by identity."""
        references = [edge.condition.reference for edge in self.by_identity]
        weak = [found for found in references if isinstance(found, weakref.ref)]
        return {id(found()): found for found in weak if isinstance(found(), jax.Array)}

    def owners_of_arrays(self, roots: Sequence[Any]) -> list[Any]:
        """The objects to which the arrays belong that count by identity; for a global name there is none.

        Likewise those to which an object belongs that cannot be held weakly, such as an iterator over other objects.
        And the functions that count by identity: the trace is for these very functions.
        """
        by_register = {edge.register: edge for edge in self.edges if edge.register >= 0}
        arrays = [edge for edge in self.by_identity if _holds_much(edge.condition.reference)]
        functions = [fun for e in self.by_identity if isinstance(fun := e.condition.reference(), types.FunctionType)]
        owners: list[Any] = [*functions]
        found = self.registers_at(roots) if arrays else []
        for edge in arrays:
            while edge.parent >= 0 and not isinstance(edge.step, Global | ClassOf):
                owner = found[edge.parent]
                if type(owner).__weakrefoffset__ or isinstance(owner, types.FunctionType):
                    owners.append(owner)
                    break
                edge = by_register[edge.parent]
        return owners

    def is_equal(self, other: Structure) -> bool:
        """Whether another structure, that fits the same objects, looks at the same of them.

        What the conditions compare with is then equal, too.
        """
        alias = lambda edge: edge.condition.register if isinstance(edge.condition, Same) else edge.register
        looked_at = lambda edge: (edge.parent, edge.step, type(edge.condition), alias(edge))
        return self.states == other.states and [*map(looked_at, self.edges)] == [*map(looked_at, other.edges)]


def _distinct(edges: Sequence[Edge], objects: Sequence[Any]) -> Iterator[tuple[int, ...]]:
    """Groups of registers that must hold different objects.

    States must. So must all objects of one class, unless each is told apart by a state first found below it.
    """
    owner = {edge.register: edge for edge in edges if edge.register >= 0}
    states = [edge.register for edge in edges if isinstance(edge.condition, StateOf)]
    if len(states) > 1:
        yield tuple(states)
    told_apart: set[int] = set()
    for register in states:
        edge = owner[register]
        while edge.parent >= 0 and edge.step.is_own and edge.parent not in told_apart:
            told_apart.add(edge.parent)
            edge = owner[edge.parent]
    groups: dict[type, list[int]] = {}
    for edge in edges:
        if edge.register >= 0 and not edge.condition.is_unique:
            kind = type(objects[edge.register])
            if kind not in _UNIQUE:
                groups.setdefault(kind, []).append(edge.register)
    for group in groups.values():
        if len(group) > 1 and not told_apart.issuperset(group):
            yield tuple(group)


def _holds_much(reference: Callable[[], Any]) -> bool:
    """Whether what an edge says of identity keeps more alive than itself."""
    obj = reference()
    return isinstance(obj, jax.Array | np.ndarray) or (not isinstance(reference, weakref.ref) and gc.is_tracked(obj))
