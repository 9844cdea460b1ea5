"""Finds equal objects below one, such as the layers of a model: the walk over them is written as a loop.

Objects are equal here if a trace looks at the same attributes, items and classes of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from ..._objects.plain import identity
from .edges import Edge

_OBJECTS = 8  # from here on a loop pays
_EDGES = 10_000  # of all objects together: they take half a second to compile, and fewer run faster without a loop


def kinds_of(edges: Sequence[Edge]) -> dict[int, int]:
    """For each object, by register, a number that equal objects share.

    Plain values may differ, and so may the keys under which the objects are.
    """
    shared = {edge.argument for edge in edges if edge.what == "same"}  # each has to have a name of its own
    below: dict[int, list[Any]] = defaultdict(list)
    numbers: dict[Any, int] = {}
    found: dict[int, int] = {}
    for edge in reversed(edges):
        about = edge.register if edge.register in shared else _about(edge)
        looked_at = (edge.what, about, *below.pop(edge.register, ())) if edge.register >= 0 else (edge.what, about)
        number = numbers.setdefault(looked_at, len(numbers))
        if edge.register >= 0:
            found[edge.register] = number
        key = edge.key if type(edge.key) is str or type(edge.key) is int else identity(edge.key)
        below[edge.parent].append((edge.how, key, number))
    return found


def _about(edge: Edge) -> Any:
    """What the condition of an edge compares with, if it has to be the same in all objects."""
    argument = edge.argument
    if edge.what == "plain":
        return None
    if edge.what == "sequence" or edge.what == "state":
        return identity(argument[0]), argument[1]
    if edge.what == "mapping" and all(type(key) is str for key in argument[1]):
        return identity(argument[0]), *argument[1]
    return argument if edge.what == "same" else None if argument is None else identity(argument)


def repeated(edges: Sequence[Edge], kinds: dict[int, int]) -> list[list[list[int]]]:
    """The loops: for each the objects, and of each object the places of the edge to it and of the edges below it.

    Args:
      edges: those to look at.
      kinds: as in `kinds_of`.
    """
    alike: dict[Any, list[int]] = defaultdict(list)
    for place, edge in enumerate(edges):
        if edge.how in ("attr", "item", "dict") and type(edge.key) in (str, int) and edge.register in kinds:
            alike[edge.parent, edge.how, kinds[edge.register]].append(place)
    group_of = {place: group for group, places in alike.items() if len(places) >= _OBJECTS for place in places}
    owner: dict[int, int] = {}  # by register: the place of the edge to the object of a loop that it is below
    members: dict[int, list[int]] = {}
    for place, edge in enumerate(edges):
        head = owner.get(edge.parent, place if place in group_of else None)
        if head is not None:
            members.setdefault(head, []).append(place)
            if edge.register >= 0:
                owner[edge.register] = head
    loops: dict[Any, list[list[int]]] = defaultdict(list)
    for head, places in members.items():
        loops[group_of[head]].append(places)
    return [loop for loop in loops.values() if len(loop[0]) > 1 and len(loop) * len(loop[0]) >= _EDGES]
