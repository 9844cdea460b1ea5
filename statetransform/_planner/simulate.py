"""The one judge of plans: how many bytes are alive at each step of a sequence of nodes.

A plan is a sequence of nodes in the order in which they run, in which a node may stand more than once. A value is alive
from the run that computes it to its last use before it is computed again.
"""

from __future__ import annotations

import bisect
from collections.abc import Collection, Iterable, Sequence

import numpy as np

from .graph import Graph, Node


class InvalidPlanError(ValueError):
    """A sequence uses a value before it is computed, or does not compute what it should."""


def lifetimes(
    graph: Graph, sequence: Sequence[int], start: Collection[int] = (), end: Collection[int] = ()
) -> list[tuple[int, int, int]]:
    """Value, first and last step of each life; those that are alive at the start begin at step -1.

    Args:
      graph: the graph.
      sequence: nodes.
      start: values that are there before the first step.
      end: values that have to be there after the last one.

    Raises:
      InvalidPlanError: a value is used that is not there.
    """
    n, nodes = len(sequence), graph.nodes
    last: dict[int, int] = dict.fromkeys(end, n - 1)
    found: list[tuple[int, int, int]] = []
    for t in range(n - 1, -1, -1):
        node = nodes[sequence[t]]
        found += [(value, t, last.pop(value, t)) for value in node.outputs]
        for value in node.inputs:
            if value not in last:
                last[value] = t
    missing = set(last).difference(start)
    if missing:
        raise InvalidPlanError(f"values {sorted(missing)[:5]} are used before they are computed")
    found += [(value, -1, t) for value, t in last.items()]
    return found


def profile(
    graph: Graph,
    sequence: Sequence[int],
    start: Collection[int] = (),
    end: Collection[int] = (),
    uncounted: Collection[int] = (),
) -> np.ndarray:
    """Bytes alive at each step, without those of the uncounted values."""
    n, sizes, nodes = len(sequence), graph.sizes, graph.nodes
    change = [0] * (n + 1)
    dying: dict[int, set[int]] = {}
    lives = [life for life in lifetimes(graph, sequence, start, end) if sizes[life[0]]]
    guests = _guests(graph, sequence, lives) if graph.buffers and not (start or end) else frozenset()
    for value, first, final in lives:
        if value in uncounted or (value, first) in guests:
            continue
        change[max(first, 0)] += sizes[value]
        change[final + 1] -= sizes[value]
        if n and nodes[sequence[final]].inplace:
            dying.setdefault(final, set()).add(value)
    live = np.cumsum(np.array(change[:n], np.int64))
    for t, i in enumerate(sequence):
        node = nodes[i]
        if node.scratch:
            live[t] += node.scratch
        if node.inplace and t in dying:
            outputs = [v for v in node.inplace if (v, t) not in guests]
            live[t] -= reused(graph, node, dying[t], outputs)
    return live


def _guests(graph: Graph, sequence: Sequence[int], lives: list[tuple[int, int, int]]) -> frozenset[tuple[int, int]]:
    """The lives that are spent in the memory of results and gradients before these are computed.

    As compilers do it: the largest values first, each in the smallest buffer that is free all its life.
    """
    n, sizes = len(sequence), graph.sizes
    begins: dict[int, int] = {}
    for t in range(n - 1, -1, -1):
        begins[sequence[t]] = t
    ordered = sorted((size, begins.get(graph.producer[v], 0)) for v, size in graph.buffers)
    # One bit for each step at which a buffer is taken.
    taken = [((1 << n) - 1) >> begin << begin for _, begin in ordered]
    room = [size for size, _ in ordered]
    found = set()
    least = room[-1] // 64 if room else 0
    large = [life for life in lives if sizes[life[0]] > least]
    for value, first, final in sorted(large, key=lambda life: (-sizes[life[0]], life[1])):
        size = sizes[value]
        steps = ((1 << (final - first + 1)) - 1) << max(first, 0)
        for k in range(bisect.bisect_left(room, size), len(room)):
            if not taken[k] & steps:
                taken[k] |= steps
                found.add((value, first))
                break
    return frozenset(found)


def reused(graph: Graph, node: Node, dying: Collection[int], outputs: Collection[int] | None = None) -> int:
    """Bytes of the inputs that die here whose buffers the outputs take: each output takes one that is not larger."""
    sizes = graph.sizes
    wanted = node.inplace if outputs is None else outputs
    if len(wanted) == 1:
        (output,) = wanted
        return max((sizes[v] for v in node.inputs if v in dying and sizes[v] <= sizes[output]), default=0)
    given = sorted((sizes[v] for v in node.inputs if v in dying), reverse=True)
    total = 0
    for size in sorted((sizes[v] for v in wanted), reverse=True):
        fitting = next((k for k, other in enumerate(given) if other <= size), None)
        if fitting is not None:
            total += given.pop(fitting)
    return total


def peak(graph: Graph, sequence: Sequence[int], start: Collection[int] = (), end: Collection[int] = ()) -> int:
    """The most bytes that are alive at once."""
    return int(profile(graph, sequence, start, end).max(initial=0))


def pruned(graph: Graph, sequence: Sequence[int]) -> list[int]:
    """The sequence without the runs that nothing needs; values computed while they are still there are computed once.

    The results and gradients count as needed, each at its first run.
    """
    held: set[int] = set()
    once = []
    for i in sequence:
        # What is held for nothing is not computed again.
        if graph.free.intersection(graph.nodes[i].outputs) and i in held:
            wanted = [v for v in graph.nodes[i].outputs if v not in graph.free]
            if not wanted:
                continue
        held.add(i)
        once.append(i)
    needed, first, kept = set(), {}, []
    for t, i in enumerate(once):
        first.setdefault(i, t)
    for t in range(len(once) - 1, -1, -1):
        i = once[t]
        node = graph.nodes[i]
        demanded = not needed.isdisjoint(node.outputs)
        is_result = first[i] == t and (i in graph.pinned or not graph.free.isdisjoint(node.outputs))
        if demanded or is_result:
            kept.append(i)
            needed.difference_update(node.outputs)
            needed.update(node.inputs)
    return kept[::-1]


def check(graph: Graph, sequence: Sequence[int]) -> None:
    """Raises unless the sequence computes all results before the first backward node, and all gradients.

    Raises:
      InvalidPlanError: the sequence is no plan.
    """
    lifetimes(graph, sequence)
    computed: set[int] = set()
    for i in sequence:
        if graph.nodes[i].is_backward and not graph.results <= computed:
            raise InvalidPlanError("a backward node runs before the forward pass is complete")
        computed.update(graph.nodes[i].outputs)
    if not graph.results | graph.gradients <= computed:
        raise InvalidPlanError("not all results and gradients are computed")
    counts: dict[int, int] = {}
    for i in sequence:
        counts[i] = counts.get(i, 0) + 1
    if any(counts.get(i, 0) != 1 for i in graph.pinned):
        raise InvalidPlanError("an effect happens more than once, or not at all")


def split_of(graph: Graph, sequence: Sequence[int]) -> int:
    """The number of leading runs that belong to the forward pass: up to the one that completes the results."""
    missing = set(graph.results)
    last = 0
    for t, i in enumerate(sequence):
        if graph.nodes[i].is_backward:
            break
        if not missing.isdisjoint(graph.nodes[i].outputs) or i in graph.pinned:
            missing.difference_update(graph.nodes[i].outputs)
            last = t + 1
    return last


def closure(
    graph: Graph, wanted: Iterable[int], held: Collection[int], among: Collection[int] | None = None
) -> list[int]:
    """The forward nodes to run, in order, to have some values when others are held."""
    producer, nodes = graph.producer, graph.nodes
    found: set[int] = set()
    stack = [v for v in wanted if v not in held]
    seen = set(stack)
    while stack:
        i = producer[stack.pop()]
        if i in found or (among is not None and i not in among):
            continue
        found.add(i)
        for value in nodes[i].inputs:
            if value not in held and value not in seen:
                seen.add(value)
                stack.append(value)
    return sorted(found)
