"""The fewest bytes that separate values from others: by the largest flow that can pass between them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from .graph import Graph

Capacities = Sequence[int] | Mapping[int, int]


def smallest_cut(
    graph: Graph, starts: Sequence[int], sinks: Collection[int], inside: Collection[int], sizes: Capacities
) -> int:
    """The size of the smallest set of values on all ways from some values to others.

    Args:
      graph: the graph.
      starts, sinks: from where to where.
      inside: the values that the ways go through, and among which the set is.
      sizes: of each value.
    """
    users: dict[int, list[int]] = {}
    for v in inside:
        for u in graph.nodes[graph.producer[v]].inputs:
            if u in inside:
                users.setdefault(u, []).append(v)
    passed = dict.fromkeys(inside, 0)  # of the capacity of each value
    between: dict[tuple[int, int], int] = {}
    total = 0
    begin = [v for v in starts if v in inside]
    while (way := _augmenting(begin, sinks, users, sizes, passed, between)) is not None:
        total += way
    return total


def _augmenting(
    starts: list[int],
    sinks: Collection[int],
    users: dict[int, list[int]],
    sizes: Capacities,
    passed: dict[int, int],
    between: dict[tuple[int, int], int],
) -> int | None:
    """One step of the search for the largest flow from values to values, each of which lets through its bytes."""
    # Each value is a pair: where flow enters, and where it leaves.
    came: dict[tuple[int, bool], tuple[tuple[int, bool] | None, int]] = {}
    stack: list[tuple[int, bool]] = []
    reverse: dict[int, list[int]] = {}
    for (u, v), flow in between.items():
        if flow:
            reverse.setdefault(v, []).append(u)

    def reach(state: tuple[int, bool], of: tuple[int, bool] | None, room: int) -> None:
        if room > 0 and state not in came:
            came[state] = of, room
            stack.append(state)

    for v in starts:
        reach((v, False), None, 1 << 62)
    while stack:
        state = stack.pop()
        v, leaves = state
        room = came[state][1]
        if not leaves:
            reach((v, True), state, min(room, sizes[v] - passed[v]))
            for u in reverse.get(v, ()):
                reach((u, True), state, min(room, between[u, v]))
            continue
        if v in sinks:
            return _push(came, state, room, passed, between)
        for w in users.get(v, ()):
            reach((w, False), state, room)
        reach((v, False), state, min(room, passed[v]))
    return None


def _push(came: dict, state: tuple[int, bool], room: int, passed: dict[int, int], between: dict) -> int:
    while (of := came[state][0]) is not None:
        (v, leaves), (u, left) = state, of
        if u == v:
            passed[v] += room if leaves else -room
        elif left:
            between[u, v] = between.get((u, v), 0) + room
        else:
            between[v, u] -= room
        state = of
    return room
