"""The simulator against an interpreter that holds values one by one."""

from __future__ import annotations

import random

import pytest

from statetransform._planner.graph import Graph, Node
from statetransform._planner.simulate import InvalidPlanError, check, profile

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
