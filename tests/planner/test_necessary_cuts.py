"""The choice of what to hold against all choices, and what it proves."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from benchmarks.necessary import bound
from benchmarks.necessary.cuts import Recomputation, along
from statetransform._planner.graph import Graph, Node

from .graphs import random_graph, with_derived


def wanted_by_the_backward_pass(graph: Graph) -> set[int]:
    used = {v for node in graph.nodes if node.is_backward for v in node.inputs}
    return {v for v in used if not graph.nodes[graph.producer[v]].is_backward}


def paid(graph: Graph, wanted: set[int], held: frozenset[int], price: float) -> float:
    """For the bytes of what is held, and for the nodes that run again for the rest."""
    stack, runs = [v for v in wanted if v not in held], set[int]()
    while stack:
        i = graph.producer[stack.pop()]
        if i not in runs:
            runs.add(i)
            stack += [v for v in graph.nodes[i].inputs if v not in held]
    again = sum(graph.nodes[i].cost for i in runs if i in graph.primal)
    return price * sum(graph.sizes[v] for v in held) + again


@pytest.mark.parametrize("price", [0.1, 0.7, 2.0])
def test_no_choice_is_cheaper_than_the_cut(price: float) -> None:
    for seed in range(60):
        for graph in (random_graph(seed), with_derived(seed)):
            wanted = wanted_by_the_backward_pass(graph)
            ways = Recomputation(graph, wanted, ())
            cut = ways.cut(price * ways.sizes)
            choices = itertools.chain.from_iterable(
                itertools.combinations(ways.values, n) for n in range(len(ways.values) + 1)
            )
            best = min(paid(graph, wanted, frozenset(some), price) for some in choices)
            assert cut.total == pytest.approx(best, abs=1e-6)
            held = frozenset(ways.values[k] for k in cut.held)
            assert paid(graph, wanted, held, price) == pytest.approx(best, abs=1e-6)


def test_prices_are_asked_where_lines_meet() -> None:
    lines = [(0.0, 4.0), (3.0, 1.0), (5.0, 0.0)]  # value at 0, and slope
    asked: list[float] = []

    def at(price: float) -> tuple[float, float]:
        asked.append(price)
        value, slope = min((a + slope * price, slope) for a, slope in lines)
        return value, slope

    prices = along(0.1, 10.0, at, 8)
    assert any(np.isclose(price, 1.25) for price in prices)  # where the first line meets the last one
    assert len(asked) == len(set(asked)) <= 8


def test_a_narrow_value_in_front_of_a_wide_one_is_what_counts() -> None:
    """The backward pass uses wide values, each made of a narrow one by a product, and a product makes that."""
    n = 4
    nodes, sizes = [], []
    for k in range(n):
        nodes += [Node((2 * k - 2,) if k else (), (2 * k,), cost=100.0), Node((2 * k,), (2 * k + 1,), cost=10.0)]
        sizes += [1, 8]
    nodes.append(Node((2 * n - 2,), (2 * n,)))
    sizes.append(0)
    for k in reversed(range(n)):
        above = (len(sizes) - 1,) if k < n - 1 else ()
        nodes.append(Node((2 * k + 1, *above), (len(sizes),), is_backward=True))
        sizes.append(1 if k else 0)
    # The wide values are wanted by an effect of the forward pass, too, so that they are computed in it.
    nodes[2 * n : 2 * n] = [Node((2 * k + 1,), (len(sizes) + k,)) for k in range(n)]
    sizes += [0] * n
    results = frozenset({2 * n, *range(len(sizes) - n, len(sizes))})
    graph = Graph(tuple(nodes), tuple(sizes), results, frozenset({3 * n}))
    # With 10 bytes all narrow values can be held, and hardly any wide one.
    assert 25.0 <= bound.least_cost(graph, 12) - graph.cost <= 40.0
    assert bound.least_cost(graph, 3) - graph.cost >= 100.0


def test_the_memory_of_gradients_that_are_computed_before_is_not_there() -> None:
    """Of two gradients the second is made of the first: what its node uses has to be elsewhere."""
    nodes = (
        Node((), (0,)),
        Node((0,), (1,)),
        Node((1,), (2,), is_backward=True),
        Node((2, 0), (3,), is_backward=True),
    )
    graph = Graph(nodes, (8, 0, 0, 0), frozenset({1}), frozenset({2, 3}), buffers=((2, 8), (3, 4)))
    assert bound.least_bytes(graph) == (8, 3)
    late = Graph((*nodes[:3], Node((2, 0), (3,), is_backward=True, inplace=(3,))), *_rest(graph, ((2, 8), (3, 8))))
    assert bound.least_bytes(late)[0] == 0  # it may die in the memory of the second gradient


def _rest(graph: Graph, buffers: tuple[tuple[int, int], ...]) -> tuple:
    return graph.sizes, graph.results, graph.gradients, graph.pinned, buffers
