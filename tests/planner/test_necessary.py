"""What is proved about plans holds for the best ones."""

from __future__ import annotations

from benchmarks.necessary import bound
from statetransform._planner.graph import Graph, Node
from statetransform._planner.simulate import peak
from statetransform._planner.solve import Solver

from . import exact
from .graphs import random_graph, with_derived


def test_the_bounds_hold_for_the_best_plans() -> None:
    for graph in (*map(random_graph, range(200)), *map(with_derived, range(200))):
        least, _ = bound.least_bytes(graph)
        assert exact.best(graph, least - 1) is None
        for budget in range(least, peak(graph, graph.plain)):
            best = exact.best(graph, budget)
            if best is not None:
                assert bound.least_cost(graph, budget) <= best[0] + 1e-9, (graph, budget)


def test_a_value_may_spare_many_nodes() -> None:
    """Of each step something is added to a sum, which is all that the backward pass uses."""
    n = 8
    nodes: list[Node] = []
    for i in range(n):
        nodes.append(Node((2 * i - 2,) if i else (), (2 * i,), cost=5.0))
        nodes.append(Node((2 * i, 2 * i - 1) if i else (0,), (2 * i + 1,)))
    sizes = [1] * (2 * n - 2) + [0, 1, 0]
    nodes.append(Node((2 * n - 1,), (2 * n,), is_backward=True))
    graph = Graph(tuple(nodes), tuple(sizes), frozenset({2 * n - 2}), frozenset({2 * n}))
    sequence = range(len(nodes))
    assert peak(graph, sequence) == 3
    assert bound.least_cost(graph, 3) <= graph.cost


def test_a_mask_does_not_spare_a_product_whose_result_is_used_too() -> None:
    """As in a layer with `relu`: the backward pass uses the mask of one layer and the result of the one before."""
    n = 6
    nodes: list[Node] = []
    sizes: list[int] = []
    for i in range(n):
        before = (3 * i - 1,) if i else ()
        nodes += [Node(before, (3 * i,), cost=100.0), Node((3 * i,), (3 * i + 1,)), Node((3 * i,), (3 * i + 2,))]
        sizes += [4, 1, 4 if i < n - 1 else 0]
    result = len(sizes) - 1
    for i in range(n - 1, -1, -1):
        value = len(sizes)
        above = (value - 1,) if i < n - 1 else ()
        used = (3 * i + 1, 3 * i - 1) if i else (1,)
        nodes.append(Node((*used, *above), (value,), cost=200.0, is_backward=True))
        sizes.append(4 if i else 0)
    graph = Graph(tuple(nodes), tuple(sizes), frozenset({result}), frozenset({len(sizes) - 1}))
    assert bound.least_cost(graph, 16) >= graph.cost + 100.0
    found = Solver(graph).plan(16)
    assert found is not None and bound.least_cost(graph, 16) <= found.cost
