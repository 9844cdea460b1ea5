"""Graphs of gradient steps: what a plan holds at each step; plans are valid, within budgets and near the best."""

from __future__ import annotations

import itertools
import random
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from statetransform._memory import ONE, Lanes
from statetransform._memory.plans.build import build
from statetransform._memory.plans.existing import Held
from statetransform._memory.plans.gradient import Pattern, flattened, joint_step, without_equal

# Plans of graphs that no function has: the judge of plans against the definition of what it counts.
from statetransform._memory.plans.graph import Graph, Node
from statetransform._memory.plans.simulate import InvalidPlanError, check, peak, profile
from statetransform._memory.plans.solve import Curve, Solver, unbeaten


def random_graph(seed: int, n_forward: int | None = None) -> Graph:
    """A forward pass of a few nodes, and a backward pass in which each node needs some of what the forward one had."""
    rng = random.Random(seed)
    n = n_forward or rng.randint(2, 4)
    nodes: list[Node] = []
    sizes: list[int] = []
    for i in range(n):
        inputs = tuple(sorted(rng.sample(range(i), min(i, rng.randint(1, 2))))) if i else ()
        nodes.append(Node(inputs, (i,), cost=rng.choice([1.0, 2.0, 5.0])))
        sizes.append(rng.choice([1, 2, 4]))
    sizes[n - 1] = 0
    gradients = set()
    for i in range(n - 1, -1, -1):
        value = len(sizes)
        above = [value - 1] if nodes[-1].is_backward else []
        used = {i if i < n - 1 else max(n - 2, 0), *nodes[i].inputs} - {n - 1}
        some = sorted(rng.sample(sorted(used), min(len(used), rng.randint(1, 2)))) if used else []
        nodes.append(Node((*some, *above), (value,), cost=rng.choice([1.0, 2.0]), is_backward=True))
        is_last = i == 0
        sizes.append(0 if is_last else rng.choice([1, 2]))
        if is_last:
            gradients.add(value)
    return Graph(tuple(nodes), tuple(sizes), frozenset({n - 1}), frozenset(gradients))


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
        (PINNED, [1, 0, 2], "before they are computed"),
        (PINNED, [0, 2, 1], "before the forward pass is complete"),
        (PINNED, [0, 1, 0, 2], "an effect happens more than once"),
    ],
)
def test_a_plan_that_cannot_run_is_refused(graph: Graph, sequence: list[int], words: str) -> None:
    with pytest.raises(InvalidPlanError, match=words):
        check(graph, sequence)


def test_the_plans_of_a_curve_are_valid_and_each_has_fewer_bytes_and_more_work() -> None:
    solved = 0
    for seed in range(200):
        graph = random_graph(seed)
        solver = Solver(graph)
        curve = list(unbeaten(Curve(solver).plans(solver), lambda plan: (plan.bytes, plan.cost)))
        assert curve[0].bytes <= peak(graph, graph.plain)
        for plan in curve:
            check(graph, plan.sequence)
            assert peak(graph, plan.sequence) == plan.bytes
            assert graph.cost_of(plan.sequence) == pytest.approx(plan.cost)
        assert all(a.bytes > b.bytes and a.cost < b.cost for a, b in itertools.pairwise(curve))
        solved += len(curve)
    assert solved > 250


def test_a_network_that_is_called_twice_is_planned_once() -> None:
    net = lambda x: jnp.tanh(x @ x)
    x = jnp.linspace(0.1, 1.0, 16).reshape(4, 4)
    loss = lambda x: (net(x) ** 2).sum() + jnp.abs(net(x)).sum() + (1 / (0.0 * x)).sum() + (1 / (-0.0 * x)).sum()
    pattern = Pattern((True,), (True,))
    flat = without_equal(flattened(joint_step(jax.make_jaxpr(loss)(x), pattern)))
    products = [node for node in build(flat, pattern).graph.nodes if node.is_product and not node.is_backward]
    assert len(products) == 1
    value, gradient = jax.core.eval_jaxpr(flat.jaxpr, flat.consts, x, 1.0)
    assert jnp.isnan(value)  # zeros of different signs are not equal
    assert jnp.array_equal(gradient, jax.grad(loss)(x), equal_nan=True)


@pytest.mark.parametrize("lanes", [ONE, Lanes(1, 64)])  # for lanes, what they share is there once
def test_a_part_of_a_value_that_bears_its_name_is_not_the_value(lanes: Lanes) -> None:
    def loss(logits: Any, labels: Any) -> Any:
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1).mean()

    pattern = Pattern((True, False), (True,), lanes)
    flat = flattened(joint_step(jax.make_jaxpr(loss)(jnp.ones((8, 128)), jnp.zeros(8, int)), pattern))
    sign = max(i for i, eqn in enumerate(flat.jaxpr.eqns) if eqn.primitive.name == "neg" and eqn.outvars[0].aval.shape)
    for size, is_there in ((8 * 128 * 4, True), (8 * 4, False)):  # as where the sign was moved behind a sum
        graph = build(flat, pattern, held={sign: Held(size, 0)}, has_all=False).graph
        nodes = [node for node in graph.nodes if flat.jaxpr.eqns[sign] is node.eqns[-1]]
        assert bool(nodes) == is_there


def test_products_that_compilers_merge_are_slices_of_what_bears_the_name_of_one() -> None:
    x, pattern = jnp.ones((8, 16)), Pattern((True,), (True,))
    flat = flattened(joint_step(jax.make_jaxpr(lambda x: (jnp.sin(x @ x.T) * (x @ x.T[:, ::-1])).sum())(x), pattern))
    first = next(i for i, eqn in enumerate(flat.jaxpr.eqns) if eqn.primitive.name == "dot_general")
    for numbers, size in ((2 * 64, 64 * 4), (64, 2 * 64 * 4)):  # otherwise there are two copies of it
        graph = build(flat, pattern, held={first: Held(2 * 64 * 4, 0, numbers)}, has_all=False).graph
        (node,) = [node for node in graph.nodes if flat.jaxpr.eqns[first] is node.eqns[-1]]
        assert graph.sizes[node.outputs[0]] == size
