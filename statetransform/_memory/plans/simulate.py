"""The one judge of plans: how many bytes are alive at each step of a sequence of nodes.

A plan is a sequence of nodes in the order in which they run, in which a node may stand more than once. A value is alive
from the run that computes it to its last use before it is computed again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np

from .graph import Graph
from .liveness import InvalidPlanError, Lives


def lifetimes(graph: Graph, sequence: Sequence[int]) -> list[tuple[int, int, int]]:
    """Value, first and last step of each life."""
    lives = Lives(graph, sequence)
    return list(zip(lives.values.tolist(), lives.firsts.tolist(), lives.lasts.tolist(), strict=True))


def profile(graph: Graph, sequence: Sequence[int]) -> np.ndarray:
    """Bytes alive at each step."""
    return bytes_alive(Lives(graph, sequence))


def bytes_alive(lives: Lives) -> np.ndarray:
    """Bytes alive at each step. Notes in the lives which of them take memory of their own."""
    graph, n, steps = lives.graph, lives.length, lives.steps
    sizes = graph.bytes[lives.values]
    counts = sizes > 0
    placed = _in_output_buffers(lives, sizes) if graph.buffers else np.zeros(0, np.int64)
    counts[placed] = False
    lives.is_counted = counts
    sizes, firsts, lasts = sizes[counts], lives.firsts[counts], lives.lasts[counts]
    change = np.zeros(n + 1, np.int64)
    np.add.at(change, firsts, sizes)
    np.subtract.at(change, lasts + 1, sizes)
    live = np.cumsum(change[:n]) + graph.scratch[steps]
    # Outputs take the buffers of inputs that die, if these are not larger.
    given, room = np.zeros(n, np.int64), graph.taking[steps]
    elsewhere = placed[graph.takes[lives.values[placed]]]
    np.subtract.at(room, lives.firsts[elsewhere], graph.bytes[lives.values[elsewhere]])
    dies = lives.is_used[counts] & (sizes <= room[lasts]) & graph.gives[lives.values[counts]]
    np.add.at(given, lasts[dies], sizes[dies])
    return live - np.minimum(given, room)


def _in_output_buffers(lives: Lives, sizes: np.ndarray) -> np.ndarray:
    """Values that XLA stores in the buffer of an output that is not computed yet.

    As compilers do it: the largest values first, each in the smallest buffer that is free all its life.
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
    return np.array(found, np.int64)


def peak(graph: Graph, sequence: Sequence[int]) -> int:
    """The most bytes that are alive at once."""
    return int(profile(graph, sequence).max(initial=0))


def pruned(graph: Graph, sequence: Sequence[int]) -> list[int]:
    """The sequence without the runs that nothing needs; values computed while they are still there are computed once.

    The results and gradients count as needed, each at its first run.
    """
    reads, makes, is_free = graph.reads, graph.makes, graph.is_free
    there, once, is_wanted = set[int](), list[int](), list[bool]()
    for i in sequence:
        is_first = is_free[i] > 0 and i not in there
        if is_free[i] == 2 and not is_first:
            continue  # what is held for nothing is not computed again
        if is_first:
            there.add(i)
        once.append(i)
        is_wanted.append(is_first)
    needed, kept = 0, []
    for i, wanted in zip(reversed(once), reversed(is_wanted), strict=True):
        if wanted or needed & makes[i]:
            kept.append(i)
            needed = needed & ~makes[i] | reads[i]
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


def needed_nodes(graph: Graph, wanted: Iterable[int], held: Collection[int]) -> list[int]:
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
