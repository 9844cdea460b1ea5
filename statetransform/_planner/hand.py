"""The plans that people write by hand: they are judged like all others, and improved.

Each block of the forward pass is computed again from what enters it, with what costs most for its bytes kept, or
without. A program does not say where a layer ends, so blocks of several lengths are tried, up to the whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from .blocks import PlanBlocks, PlanWriter, Row
from .graph import Graph

_BLOCKS = 64  # at most
_PIECES = 32
_KEEPING = 6  # ways to keep something at most


def written_by_hand(graph: Graph) -> Iterator[list[int]]:
    """Sequences of nodes, one for each way."""
    row = Row(graph)
    n = len(graph.primal)
    places = row.narrow()
    if len(places) < 2:  # as many bytes everywhere
        places = list(range(1, n))
    least = max(-(-len(places) // _BLOCKS), 1)
    kept = kept_by_hand(graph)
    for length in sorted({least * k for k in _lengths(len(places) // least)} | {max(n, 1)}):
        blocks = row.cut(places[length - 1 :: length])
        for some in kept:
            yield segments(graph, row, blocks, some)
    pieces = row.cut(range(length := max(-(-n // _PIECES), 1), n, length))  # where compilers fuse whole layers
    yield segments(graph, row, pieces, frozenset())


def _lengths(most: int) -> Iterator[int]:
    """1, 2, 3, 4, 6, 8, 12 and so on."""
    power = 1
    while power <= most:
        yield power
        if 2 < 3 * power // 2 <= most:
            yield 3 * power // 2
        power *= 2


def kept_by_hand(graph: Graph) -> list[frozenset[int]]:
    """What is kept in each block: nothing, all products, those without batches, those with the highest prices."""
    products = [i for i, node in enumerate(graph.nodes) if node.is_product and not node.is_backward]
    values = lambda some: frozenset(v for i in some for v in graph.nodes[i].outputs)
    price = lambda i: math.floor(math.log2(1 + max((graph.price[v] for v in graph.nodes[i].outputs), default=0.0)))
    found = [frozenset[int](), values(products), values(i for i in products if not graph.nodes[i].is_batched)]
    levels = sorted(set(map(price, products)))
    found += [values(i for i in products if price(i) >= level) for level in levels]
    return list(dict.fromkeys(found))[:_KEEPING]


def segments(graph: Graph, row: Row, blocks: PlanBlocks, kept: frozenset[int]) -> list[int]:
    """What enters a block is held, and what is to be kept of what its backward part uses; the rest comes again."""
    writer, held = PlanWriter(graph, row, blocks), []
    for b in range(blocks.count):
        made = {v for i in blocks.nodes[b] for v in graph.nodes[i].outputs}
        held.append(blocks.crossing[b + 1] | (kept & made))
        writer.run(b, b + 1, held[-1])
    for b in reversed(range(blocks.count)):
        writer.backward(b)
        writer.release(held[b])
    return writer.sequence
