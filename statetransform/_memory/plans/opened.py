"""Loops within a function, opened: the same function with the schedules of `scan(checkpoint=...)` for its scans.

A plain scan is one operation to the planner, with the residuals of all its steps as one value. There are some versions
of the function in which each scan has fewer bytes, the same for whatever budget, and those with a checkpoint around
each step, as people write them.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp

from ... import _jax
from ..._base.errors import BudgetError
from ..loops.budget import MemoryBudget
from ..loops.loops import scan as binomial_scan
from ..programs.primitives import Kind, kind_of
from ..programs.rewrite import Visitor, evaluate, rescanned, rewrite
from ..programs.walk import counts_of_scan, inner_jaxprs, moving, walk
from .checkpoints import POLICIES
from .cost import is_batched


@dataclasses.dataclass(frozen=True)
class Opened:
    """A version: the closed jaxpr, what was chosen for each loop, and the bytes of that together."""

    jaxpr: Any
    key: tuple[Any, ...]
    bytes: int = 0


def scans_in(closed: Any) -> list[Any]:
    """The scans of a jaxpr without calls, and of its branches, in order. Those in the step of a scan are not listed."""
    found = []
    for eqn in _jax.opened(closed).eqns:
        if _can_open(eqn):
            found.append(eqn)
        elif kind_of(eqn) is Kind.BRANCH:
            found += [scan for inner in inner_jaxprs(eqn) for scan in scans_in(inner.jaxpr)]
    return found


def _can_open(eqn: Any) -> bool:
    return eqn.primitive.name == "scan" and eqn.params["length"] > 2


def with_inputs_in_place(closed: Any, moves: Sequence[bool]) -> Any:
    """With scans that read what was transposed for them, as `vmap` does it for data of a batch, from where it was.

    A compiler copies what is transposed for a loop, before the forward pass and before the backward pass. What has
    tangents stays as it is: its cotangents are stacked in the order of the steps. So do loops within loops and within
    branches, where it is not known what has tangents.

    Args:
      closed: the closed jaxpr.
      moves: which of its inputs are differentiated.
    """
    with_tangent = moving(closed, moves)
    is_moved = lambda eqn: (
        eqn.primitive.name == "transpose" and eqn.params["permutation"] and eqn.outvars[0] not in with_tangent
    )
    if not any(map(is_moved, _jax.opened(closed).eqns)):
        return closed
    transposed: dict[int, tuple[Any, Any, int]] = {}  # by identity: the array, what it was made of, the axis of steps

    def visit(eqn: Any, inputs: Sequence[Any], place: Any) -> Sequence[Any]:
        del place
        first = sum(counts_of_scan(eqn)) if _can_open(eqn) else len(inputs)
        sources = {i: found[1:] for i, x in enumerate(inputs[first:]) if (found := transposed.get(id(x)))}
        if not sources:
            out = _jax.bind(eqn.primitive, inputs, eqn.params)
            if is_moved(eqn):
                axis, *rest = eqn.params["permutation"]
                if rest == sorted(rest):
                    transposed[id(out[0])] = out[0], inputs[0], axis
            return out
        inner, consts = _jax.opened(eqn.params["jaxpr"]), _jax.consts_of(eqn.params["jaxpr"])

        def step(*values: Any) -> list[Any]:
            *before, at = values
            for i, (x, axis) in sources.items():
                before.insert(first + i, jax.lax.dynamic_index_in_dim(x, at, axis, keepdims=False))
            return _jax.eval_jaxpr(inner, consts, *before)

        others = [x for i, x in enumerate(inputs) if i - first not in sources]
        carry, ys = rescanned(jax.lax.scan, eqn, [*others, jnp.arange(eqn.params["length"])], step)
        return [*carry, *ys]

    return rewrite(closed, visit)


def with_budget(closed: Any, size: int, moves: Sequence[bool]) -> Opened:
    """With at most so many bytes for each loop. Where a step needs more because of loops in it, these get half of them.

    Args:
      closed: the closed jaxpr of the function.
      size: the bytes.
      moves: which of its inputs are differentiated.

    Raises:
      BudgetError: one of them cannot do with that.
    """
    chosen: list[Any] = []
    body = _jax.opened(closed)
    without_tangent = {*body.constvars, *body.invars, *[var for eqn in body.eqns for var in eqn.outvars]}
    without_tangent -= moving(closed, moves)

    def run(size: int, eqn: Any, inputs: Sequence[Any]) -> Any:
        pairs = zip(eqn.invars, inputs, strict=True)
        still = {id(x) for atom, x in pairs if isinstance(atom, jex.Literal) or atom in without_tangent}
        budget = MemoryBudget(max(size, 1))
        scan = functools.partial(binomial_scan, checkpoint=budget, is_still=lambda x: id(x) in still)
        try:
            out = _scanned(scan, eqn, inputs)
        except BudgetError:
            if not scans_in(eqn.params["jaxpr"]):
                raise
            out = _scanned(scan, eqn, inputs, functools.partial(run, size // 2))
        chosen.append(budget.choices[-1])
        return out

    jaxpr = rewrite(closed, _running(functools.partial(run, size)))
    return Opened(jaxpr, tuple((c.carries, c.block) for c in chosen), sum(c.bytes for c in chosen))


def with_least(closed: Any, moves: Sequence[bool]) -> Opened:
    """With as few bytes for each loop as the most demanding one can do with."""
    size = 1
    while True:
        try:
            return with_budget(closed, size, moves)
        except BudgetError as error:
            size = error.least if error.least is not None and error.least > size else 2 * size


def with_steps(closed: Any, keeps: str) -> Opened:
    """With each step recomputed from its carry, or from that and what is kept; so in loops that are in a step.

    Args:
      closed: the closed jaxpr of the function.
      keeps: what is kept, a key of `POLICIES`.
    """
    policy = POLICIES[keeps]
    kept = policy and functools.partial(_is_kept, policy)
    step = functools.partial(jax.checkpoint, prevent_cse=False, policy=kept)
    scan = lambda body, *args, **options: jax.lax.scan(step(body), *args, **options)
    run = lambda eqn, inputs: _scanned(scan, eqn, inputs, run)
    return Opened(rewrite(closed, _running(run)), (keeps,))


def _is_kept(policy: Callable[..., Any], primitive: Any, *avals: Any, **params: Any) -> bool:
    """Whether to keep a product. JAX rounds what a policy keeps, and does not know how to round complex numbers."""
    is_one = policy(primitive, *avals, **params)
    return bool(is_one) and not any(jnp.issubdtype(aval.dtype, jnp.complexfloating) for aval in avals)


def has_batches(closed: Any) -> bool:
    """Whether the steps of loops have products of many matrices at once."""
    steps = (inner.jaxpr for scan in scans_in(closed) for inner in inner_jaxprs(scan))
    return any(
        site.eqn.primitive.name == "dot_general" and is_batched(site.eqn) for step in steps for site in walk(step)
    )


RunScan = Callable[[Any, Sequence[Any]], tuple[Sequence[Any], Sequence[Any]]]  # gives the carry and the outputs


def _scanned(scan: Callable[..., Any], eqn: Any, inputs: Sequence[Any], run: RunScan | None = None) -> Any:
    """The carry and outputs of a scan that runs in some way; so do the loops in its step, with `run`."""
    inner, inner_consts = _jax.opened(eqn.params["jaxpr"]), _jax.consts_of(eqn.params["jaxpr"])
    plain = functools.partial(_jax.eval_jaxpr, inner, inner_consts)
    step = plain if run is None else lambda *values: evaluate(inner, inner_consts, values, _running(run))
    return rescanned(scan, eqn, inputs, step)


def _running(run: RunScan) -> Visitor:
    """What runs the loops in some way where a jaxpr is rewritten."""

    def visit(eqn: Any, inputs: Sequence[Any], place: Any) -> Sequence[Any] | None:
        del place
        if not _can_open(eqn):
            return None
        carry, ys = run(eqn, inputs)
        return [*carry, *ys]

    return visit
