"""The one judge of plans: how many bytes are alive at each step of a sequence of nodes.

A plan is a sequence of nodes in the order in which they run, in which a node may stand more than once. A value is alive
from the run that computes it to its last use before it is computed again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np

from .graph import Graph, Node
from .liveness import InvalidPlanError, Lives


def lifetimes(graph: Graph, sequence: Sequence[int]) -> list[tuple[int, int, int]]:
    """Value, first and last step of each life."""
    lives = Lives(graph, sequence)
    return list(zip(lives.values.tolist(), lives.firsts.tolist(), lives.lasts.tolist(), strict=True))


def profile(graph: Graph, sequence: Sequence[int]) -> np.ndarray:
    """Bytes alive at each step."""
    return bytes_alive(Lives(graph, sequence))


def bytes_alive(lives: Lives) -> np.ndarray:
    """Bytes alive at each step."""
    graph, n, steps = lives.graph, lives.length, lives.steps
    sizes = graph.bytes[lives.values]
    counts = sizes > 0
    guests: frozenset[tuple[int, int]] = frozenset()
    inside = graph.scratch[steps]
    if graph.buffers:
        found, rooms = _guests(lives, sizes)
        for t in np.flatnonzero(graph.pieces[steps]).tolist():
            piece = int(graph.pieces[steps[t]])
            inside[t] -= min(sum(size // piece * piece for size, taken in rooms if not taken >> t & 1), inside[t])
        counts[found] = False
        guests = frozenset(zip(lives.values[found].tolist(), lives.firsts[found].tolist(), strict=True))
    lives.is_counted = counts
    sizes, firsts, lasts = sizes[counts], lives.firsts[counts], lives.lasts[counts]
    if graph.early:
        firsts = np.where(graph.is_early[lives.values[counts]], 0, firsts)
    change = np.zeros(n + 1, np.int64)
    np.add.at(change, firsts, sizes)
    np.subtract.at(change, lasts + 1, sizes)
    live = np.cumsum(change[:n]) + inside
    if n:
        dies = lives.is_used[counts] & (graph.taking[steps[lasts]] != -1) & ~graph.is_fixed[lives.values[counts]]
        _take(lives, live, sizes[dies], lives.values[counts][dies], lasts[dies], guests)
    return live


def _take(
    lives: Lives,
    live: np.ndarray,
    sizes: np.ndarray,
    values: np.ndarray,
    lasts: np.ndarray,
    guests: frozenset[tuple[int, int]],
) -> None:
    """Takes from the bytes alive those of values that die where an output takes their buffers."""
    graph, steps = lives.graph, lives.steps
    outputs = graph.taking[steps[lasts]]
    single = (outputs >= 0) & (sizes <= graph.bytes[outputs])
    most = np.zeros(len(live), np.int64)
    np.maximum.at(most, lasts[single], sizes[single])
    for t in np.flatnonzero(most).tolist() if guests else ():
        if (int(graph.taking[steps[t]]), t) in guests:
            most[t] = 0
    live -= most
    several = outputs == -2
    dying: dict[int, set[int]] = {}
    for value, t in zip(values[several].tolist(), lasts[several].tolist(), strict=True):
        dying.setdefault(t, set()).add(value)
    for t, some in dying.items():
        node = graph.nodes[int(steps[t])]
        live[t] -= _reused(graph, node, some, [v for v in node.inplace if (v, t) not in guests])


def _guests(lives: Lives, sizes: np.ndarray) -> tuple[np.ndarray, list[tuple[int, int]]]:
    """The lives that are spent in the memory of results and gradients before these are computed.

    Besides, bytes of the memory of each, and when it is taken, as bits. As compilers do it: the largest values first,
    each in the smallest buffer that is free all its life.
    """
    graph, n = lives.graph, lives.length
    begins = np.full(len(graph.nodes), -1)
    begins[lives.steps[::-1]] = np.arange(n - 1, -1, -1)
    room, makers, late = graph.rooms
    # What dies where a result is computed in place may be there up to then, and including that step.
    begin = np.where(begins[makers] < 0, 0, begins[makers] + late)
    ordered = np.lexsort((begin, room))
    room, begin = room[ordered], begin[ordered]
    lowest = np.searchsorted(room, sizes)
    # Up to which step one of the buffers that are large enough is free.
    latest = np.append(np.maximum.accumulate(begin[::-1])[::-1], 0)
    fitting = np.flatnonzero((sizes > room[-1] // 64) & (lives.lasts < latest[lowest]))
    fitting = fitting[np.lexsort((lives.values[fitting], lives.firsts[fitting], -sizes[fitting]))]
    firsts, lasts = lives.firsts[fitting], lives.lasts[fitting]
    # Of the smallest buffers that are large enough, those that are there long enough come last.
    start = np.searchsorted(room * (n + 2) + begin, room[lowest[fitting]] * (n + 2) + lasts, "right")
    # One bit for each step at which a buffer is taken.
    taken = [((1 << n) - 1) >> at << at for at in begin.tolist()]
    found, which = [], range(len(taken))
    rows = zip(fitting.tolist(), start.tolist(), firsts.tolist(), (lasts + 1).tolist(), strict=True)
    for life, low, first, end in rows:
        steps = (1 << end) - (1 << first)
        for k in which[low:]:
            if not taken[k] & steps:
                taken[k] |= steps
                found.append(life)
                break
    return np.array(found, np.int64), list(zip(room.tolist(), taken, strict=True))


def _reused(graph: Graph, node: Node, dying: Collection[int], outputs: Collection[int]) -> int:
    """Bytes of the inputs that die here whose buffers the outputs take: each output takes one that is not larger."""
    sizes = graph.sizes
    given = sorted((sizes[v] for v in node.inputs if v in dying), reverse=True)
    total = 0
    for size in sorted((sizes[v] for v in outputs), reverse=True):
        fitting = next((k for k, other in enumerate(given) if other <= size), None)
        if fitting is not None:
            total += given.pop(fitting)
    return total


def peak(graph: Graph, sequence: Sequence[int]) -> int:
    """The most bytes that are alive at once."""
    return int(profile(graph, sequence).max(initial=0))


def pruned(graph: Graph, sequence: Sequence[int]) -> list[int]:
    """The sequence without the runs that nothing needs; values computed while they are still there are computed once.

    The results and gradients count as needed, each at its first run.
    """
    inputs, outputs, is_free = graph.inputs.lists, graph.outputs.lists, graph.is_free
    first: dict[int, int] = {}
    once: list[int] = []
    for i in sequence:
        if i not in first:
            first[i] = len(once)
        elif is_free[i] == 2:
            continue  # what is held for nothing is not computed again
        once.append(i)
    needed, kept = set[int](), []
    for t in range(len(once) - 1, -1, -1):
        i = once[t]
        if not needed.isdisjoint(outputs[i]) or (is_free[i] and first[i] == t):
            kept.append(i)
            needed.difference_update(outputs[i])
            needed.update(inputs[i])
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


def closure(graph: Graph, wanted: Iterable[int], held: Collection[int]) -> list[int]:
    """The forward nodes to run, in order, to have some values when others are held."""
    producer, nodes = graph.producer, graph.nodes
    found: set[int] = set()
    stack = [v for v in wanted if v not in held]
    seen = set(stack)
    while stack:
        i = producer[stack.pop()]
        if i in found:
            continue
        found.add(i)
        for value in nodes[i].inputs:
            if value not in held and value not in seen:
                seen.add(value)
                stack.append(value)
    return sorted(found)
