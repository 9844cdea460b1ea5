"""The solvers: plans that are valid, within their budgets, and near the best that is known."""

from __future__ import annotations

import math

import pytest

from statetransform._planner.graph import Graph, Node
from statetransform._planner.simulate import check, peak
from statetransform._planner.solve import Solver

from .graphs import chain, random_graph


def test_every_plan_is_valid_and_within_its_budget() -> None:
    solved = 0
    for seed in range(200):
        graph = random_graph(seed)
        top = peak(graph, graph.plain)
        for budget in {top, (3 * top) // 4, top // 2}:
            found = Solver(graph).plan(budget)
            if found is not None:
                check(graph, found.sequence)
                assert peak(graph, found.sequence) == found.bytes <= budget
                assert graph.cost_of(found.sequence) == pytest.approx(found.cost)
                solved += 1
    assert solved > 200


def test_larger_budgets_cost_no_more() -> None:
    graph = chain(24)
    solver = Solver(graph)
    costs = [plan.cost if (plan := solver.plan(budget)) else math.inf for budget in range(4, 26)]
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] == graph.cost


@pytest.mark.parametrize(("n", "budget"), [(8, 5), (12, 6), (16, 8)])
def test_a_chain_is_solved_at_most_one_step_beside_the_best_schedule(n: int, budget: int) -> None:
    graph = chain(n)
    found = Solver(graph).plan(budget)
    assert found is not None and found.bytes <= budget
    # Griewank and Walther's schedule for as many slots as there are beside the two values at work.
    from statetransform._loops.plan import advances

    assert found.cost - graph.cost <= advances(n, budget - 1) + 1


def of_layers(n: int) -> Graph:
    """Layers of a product and something cheap, which is what the backward pass uses."""
    nodes: list[Node] = []
    for i in range(n):
        before = (2 * i - 1,) if i else ()
        nodes += [Node(before, (2 * i,), cost=9.0, is_product=True), Node((2 * i,), (2 * i + 1,))]
    sizes = [1] * (2 * n - 1) + [0]
    for i in range(n - 1, -1, -1):
        value = len(sizes)
        above = (value - 1,) if i < n - 1 else ()
        nodes.append(Node((2 * i, *above), (value,), cost=9.0, is_backward=True))
        sizes.append(1 if i else 0)
    return Graph(tuple(nodes), tuple(sizes), frozenset({2 * n - 1}), frozenset({len(sizes) - 1}))


def test_no_plan_by_hand_that_fits_is_better() -> None:
    for graph in (*map(random_graph, range(60)), chain(12), of_layers(8)):
        solver = Solver(graph)
        for by_hand in solver.by_hand:
            check(graph, by_hand.sequence)
            found = solver.plan(by_hand.bytes)
            assert found is not None and found.cost <= by_hand.cost + 1e-9
