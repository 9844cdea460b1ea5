"""The simulator against an interpreter that holds values one by one."""

from __future__ import annotations

import random
from typing import Any

import pytest

from statetransform._planner.graph import Graph, Node
from statetransform._planner.simulate import InvalidPlanError, check, peak, profile, pruned

from .graphs import chain, random_graph


def interpreted(graph: Graph, sequence: list[int]) -> list[int]:
    """Bytes at each step: a value is held if a later step uses it before it is computed again."""
    found = []
    for t, i in enumerate(sequence):
        held = set(graph.nodes[i].outputs)
        for v in range(len(graph.sizes)):
            made = [s for s in range(t) if v in graph.nodes[sequence[s]].outputs]
            if not made:
                continue
            for later in range(t, len(sequence)):
                if v in graph.nodes[sequence[later]].inputs:
                    held.add(v)
                    break
                if v in graph.nodes[sequence[later]].outputs:
                    break
        found.append(sum(graph.sizes[v] for v in held) + graph.nodes[i].scratch)
    return found


def a_sequence(graph: Graph, seed: int) -> list[int]:
    """The plain order with forward nodes run again at random places."""
    rng = random.Random(seed)
    found: list[int] = []
    for i in graph.plain:
        while found and rng.random() < 0.4:
            found.append(rng.choice([j for j in set(found) if not graph.nodes[j].is_backward]))
        found.append(i)
    return found


def test_the_profile_is_that_of_an_interpreter_on_random_graphs() -> None:
    for seed in range(300):
        graph = random_graph(seed)
        sequence = a_sequence(graph, seed)
        assert profile(graph, sequence).tolist() == interpreted(graph, sequence), seed


def test_pruning_keeps_a_plan_valid_and_costs_nothing() -> None:
    for seed in range(300):
        graph = random_graph(seed)
        sequence = a_sequence(graph, seed)
        short = pruned(graph, sequence)
        check(graph, short)
        assert graph.cost_of(short) <= graph.cost_of(sequence)
        assert peak(graph, short) <= peak(graph, sequence)


def test_an_output_takes_the_buffer_of_an_input_that_dies() -> None:
    nodes = (Node((), (0,)), Node((0,), (1,), inplace=(1,)), Node((1,), (2,), is_backward=True))
    graph = Graph(nodes, (8, 8, 0), frozenset({1}), frozenset({2}))
    assert profile(graph, [0, 1, 2]).tolist() == [8, 8, 8]


def with_buffers(*sizes: int) -> Graph:
    """Two values held up to the first node of the backward pass; it and each one behind it computes a gradient."""
    nodes = [Node((), (0,)), Node((0,), (1,)), Node((1,), (2,)), Node((0, 1), (3,), is_backward=True)]
    nodes += [Node((), (3 + k,), is_backward=True) for k in range(1, len(sizes))]
    gradients = range(3, 3 + len(sizes))
    buffers = tuple(zip(gradients, sizes, strict=True))
    return Graph(tuple(nodes), (8, 6, 0, *[0] * len(sizes)), frozenset({2}), frozenset(gradients), buffers=buffers)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ((9,), [8, 14, 14, 14]),  # taken itself while the values are used
        ((4, 7), [8, 8, 8, 8, 0]),  # the second value
        ((4, 7, 9), [0, 0, 0, 0, 0, 0]),  # both values
        ((1, 8), [0, 6, 6, 6, 0]),  # the larger one; not both in one
    ],
)
def test_memory_of_gradients_serves_values_until_these_are_computed(sizes: Any, expected: list[int]) -> None:
    graph = with_buffers(*sizes)
    assert profile(graph, graph.plain).tolist() == expected


PINNED = Graph(
    (Node((), (0,)), Node((0,), (1,)), Node((0,), (2,), is_backward=True)),
    (4, 0, 0), frozenset({1}), frozenset({2}), pinned=frozenset({0}),
)  # fmt: skip


@pytest.mark.parametrize(
    ("graph", "sequence", "words"),
    [
        (chain(3), [1, 0, 2, 3, 4, 5], "before they are computed"),
        (chain(3), [0, 1, 3, 2, 4, 5], "before the forward pass is complete"),
        (PINNED, [0, 1, 0, 2], "an effect happens more than once"),
    ],
)
def test_a_plan_that_cannot_run_is_refused(graph: Graph, sequence: list[int], words: str) -> None:
    with pytest.raises(InvalidPlanError, match=words):
        check(graph, sequence)


def test_what_dies_where_a_gradient_is_computed_in_place_may_be_in_its_memory() -> None:
    nodes = (Node((), (0,)), Node((0,), (1,)), Node((0,), (2,), is_backward=True))
    given = (8, 0, 0), frozenset({1}), frozenset({2}), frozenset[int](), ((2, 8),)
    assert profile(Graph(nodes, *given), [0, 1, 2]).tolist() == [8, 8, 8]
    in_place = (*nodes[:2], Node((0,), (2,), is_backward=True, inplace=(2,)))
    assert profile(Graph(in_place, *given), [0, 1, 2]).tolist() == [0, 0, 0]
