"""What people write by hand: a checkpoint around each block of the forward pass, with a policy or without.

Blocks are looked for in two ways: by the source, where a line runs another function or the same one from its start
again, as the layers of a model do; and by size, such that few bytes cross their ends. The simulator rates each way as
a plan. The program itself is the function with its blocks under `jax.checkpoint`, which JAX differentiates, so that it
compiles to the same as if it had been written so.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
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
_NOWHERE = _jax.UserFrame("", 0, None, "")
_SHARES = [2 ** (-k / 2) for k in range(1, 13)]  # of the bytes that the forward pass computes, in the largest block

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


#: Blocks in a row: their ends among the forward nodes of a graph, and the first equation and end of each.
Cuts = tuple[tuple[int, ...], tuple[tuple[int, int], ...]]


def by_size(row: Row) -> list[tuple[int, ...]]:
    """The ends of blocks among the forward nodes of a graph; with and without one for what is behind the last one."""
    found = dict.fromkeys(tuple(row.ends(share * row.computed)) for share in _SHARES)
    found.update(dict.fromkeys((*ends, row.narrowest(ends[-1])) for ends in list(found) if ends))
    return [ends for ends in found if ends]


def by_source(closed: Any) -> list[tuple[tuple[int, int], ...]]:
    """Blocks of equations as the source has them: each layer, and several in a row together."""
    eqns = _jax.opened(closed).eqns
    frames = [_jax.user_frames(eqn, _DEPTH)[::-1] for eqn in eqns]
    pieces = _pieces(frames, 0, len(eqns), 0)
    works = [any(eqn.primitive.name in PRODUCTS | LOOPS for eqn in eqns[a:b]) for a, b in pieces]
    layers = [piece for piece, has_work in zip(pieces, works, strict=True) if has_work is any(works)]
    least = max(2, max((b - a for a, b in layers), default=0) // 8)
    layers = [(a, b) for a, b in layers if b - a >= least]
    return [
        tuple((some[0][0], some[-1][1]) for some in (layers[k : k + n] for k in range(0, len(layers), n)))
        for n in _LENGTHS
        if len(layers) > n
    ]


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


def plan_of(graph: Graph, row: Row, blocks: PlanBlocks, kept: frozenset[int]) -> list[int]:
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
