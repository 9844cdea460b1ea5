"""The joint forward and backward computation as plain data, which knows nothing of JAX.

A node computes some values from others. Only values that a plan has to care for are in the graph: arguments, constants
and cotangents of the outputs are always there, views are part of the values that they look at. The outputs and the
gradients are values without bytes: they are not counted, and once computed they are held. Their memory is there from
the start, so until they are computed it serves other values.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any


@dataclasses.dataclass(frozen=True)
class Node:
    """One operation, or several that a compiler fuses.

    Attributes:
      inputs, outputs: values by number.
      cost: arithmetic operations.
      scratch: bytes that it needs inside, besides inputs and outputs.
      is_backward: whether it depends on the cotangents.
      is_product: whether it is a matrix product or a convolution, the results of which are kept first by hand.
      inplace: the outputs that may take the buffer of an input that dies here.
      eqns: what it stands for.
    """

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    cost: float = 1.0
    scratch: int = 0
    is_backward: bool = False
    is_product: bool = False
    inplace: tuple[int, ...] = ()
    eqns: tuple[Any, ...] = dataclasses.field(default=(), compare=False, repr=False)


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
    """

    nodes: tuple[Node, ...]
    sizes: tuple[int, ...]
    results: frozenset[int]
    gradients: frozenset[int]
    pinned: frozenset[int] = frozenset()
    buffers: tuple[tuple[int, int], ...] = ()

    @functools.cached_property
    def producer(self) -> dict[int, int]:
        """The node that computes each value."""
        return {value: i for i, node in enumerate(self.nodes) for value in node.outputs}

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
    def free(self) -> frozenset[int]:
        """The values that are held for nothing once computed."""
        of_pinned = {value for i in self.pinned for value in self.nodes[i].outputs}
        return self.results | self.gradients | of_pinned

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
        return sum(self.nodes[i].cost for i in sequence)
