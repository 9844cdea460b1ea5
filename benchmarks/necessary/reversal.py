"""How often the nodes of a chain run at least when the chain is reversed with few bytes.

Take forward nodes `d_1, ..., d_n`, each of which needs the one before, and backward nodes `e_n, ..., e_1`, each of
which needs the one before in this order, and `e_g` something that is made of `d_g`. Say that slot `g` is taken while
`d_{g+1}`, or what `e_g` needs, can be computed without running `d_g`. Then

* only a run of `d_g` takes slot `g`, and `d_{g+1}` and the first `e_g` run only while it is taken,
* a slot that is taken needs the bytes of a smallest cut behind `d_g`, and the cuts of different slots are disjoint,
* between the first `e_{g+1}` and the first `e_g` there is a moment at which cotangents need a known number of bytes, so
  that no more than `s` slots are taken.

Claim: of `d_1, ..., d_{n-1}` at most `C(s + r + 1, r) - 2` run no more than `r` times.

Proof. It is enough to bound the length `m` of a chain all of whose nodes run at most `r` times, since leaving out nodes
of a chain leaves a chain. Let `M(s, r)` bound it if a moment lies between the first run of `d_m` and `e_m`, and
`L(s, r)` if none need lie there. Behind `e_m` the rest of the chain has such a moment, so `L(s, r) <= 1 + M(s, r)`.
Let `k` be the largest number such that at some time all of `d_1, ..., d_{k-1}` have run, `e_{k-1}` has not, and none of
the slots below `k` is taken. From there on the nodes below `k` run at most `r - 1` times, so `k - 1 <= L(s, r - 1)`.
If `k <= m`, one of the slots up to `k` is taken at all times at which a slot above is of use, so
`m - k <= M(s - 1, r)`; and if `s = 0`, none is at the moment before `e_m`, so `k = m + 1`. With `M(s, 0) = L(s, 0) = 0`
it follows that `M(s, 1) <= s`, `M(0, r) <= r - 1` and, for `r > 1`, `M(s, r) <= M(s - 1, r) + M(s, r - 1) + 2`; the
claim solves this.

References:
  Griewank, *Achieving logarithmic growth of temporal and spatial complexity in reverse automatic differentiation*,
  1992; Grimm, Pottier and Rostaing-Schmidt, *Optimal time and minimum space-time product for reversing a certain class
  of programs*, 1996.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator

from statetransform._planner.graph import Graph
from statetransform._planner.simulate import reused

from .flow import smallest_cut

_SHARES = (0.5, 0.05, 0.0)  # of the most expensive node: which nodes of a path count as a chain


def runs_again(weights: list[float], slots: int) -> float:
    """The work that is done again at least by nodes of these weights, with so many slots at each moment."""
    again, done, r = 0.0, 0, 1
    ordered = sorted(weights, reverse=True)
    while done < len(ordered):
        upto = min(math.comb(slots + r + 1, r) - 2, len(ordered))
        again += (r - 1) * sum(ordered[done:upto])
        done, r = max(done, upto), r + 1
    return again


@dataclasses.dataclass(frozen=True)
class Chain:
    """What counts of a chain.

    Attributes:
      weights: the work of each node but the last.
      cuts: the bytes of its slot.
      beside: bytes of cotangents at the moments.
      room: bytes that values may have elsewhere, in the memory of gradients that are not computed yet.
    """

    weights: tuple[float, ...]
    cuts: tuple[int, ...]
    beside: int
    room: int


class Reversal:
    """The work that is done again at least within a budget, for any budget.

    Args:
      graph: the graph.

    Attributes:
      chains: what is known of the chains that were found in it.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self.chains = [chain for share in _SHARES if (chain := self._chain(share)) is not None]

    def again(self, budget: int) -> float:
        """The most that is proved with one of the chains."""
        return max((self._with(chain, budget) for chain in self.chains), default=0.0)

    def _with(self, chain: Chain, budget: int) -> float:
        rest = budget + chain.room - chain.beside
        slots = 0
        for size in sorted(chain.cuts):
            rest -= size
            if rest < 0:
                break
            slots += 1
        return runs_again(list(chain.weights), slots)

    def _chain(self, share: float) -> Chain | None:
        graph = self._graph
        path = self._path()
        least = share * max((graph.nodes[i].cost for i in path), default=0.0)
        path = [i for i in path if graph.nodes[i].cost >= least]
        kept = self._turns(path)
        if len(kept) < 3:
            return None
        ends = [g for g, _ in kept[1:]] + [len(path)]
        cuts, values = [], set[int]()
        for (g, turn), end in zip(kept[:-1], ends, strict=False):
            inside = {v for v, level in self._levels.items() if g <= level < end}
            values |= inside
            sinks = [set(graph.nodes[path[end]].inputs) & inside, set(graph.nodes[turn].inputs) & inside]
            cuts.append(min(self._cut(path[g], some, inside) for some in sinks))
        turns = [turn for _, turn in kept]
        moments = [self._beside(above, below) for below, above in itertools.pairwise(turns)]
        for (_, below), (_, above) in itertools.pairwise(kept):
            for i in self._between(above, self._dependencies[below]):
                values |= {v for v in (*graph.nodes[i].inputs, *graph.nodes[i].outputs) if v not in self._levels}
        weights = tuple(graph.nodes[path[g]].cost for g, _ in kept[:-1])
        return Chain(weights, tuple(cuts), min(moments), self._room(values))

    def _room(self, values: set[int]) -> int:
        """Bytes of the memory of results and gradients that can hold some values."""
        sizes = [self._graph.sizes[v] for v in values if self._graph.sizes[v]]
        fitting = [size for _, size in self._graph.buffers if size >= min(sizes, default=0)]
        return min(sum(fitting), sum(size for size in sizes if size <= max(fitting, default=0)))

    def _path(self) -> list[int]:
        """The path through the forward pass with the most work."""
        graph, best = self._graph, {}
        for i in sorted(graph.primal - graph.pinned):
            before = [graph.producer[v] for v in graph.nodes[i].inputs]
            above = max((best[j] for j in before if j in best), default=(0.0, -1, -1))
            best[i] = (above[0] + graph.nodes[i].cost, i, above[1])
        found, now = [], max(best.values(), default=(0.0, -1, -1))[1]
        while now >= 0:
            found.append(now)
            now = best[now][2]
        return found[::-1]

    def _turns(self, path: list[int]) -> list[tuple[int, int]]:
        """The positions in the path that can be reversed in order, each with the backward node that does it."""
        graph, position = self._graph, {i: g for g, i in enumerate(path)}
        self._levels: dict[int, int] = {}
        for i, node in enumerate(graph.nodes):
            if not node.is_backward:
                level = position.get(i, max((self._levels[v] for v in node.inputs), default=-1))
                self._levels.update(dict.fromkeys(node.outputs, level))
        above = self._above()
        below = dict.fromkeys(above, 0)
        for bits in above.values():
            for i in below:
                below[i] += bits >> i & 1
        using: dict[int, list[int]] = {}
        for i in sorted(graph.needed):
            if graph.nodes[i].is_backward:
                for v in graph.nodes[i].inputs:
                    if v in self._levels:
                        using.setdefault(self._levels[v], []).append(i)
        kept, last, waiting = [], None, []
        for g in range(len(path) - 1, -1, -1):
            waiting += using.get(g, [])
            fitting = [i for i in waiting if last is None or above[i] >> last & 1]
            # One that much depends on: others can follow.
            found = max(fitting, key=lambda i: (below[i], -i), default=None)
            if found is not None:
                kept.append((g, found))
                last, waiting = found, []
        return kept[::-1]

    def _above(self) -> dict[int, int]:
        """The backward nodes that each backward node depends on, as bits."""
        graph, found = self._graph, {}
        for i, node in enumerate(graph.nodes):
            if node.is_backward:
                bits = 0
                for v in node.inputs:
                    if v not in self._levels:
                        j = graph.producer[v]
                        bits |= found[j] | 1 << j
                found[i] = bits
        self._dependencies = found
        return found

    def _beside(self, above: int, below: int) -> int:
        """The most bytes of cotangents that a node needs that runs between two others."""
        graph, before = self._graph, self._dependencies[below]
        return max(self._cotangents(i) for i in self._between(above, before) if i in graph.needed)

    def _between(self, above: int, before: int) -> Iterator[int]:
        yield above
        for i, bits in self._dependencies.items():
            if before >> i & 1 and bits >> above & 1:
                yield i

    def _cotangents(self, i: int) -> int:
        graph, node = self._graph, self._graph.nodes[i]
        values = {v for v in (*node.inputs, *node.outputs) if v not in self._levels}
        size = sum(graph.sizes[v] for v in values)
        return max(size - (reused(graph, node, node.inputs) if node.inplace else 0), 0)

    def _cut(self, source: int, sinks: set[int], inside: set[int]) -> int:
        """Bytes of the smallest set of values without which nothing of a node reaches some values."""
        return smallest_cut(self._graph, self._graph.nodes[source].outputs, sinks, inside, self._graph.sizes)
