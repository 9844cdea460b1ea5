"""What people write by hand: a checkpoint around each block of the forward pass, with a policy or without.

Blocks are looked for in two ways: by the source, where a line runs another function or the same one from its start
again, as the layers of a model do; and by size, such that few bytes cross their ends. The simulator rates each way as
a plan. The program itself is the function with its blocks under `jax.checkpoint`, which JAX differentiates, so that it
compiles to the same as if it had been written so.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp

from ... import _jax
from .blocks import PlanBlocks, Row, backward_part
from .cost import LOOPS, PRODUCTS
from .graph import Graph
from .simulate import needed_nodes

_LENGTHS = (1, 2, 3)  # of blocks, in layers
_LARGE = 0.4  # of all equations: what is no layer, but something with layers in it
_DEPTH = 64  # lines of a stack
_WORK = PRODUCTS | LOOPS
_NOWHERE = _jax.UserFrame("", 0, None, "")
_SHARES = [2 ** (-k / 2) for k in range(1, 13)]  # of the bytes that the forward pass computes, in the largest block

#: What blocks, and the steps of loops, may keep, as people write it.
POLICIES: dict[str, Callable[..., Any] | None] = {
    "nothing": None,
    "dots": jax.checkpoint_policies.dots_saveable,
    "dots without batch": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}


@dataclasses.dataclass(frozen=True)
class Checkpoints:
    """Checkpoints around some blocks of a function.

    Attributes:
      blocks: first equation and end of each.
      policy: what the blocks keep, a key of `POLICIES`.
    """

    blocks: tuple[tuple[int, int], ...]
    policy: str


Pieces = tuple[tuple[int, int], ...]  # of a row of equations: first and end of each

#: Blocks in a row: their ends among the forward nodes of a graph, and the first equation and end of each.
Cuts = tuple[tuple[int, ...], Pieces]


def by_size(row: Row) -> list[tuple[int, ...]]:
    """The ends of blocks among the forward nodes of a graph; with and without one for what is behind the last one."""
    found = dict.fromkeys(tuple(row.ends(share * row.computed)) for share in _SHARES)
    found.update(dict.fromkeys((*ends, row.narrowest(ends[-1])) for ends in list(found) if ends))
    return [ends for ends in found if ends]


def by_source(closed: Any) -> list[Pieces]:
    """Blocks of equations as the source has them: each layer, and several in a row together.

    Layers are the calls of functions, and also what loops repeat, without what is before and behind these.
    """
    eqns = _jax.opened(closed).eqns
    frames = [_jax.user_frames(eqn, _DEPTH)[::-1] for eqn in eqns]
    names = [eqn.primitive.name for eqn in eqns]
    loops = _repeated(frames, names, 0, len(eqns), 0)
    layers = _layers([piece for row in loops for piece in row], names)
    rows = [tuple(piece for piece in row if piece in layers) for row in loops]
    found = dict[Pieces, None]()
    for some in ([_layers(_pieces(frames, 0, len(eqns), 0), names)], rows):
        for n in _LENGTHS:
            groups = [row[k : k + n] for row in some for k in range(0, len(row), n)]
            if len(groups) > 1:
                found[tuple((group[0][0], group[-1][1]) for group in groups)] = None
    return list(found)


def _layers(pieces: Sequence[tuple[int, int]], names: Sequence[str]) -> Pieces:
    """Those with products, if there are some with products, without those that are small beside the others."""
    has_work = [not _WORK.isdisjoint(names[a:b]) for a, b in pieces]
    found = [piece for piece, has in zip(pieces, has_work, strict=True) if has is any(has_work)]
    least = max(2, max((b - a for a, b in found), default=0) // 8)
    return tuple((a, b) for a, b in found if b - a >= least)


def _repeated(frames: list[Any], names: Sequence[str], start: int, end: int, depth: int) -> list[Pieces]:
    """What each loop of the source repeats; of loops in one another the innermost that run most of the products."""
    line = lambda t: frames[t][depth][:2] if depth < len(frames[t]) else _NOWHERE[:2]
    if all(line(t) == _NOWHERE[:2] for t in range(start, end)):
        return []
    found = list[Pieces]()
    for a, b in _loops(list(map(line, range(start, end))), start):
        pieces = list(itertools.pairwise(_times(frames, names, a, b, depth)))
        layers = _layers(pieces, names)
        if len(layers) > 1 and any(names[a:b] == names[b:c] for (a, b), (_, c) in itertools.pairwise(pieces)):
            inner = [row for piece in layers for row in _repeated(frames, names, *piece, depth)]
            work = lambda rows: sum(name in _WORK for row in rows for a, b in row for name in names[a:b])
            found += inner if 2 * work(inner) > work([layers]) else [layers]
            continue
        for _, run in itertools.groupby(range(a, b), line):
            own = list(run)
            found += _repeated(frames, names, own[0], own[-1] + 1, depth + 1)
    return found


def _times(frames: list[Any], names: Sequence[str], start: int, end: int, depth: int) -> list[int]:
    """Where a loop begins again, and its end: where the same runs again behind the same, or where its lines go back.

    Behind the last time, the same line may go on with what the loop gave. If it goes on with other calls, what runs
    again is a loop in one of these.
    """
    places = [(names[t], tuple(frames[t][depth:])) for t in range(start, end)]
    ends = {some: start + k + 1 for k, some in enumerate(places)}
    again = [t for t in range(start + 1, end) if places[t - start] == places[0] != places[t - start - 1]]
    for before in dict.fromkeys(places[t - start - 1] for t in again):
        if all(len(frames[t]) <= depth + 1 for t in range(ends[before], end)):
            return [start, *[t for t in again if places[t - start - 1] == before], ends[before]]
    line = lambda t: frames[t][depth][:2] if depth < len(frames[t]) else _NOWHERE[:2]
    return [start, *[t for t in range(start + 1, end) if line(t) < line(t - 1) and line(t) <= line(start)], end]


def _loops(lines: list[tuple[str, int]], start: int) -> list[tuple[int, int]]:
    """Parts of some equations that run lines between which their lines go back, and those that run one line."""
    spans = list[tuple[tuple[str, int], tuple[str, int]]]()
    for low, high in sorted((b, a) for a, b in itertools.pairwise(lines) if a[0] == b[0] and b < a):
        if spans and low <= spans[-1][1]:
            low, high = spans[-1][0], max(high, spans.pop()[1])
        spans.append((low, high))
    span = lambda t: next((some for some in spans if some[0] <= lines[t] <= some[1]), (lines[t], lines[t]))
    runs = [list(run) for _, run in itertools.groupby(range(len(lines)), span)]
    return [(start + run[0], start + run[-1] + 1) for run in runs]


def _pieces(frames: list[Any], start: int, end: int, depth: int) -> list[tuple[int, int]]:
    """Where the line at some depth of the stack is another one, or what it calls begins again."""
    line = lambda t: frames[t][depth] if depth < len(frames[t]) else _NOWHERE
    callee = lambda t: frames[t][depth + 1] if depth + 1 < len(frames[t]) else _NOWHERE
    place = lambda t: (line(t)[:2], callee(t).file, callee(t).function)
    found, first = list[int](), start
    for _, run in itertools.groupby(range(start, end), place):
        own = list(run)
        found.append(first := own[0])
        is_one_line = len({callee(t).line for t in own}) == 1
        for t in own[1:]:
            if callee(t).line < callee(t - 1).line or (is_one_line and callee(t) == callee(first) != callee(t - 1)):
                found.append(first := t)
    pieces = list(itertools.pairwise([*found, end]))
    is_deep = any(depth + 1 < len(frames[t]) for t in range(start, end))
    if not is_deep:
        return pieces
    large = lambda a, b: b - a > _LARGE * len(frames)
    return [some for a, b in pieces for some in (_pieces(frames, a, b, depth + 1) if large(a, b) else [(a, b)])]


def kept_by(graph: Graph) -> dict[str, frozenset[int]]:
    """The values that each policy keeps; one policy of those that keep the same."""
    # JAX rounds what a policy keeps, and does not know how to round complex numbers.
    is_complex = lambda node: any(jnp.issubdtype(v.aval.dtype, jnp.complexfloating) for v in node.eqns[-1].outvars)
    dots = [node for node in graph.nodes if node.is_product and not node.is_backward]
    if any(node.eqns and is_complex(node) for node in dots):
        dots = []
    matrices = [node for node in dots if not node.is_batched]
    found = {"nothing": frozenset[int]()}
    for policy, some in (("dots", dots), ("dots without batch", matrices)):
        values = frozenset(v for node in some for v in node.outputs)
        if values not in found.values():
            found[policy] = values
    return found


def plan_of(graph: Graph, blocks: PlanBlocks, kept: frozenset[int]) -> list[int]:
    """What enters a block is held, and what is to be kept of what its backward part uses; the rest comes again."""
    held, sequence = [graph.free], list[int]()
    for b, nodes in enumerate(blocks.nodes):
        made = {v for i in nodes for v in graph.nodes[i].outputs}
        own = blocks.crossing[b + 1] | (kept & made)
        wanted = own.union(*(graph.nodes[i].inputs for i in nodes))
        sequence += sorted({*nodes, *needed_nodes(graph, wanted, held[-1] | made)})
        held.append(held[-1] | own)
    for b in reversed(range(blocks.count)):
        sequence += backward_part(graph, blocks.backward[b], held[b + 1])
    return sequence


def with_checkpoints(closed: Any, checkpoints: Checkpoints) -> Any:
    """A function with some of its equations under `jax.checkpoint`.

    Args:
      closed: its closed jaxpr.
      checkpoints: what they are around.
    """
    body, consts = _jax.opened(closed), _jax.consts_of(closed)
    policy, parts, at = POLICIES[checkpoints.policy], list[tuple[Any, bool]](), 0
    for start, end in (*checkpoints.blocks, (len(body.eqns), len(body.eqns))):
        # What is pooled is held anyway. Behind a barrier it is a copy: in a U-Net, half of the plain step's bytes.
        first = next((t for t in range(start, end) if not body.eqns[t].primitive.name.startswith("reduce_window")), end)
        parts += [(_part(body, at, first), False), (_part(body, first, end), True)]
        at = end

    def run(*inputs: Any) -> list[Any]:
        env = dict(zip([*body.constvars, *body.invars], [*consts, *inputs], strict=True))
        for part, is_checkpointed in parts:
            block = lambda *xs, part=part: _jax.eval_jaxpr(part, (), *xs)
            block = jax.checkpoint(block, policy=policy) if is_checkpointed else block
            env.update(zip(part.outvars, block(*[env[var] for var in part.invars]), strict=True))
        return [atom.val if isinstance(atom, jex.Literal) else env[atom] for atom in body.outvars]

    return jax.make_jaxpr(run)(*[var.aval for var in body.invars])


def _part(body: Any, start: int, end: int) -> Any:
    """Some equations of a jaxpr, from what they read to what is read behind them."""
    eqns, variables = body.eqns[start:end], lambda atoms: [a for a in atoms if not isinstance(a, jex.Literal)]
    made = {var: None for eqn in eqns for var in eqn.outvars}
    read = dict.fromkeys(var for eqn in eqns for var in variables(eqn.invars) if var not in made)
    later = {var for eqn in body.eqns[end:] for var in variables(eqn.invars)} | set(variables(body.outvars))
    part = _jax.part_of(body, list(read), [var for var in made if var in later], eqns)
    return part.replace(constvars=[])  # those that it reads are among its inputs
