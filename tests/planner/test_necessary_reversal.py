"""The bound on reversing a chain against games played to the end, and against the best plans."""

from __future__ import annotations

import heapq
import itertools
import math
import random

import pytest

from benchmarks.necessary.reversal import Reversal, runs_again
from statetransform._planner.graph import Graph, Node

from . import exact
from .graphs import chain, random_graph


def best_game(weights: list[float], slots: int) -> float:
    """The least work: nodes take slots, `e_n` to `e_1` need theirs, and after each of these few are once taken."""
    n = len(weights) + 1
    first = (0, n, True)  # slots that are taken, the next turn, whether the moment before it is over
    costs, queue, order = {first: 0.0}, [(0.0, 0, first)], itertools.count(1)
    while queue:
        cost, _, state = heapq.heappop(queue)
        taken, turn, is_over = state
        if cost > costs[state]:
            continue
        if turn == 0:
            return cost - sum(weights)
        moves = [(0.0, (taken & ~(1 << g), turn, is_over)) for g in range(n) if taken >> g & 1]
        can = [g for g in range(n) if g == 0 or taken >> (g - 1) & 1]
        moves += [(weights[g] if g < n - 1 else 0.0, (taken | 1 << g, turn, is_over)) for g in can]
        if not is_over and (taken & ((1 << turn) - 1)).bit_count() <= slots:
            moves.append((0.0, (taken, turn, True)))
        if is_over and taken >> (turn - 1) & 1:
            moves.append((0.0, (taken, turn - 1, False)))
        for extra, after in moves:
            if cost + extra < costs.get(after, math.inf) - 1e-12:
                costs[after] = cost + extra
                heapq.heappush(queue, (cost + extra, next(order), after))
    raise AssertionError("the game can always be won")


@pytest.mark.parametrize("n", [2, 3, 4, 5])
@pytest.mark.parametrize("slots", [0, 1, 2, 3])
def test_no_game_is_won_with_less_work(n: int, slots: int) -> None:
    rng = random.Random(10 * n + slots)
    for weights in ([1.0] * n, *[[float(rng.choice([1, 2, 5])) for _ in range(n)] for _ in range(6)]):
        assert runs_again(weights, slots) <= best_game(weights, slots) + 1e-9


def test_equal_nodes_run_as_often_as_in_the_best_game() -> None:
    for n, slots in [(3, 1), (4, 2), (5, 2), (5, 3), (6, 4)]:
        assert runs_again([1.0] * n, slots) >= best_game([1.0] * n, slots) - 1.0


def test_the_bound_holds_for_the_best_plans_of_chains() -> None:
    proved = 0
    for n in (4, 5, 6):
        graph = chain(n)
        bound = Reversal(graph)
        for budget in range(2, n + 1):
            best = exact.best(graph, budget)
            if best is not None:
                assert graph.cost + bound.again(budget) <= best[0] + 1e-9, (n, budget)
                proved += bound.again(budget) > 0
    assert proved


def test_the_bound_holds_for_the_best_plans_of_random_graphs() -> None:
    for seed in range(150):
        graph = random_graph(seed, 4)
        bound = Reversal(graph)
        for budget in range(2, 9):
            best = exact.best(graph, budget)
            if best is not None:
                assert graph.cost + bound.again(budget) <= best[0] + 1e-9, (seed, budget)


def test_a_wide_layer_is_held_by_its_narrowest_place() -> None:
    """Layers of a wide and a narrow value: a slot needs the bytes of the narrow one."""
    nodes: list[Node] = []
    sizes: list[int] = []
    for i in range(6):
        wide, before = len(sizes), (len(sizes) - 1,) if i else ()
        nodes += [Node(before, (wide,), cost=8.0), Node((wide,), (wide + 1,), cost=1.0)]
        sizes += [16, 2 if i < 5 else 0]
    result = len(sizes) - 1
    for i in range(5, -1, -1):
        value, used = len(sizes), 2 * i
        above = (value - 1,) if i < 5 else ()
        nodes.append(Node((used, *above), (value,), cost=8.0, is_backward=True))
        sizes.append(2 if i else 0)
    graph = Graph(tuple(nodes), tuple(sizes), frozenset({result}), frozenset({len(sizes) - 1}))
    cuts = [chain.cuts for chain in Reversal(graph).chains]
    assert cuts and all(set(some) == {2} for some in cuts)
