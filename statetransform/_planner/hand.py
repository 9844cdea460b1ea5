"""The plans that people write by hand: they are judged like all others, and improved.

Nothing is kept, or all products; each part of the forward pass is computed again from what enters it, with the products
in it kept, or without; or each half is, and within it each half of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from .blocks import Blocks
from .chain import Writer
from .graph import Graph


def written_by_hand(graph: Graph, block: Callable[[int], Blocks], count: int) -> Iterator[list[int]]:
    """Sequences of nodes, one for each way.

    Args:
      graph: the graph.
      block: the forward pass as a chain of so many blocks.
      count: how many blocks there are at most.
    """
    whole = block(1)
    yield segments(whole, frozenset())
    products = products_of(graph)
    if products:
        yield segments(whole, products)
    each = block(count)
    if each.count == 1:
        return
    if products:
        yield segments(each, products)
    yield halves(each)
    # Nobody says where a layer ends, so segments of several lengths are tried.
    parts = each.count
    while parts > 1:
        yield segments(block(parts), frozenset())
        parts //= 2


def products_of(graph: Graph) -> frozenset[int]:
    """The results of products in the forward pass."""
    return frozenset(v for node in graph.nodes if node.is_product and not node.is_backward for v in node.outputs)


def segments(blocks: Blocks, kept: frozenset[int]) -> list[int]:
    """What enters a block is held, and what is to be kept of what its backward part uses; the rest comes again."""
    writer, held = Writer(blocks), []
    for b in range(blocks.count):
        made = {v for i in blocks.nodes[b] for v in blocks.graph.nodes[i].outputs}
        held.append(blocks.crossing[b + 1] | (kept & made))
        writer.run(b, b + 1, held[-1])
    for b in reversed(range(blocks.count)):
        writer.backward(b)
        writer.release(held[b])
    return writer.sequence


def halves(blocks: Blocks) -> list[int]:
    """The first half is left with nothing but its end, and comes again when the second half is done; so within each."""
    writer = Writer(blocks)

    def run(start: int, stop: int) -> None:
        if stop - start == 1:
            writer.run(start, stop, frozenset())
            writer.backward(start)
            return
        middle = (start + stop) // 2
        writer.run(start, middle, blocks.crossing[middle])
        run(middle, stop)
        writer.release(blocks.crossing[middle])
        run(start, middle)

    run(0, blocks.count)
    return writer.sequence
