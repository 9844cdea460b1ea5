"""The largest flow between two vertices, and the smallest cut that it proves."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from statetransform._planner.graph import Graph

ENDLESS = 1 << 62


class Network:
    """Vertices, and edges through which something flows.

    Args:
      count: of the vertices; the first is the source, the second one the sink.
      edges: from where to where.

    References:
      Dinic, *Algorithm for solution of a problem of maximum flow in networks with power estimation*, 1970.
    """

    def __init__(self, count: int, edges: Sequence[tuple[int, int]]) -> None:
        # Each edge is followed by the way back.
        self._ends = [v for start, end in edges for v in (end, start)]
        self._edges: list[list[int]] = [[] for _ in range(count)]
        for k, start in enumerate(v for edge in edges for v in edge):
            self._edges[start].append(k)

    def cut(self, capacities: Sequence[int]) -> tuple[int, Collection[int]]:
        """The largest flow for a capacity of each edge, and the vertices on the side of the source."""
        left = [room for capacity in capacities for room in (capacity, 0)]
        total = 0
        while 1 in (levels := self._levels(left)):
            total += sum(self._flows(left, levels))
        return total, levels.keys()

    def _levels(self, left: list[int]) -> dict[int, int]:
        """How far the vertices are from the source that can be reached, up to the sink."""
        levels, queue = {0: 0}, [0]
        for v in queue:  # grows
            for k in self._edges[v]:
                if left[k] and (end := self._ends[k]) not in levels:
                    levels[end] = levels[v] + 1
                    queue.append(end)
            if 1 in levels:
                break
        return levels

    def _flows(self, left: list[int], levels: dict[int, int]) -> Iterator[int]:
        """What flows along the shortest ways, until there is no such way any more."""
        ends, rest = self._ends, {v: self._edges[v].copy() for v in levels}
        way: list[int] = []
        while True:
            v = ends[way[-1]] if way else 0
            if v == 1:
                flow = min(left[k] for k in way)
                yield flow
                for k in way:
                    left[k] -= flow
                    left[k ^ 1] += flow
                # On from the first edge that is full.
                del way[next(t for t, k in enumerate(way) if not left[k]) :]
                continue
            while rest[v] and not (left[k := rest[v][-1]] and levels.get(ends[k]) == levels[v] + 1):
                rest[v].pop()
            if rest[v]:
                way.append(rest[v][-1])
            elif way:
                rest[ends[way.pop() ^ 1]].pop()
            else:
                return


def smallest_cut(
    graph: Graph,
    starts: Sequence[int],
    sinks: Collection[int],
    inside: Collection[int],
    sizes: Sequence[int] | Mapping[int, int],
) -> int:
    """The size of the smallest set of values on all ways from some values to others.

    Args:
      graph: the graph.
      starts, sinks: from where to where.
      inside: the values that the ways go through, and among which the set is.
      sizes: of each value.
    """
    values = sorted(inside)
    # Each value is an edge, from where flow enters to where it leaves.
    enter = {v: 2 + 2 * k for k, v in enumerate(values)}
    edges = [(enter[v], enter[v] + 1) for v in values]
    edges += [(0, enter[v]) for v in starts if v in enter] + [(enter[v] + 1, 1) for v in values if v in sinks]
    for v in values:
        edges += [(enter[u] + 1, enter[v]) for u in graph.nodes[graph.producer[v]].inputs if u in enter]
    capacities = [sizes[v] for v in values] + [ENDLESS] * (len(edges) - len(values))
    return Network(2 + 2 * len(values), edges).cut(capacities)[0]
