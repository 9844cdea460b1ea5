"""The solvers: plans that are valid, within their budgets, and near the best that is known."""

from __future__ import annotations

import math

import pytest

from statetransform._planner.blocks import Row
from statetransform._planner.checkpoints import kept_by, plan_of
from statetransform._planner.graph import Graph, Node
from statetransform._planner.rematerialize import filled, lowered
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


def test_filling_spares_work_within_the_budget() -> None:
    graph = chain(20)
    tight = Solver(graph).plan(6)
    assert tight is not None
    better = filled(graph, tight.sequence, 12)
    check(graph, better)
    assert peak(graph, better) <= 12
    assert graph.cost_of(better) < tight.cost


def test_dropping_brings_a_plan_into_a_budget() -> None:
    reached = 0
    for seed in range(200):
        graph = random_graph(seed)
        budget = peak(graph, graph.plain) - 1
        found = lowered(graph, graph.plain, budget)
        if found is not None:
            check(graph, found)
            assert peak(graph, found) <= budget
            reached += 1
    assert reached > 50
    assert lowered(chain(20), chain(20).plain, 2) is None


def test_dropping_leaves_a_plan_that_fits_alone() -> None:
    graph = chain(6)
    assert lowered(graph, graph.plain, 6) == list(graph.plain)


def test_a_wide_value_that_is_cheap_to_have_again_is_dropped_while_others_need_room() -> None:
    """Of a narrow value a wide one is made for the backward pass; between its two uses there, something large runs."""
    nodes = (
        Node((), (0,), cost=9.0),
        Node((0,), (1,), cost=1.0),
        Node((1,), (2,)),
        Node((1,), (3,), is_backward=True),
        Node((3,), (4,), is_backward=True),
        Node((4, 1), (5,), is_backward=True),
    )
    graph = Graph(nodes, (1, 8, 0, 8, 8, 0), frozenset({2}), frozenset({5}))
    assert peak(graph, graph.plain) == 24
    found = Solver(graph).plan(17)
    assert found is not None and found.cost == graph.cost + 1.0


def test_the_same_graph_gives_the_same_plan() -> None:
    assert Solver(chain(20)).plan(7) == Solver(chain(20)).plan(7)


def test_the_least_plan_needs_fewer_bytes_than_the_plain_one() -> None:
    solver = Solver(chain(32))
    least = solver.least
    assert 2 <= least.bytes <= 8
    assert solver.plain.bytes == 32


def test_the_least_plan_is_found_again_when_its_bytes_are_the_budget() -> None:
    for seed in range(60):
        solver = Solver(random_graph(seed))
        found = Solver(solver.graph).plan(solver.least.bytes)
        assert found is not None and found.bytes <= solver.least.bytes, seed


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


def test_blocks_end_where_few_bytes_cross() -> None:
    """Layers that are wide inside, with a narrow value between two of them."""
    n = 6
    nodes = [Node((k - 1,) if k else (), (k,)) for k in range(3 * n)]
    sizes = [(8, 8, 1)[k % 3] for k in range(3 * n)]
    sizes[-1] = 0
    for k in reversed(range(3 * n)):
        above = (len(sizes) - 1,) if k < 3 * n - 1 else ()
        nodes.append(Node((*((k - 1,) if k else ()), *above), (len(sizes),), is_backward=True))
        sizes.append(1 if k else 0)
    graph = Graph(tuple(nodes), tuple(sizes), frozenset({3 * n - 1}), frozenset({len(sizes) - 1}))
    row = Row(graph)
    assert row.ends(17) == list(range(3, 3 * n, 3))


def test_plans_by_hand_are_those_that_checkpoints_give() -> None:
    graph = of_layers(8)
    forward = 8 * 10.0
    products = frozenset(range(0, 16, 2))
    assert kept_by(graph)["dots"] == products
    row = Row(graph)
    whole = row.cut([])
    nothing = plan_of(graph, row, whole, frozenset())
    assert graph.cost_of(nothing) == graph.cost + forward - 1.0  # the result is there
    with_products = plan_of(graph, row, whole, products)
    assert sum(graph.nodes[i].is_product for i in with_products) == 8


def test_no_plan_by_hand_that_fits_is_better() -> None:
    for graph in (*map(random_graph, range(60)), chain(12), of_layers(8)):
        solver = Solver(graph)
        for by_hand in solver.by_hand:
            check(graph, by_hand.sequence)
            found = solver.plan(by_hand.bytes)
            assert found is not None and found.cost <= by_hand.cost + 1e-9
