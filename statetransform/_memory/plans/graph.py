"""The joint forward and backward computation as plain data: it hands on JAX's equations, and looks at none.

A node computes some values from others. Only values that a plan has to care for are in the graph: arguments, constants
and cotangents of the outputs are always there, views are part of the values that they look at. The outputs and the
gradients are values without bytes: they are not counted, and once computed they are held. Their memory is there from
the start, so until they are computed it serves other values.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Node:
    """One operation, or several that a compiler fuses.

    Attributes:
      inputs, outputs: values by number.
      cost: arithmetic operations.
      scratch: bytes that it needs inside, besides inputs and outputs.
      is_backward: whether it depends on the cotangents.
      is_product: whether it is a matrix product or a convolution, the results of which are kept first by hand.
      is_batched: of a product, whether it is of many matrices, or a convolution.
      inplace: the outputs that may take the buffer of an input that dies here.
      eqns: what it stands for.
    """

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    cost: float = 1.0
    scratch: int = 0
    is_backward: bool = False
    is_product: bool = False
    is_batched: bool = False
    inplace: tuple[int, ...] = ()
    eqns: tuple[Any, ...] = dataclasses.field(default=(), compare=False, repr=False)


class Wires:
    """The inputs of all nodes, or the outputs, in one array.

    Args:
      lists: those of each node.
    """

    def __init__(self, lists: Iterable[tuple[int, ...]]) -> None:
        self.lists = list(lists)
        self._flat = np.array([v for some in self.lists for v in some], np.int64)
        self._count = np.array(list(map(len, self.lists)), np.int64)
        self._begin = np.cumsum(self._count) - self._count

    def of(self, steps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The values of a sequence of nodes, and at which step each of them stands."""
        count = self._count[steps]
        where = np.repeat(np.arange(len(steps)), count)
        offset = self._begin[steps] - (np.cumsum(count) - count)
        return self._flat[np.arange(len(where)) + np.repeat(offset, count)], where


@dataclasses.dataclass(frozen=True)
class Graph:
    """Nodes in an order in which they can run, forward ones first.

    Attributes:
      nodes: the nodes.
      sizes: bytes of each value.
      results: the values to be computed by the forward pass.
      gradients: the values to be computed by the backward pass.
      pinned: nodes that run exactly once, since they have effects.
      buffers: bytes of the memory of each result and gradient.
      lasting: values whose buffers no node can take.
    """

    nodes: tuple[Node, ...]
    sizes: tuple[int, ...]
    results: frozenset[int]
    gradients: frozenset[int]
    pinned: frozenset[int] = frozenset()
    buffers: tuple[tuple[int, int], ...] = ()
    lasting: frozenset[int] = frozenset()

    @functools.cached_property
    def producer(self) -> dict[int, int]:
        """The node that computes each value."""
        return {value: i for i, node in enumerate(self.nodes) for value in node.outputs}

    @functools.cached_property
    def inputs(self) -> Wires:
        """The inputs of all nodes."""
        return Wires(node.inputs for node in self.nodes)

    @functools.cached_property
    def outputs(self) -> Wires:
        """The outputs of all nodes."""
        return Wires(node.outputs for node in self.nodes)

    @functools.cached_property
    def reads(self) -> list[int]:
        """The inputs of each node, as a number with a bit for each value."""
        return [sum(1 << v for v in set(values)) for values in self.inputs.lists]

    @functools.cached_property
    def makes(self) -> list[int]:
        """The outputs of each node, likewise."""
        return [sum(1 << v for v in values) for values in self.outputs.lists]

    @functools.cached_property
    def bytes(self) -> np.ndarray:
        """Bytes of each value, as an array."""
        return np.array(self.sizes, np.int64)

    @functools.cached_property
    def scratch(self) -> np.ndarray:
        """Bytes that each node needs inside."""
        return np.array([node.scratch for node in self.nodes], np.int64)

    @functools.cached_property
    def taking(self) -> np.ndarray:
        """Bytes of the outputs of each node that may take the buffers of inputs."""
        return np.array([sum(self.sizes[v] for v in node.inplace) for node in self.nodes], np.int64)

    @functools.cached_property
    def gives(self) -> np.ndarray:
        """Whether the buffer of each value may be taken by the node that it is used last by."""
        return np.array([v not in self.lasting for v in range(len(self.sizes))], bool)

    @functools.cached_property
    def takes(self) -> np.ndarray:
        """Whether each value may be in the buffer of an input of its node."""
        return np.array([v in self.nodes[self.producer[v]].inplace for v in range(len(self.sizes))], bool)

    @functools.cached_property
    def rooms(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Of the memory of each result and gradient: bytes, the node that fills it, and whether that works in place."""
        makers = [self.producer[v] for v, _ in self.buffers]
        alone = [len(self.nodes[i].outputs) == len(self.nodes[i].inplace) == 1 for i in makers]
        return np.array([size for _, size in self.buffers], np.int64), np.array(makers, np.int64), np.array(alone, bool)

    @functools.cached_property
    def price(self) -> list[float]:
        """Operations for each byte of each value, to compute it again."""
        return [self.nodes[self.producer[v]].cost / max(size, 1) for v, size in enumerate(self.sizes)]

    @functools.cached_property
    def primal(self) -> frozenset[int]:
        """The forward nodes that the results, or effects, depend on: they run in every forward pass."""
        needed, found = set(self.results), set()
        for i in reversed(range(len(self.nodes))):
            node = self.nodes[i]
            if not node.is_backward and (i in self.pinned or not needed.isdisjoint(node.outputs)):
                found.add(i)
                needed.update(node.inputs)
        return frozenset(found)

    @functools.cached_property
    def forward(self) -> frozenset[int]:
        """The values that forward nodes compute."""
        return frozenset(v for node in self.nodes if not node.is_backward for v in node.outputs)

    @functools.cached_property
    def free(self) -> frozenset[int]:
        """The values that are held for nothing once computed."""
        of_pinned = {value for i in self.pinned for value in self.nodes[i].outputs}
        return self.results | self.gradients | of_pinned

    @functools.cached_property
    def is_free(self) -> list[int]:
        """Whether a node has outputs that are held for nothing, or an effect: 1 for some, 2 for all of its outputs."""
        found = []
        for i, node in enumerate(self.nodes):
            count = sum(v in self.free for v in node.outputs)
            found.append(2 if count and count == len(node.outputs) else 1 if count or i in self.pinned else 0)
        return found

    @functools.cached_property
    def plain(self) -> tuple[int, ...]:
        """The order of plain differentiation: every node once, what the forward pass can compute before it ends."""
        forward = [i for i, node in enumerate(self.nodes) if not node.is_backward]
        return (*forward, *[i for i, node in enumerate(self.nodes) if node.is_backward])

    @functools.cached_property
    def cost(self) -> float:
        """The operations of plain differentiation."""
        return self.cost_of(sorted(self.needed))

    @functools.cached_property
    def needed(self) -> frozenset[int]:
        """The nodes that results, gradients or effects depend on."""
        wanted, found = {*self.results, *self.gradients}, set()
        for i in reversed(range(len(self.nodes))):
            if i in self.pinned or not wanted.isdisjoint(self.nodes[i].outputs):
                found.add(i)
                wanted.update(self.nodes[i].inputs)
        return frozenset(found)

    def cost_of(self, sequence: tuple[int, ...] | list[int]) -> float:
        """The operations of a sequence of nodes."""
        return sum(map(self._costs.__getitem__, sequence))

    @functools.cached_property
    def _costs(self) -> list[float]:
        return [node.cost for node in self.nodes]
