"""Small graphs: chains, and random ones."""

from __future__ import annotations

import random

from statetransform._planner.graph import Graph, Node


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


def chain(n: int, size: int = 1) -> Graph:
    """`n` equal layers, each of whose gradients needs what came into it."""
    nodes = [Node((i - 1,) if i else (), (i,)) for i in range(n)]
    sizes = [size] * (n - 1) + [0]
    for i in range(n - 1, -1, -1):
        value = len(sizes)
        before = (i - 1,) if i else ()
        above = (value - 1,) if i < n - 1 else ()
        nodes.append(Node((*before, *above), (value,), is_backward=True))
        sizes.append(size if i else 0)
    return Graph(tuple(nodes), tuple(sizes), frozenset({n - 1}), frozenset({len(sizes) - 1}))
