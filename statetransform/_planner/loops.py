"""Loops within a function, opened: the same function with the schedules of `scan(checkpoint=...)` for its scans.

A plain scan is one operation to the planner, with the residuals of all its steps as one value. For each budget there
are a few versions of the function, in which the scans that remember much share a part of the budget.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.extend.core as jex

from .._checkpointed_loops.budget import MemoryBudget
from .._checkpointed_loops.loops import scan as binomial_scan
from .._core import jaxcompat
from .._core.errors import BudgetError
from .._jaxpr.rewrite import evaluate
from .._jaxpr.walk import moving
from .cost import counts_of_scan


@dataclasses.dataclass(frozen=True)
class Opened:
    """A version: the closed jaxpr, what was chosen for each loop, and the bytes of that together."""

    jaxpr: Any
    key: tuple[Any, ...]
    bytes: int = 0


def scans_in(closed: Any) -> list[Any]:
    """The scans at the top level of a jaxpr, in order."""
    return [eqn for eqn in jaxcompat.opened(closed).eqns if _can_open(eqn)]


def _can_open(eqn: Any) -> bool:
    return eqn.primitive.name == "scan" and eqn.params["length"] > 2 and not eqn.effects


def with_budget(closed: Any, size: int, moves: Sequence[bool]) -> Opened:
    """With at most so many bytes for each loop.

    Args:
      closed: the closed jaxpr of the function.
      size: the bytes.
      moves: which of its inputs are differentiated.

    Raises:
      BudgetError: one of them cannot do with that.
    """
    chosen: list[Any] = []

    with_tangent = moving(closed, moves)

    def run(eqn: Any, inputs: Sequence[Any], body: Any, init: Any, xs: Any, options: dict[str, Any]) -> Any:
        given = zip(eqn.invars, inputs, strict=True)
        still = {id(x) for atom, x in given if isinstance(atom, jex.Literal) or atom not in with_tangent}
        budget = MemoryBudget(size)
        out = binomial_scan(body, init, xs, checkpoint=budget, is_still=lambda x: id(x) in still, **options)
        chosen.append(budget.choices[-1])
        return out

    jaxpr = _rewritten(closed, run)
    return Opened(jaxpr, tuple((c.carries, c.block) for c in chosen), sum(c.bytes for c in chosen))


def with_least(closed: Any, moves: Sequence[bool]) -> Opened:
    """With as few bytes for each loop as the most demanding one can do with."""
    size = 1
    while True:
        try:
            return with_budget(closed, size, moves)
        except BudgetError as error:
            size = error.least if error.least is not None and error.least > size else 2 * size


def with_steps(closed: Any, keeps_products: bool = False) -> Opened:
    """With each step recomputed from its carry, or from that and its products."""
    policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable if keeps_products else None
    step = lambda body: jax.checkpoint(body, prevent_cse=False, policy=policy)
    run = lambda eqn, inputs, body, init, xs, options: jax.lax.scan(step(body), init, xs, **options)
    return Opened(_rewritten(closed, run), ("products" if keeps_products else "step",))


def _rewritten(closed: Any, run: Any) -> Any:
    body, consts = jaxcompat.opened(closed), jaxcompat.consts_of(closed)

    def visit(eqn: Any, inputs: Sequence[Any], source: Any) -> Sequence[Any] | None:
        del source
        return _scan(eqn, inputs, run) if _can_open(eqn) else None

    avals = [
        jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype, weak_type=getattr(v.aval, "weak_type", False))
        for v in body.invars
    ]
    return jax.make_jaxpr(lambda *args: evaluate(body, consts, args, visit))(*avals)


def _scan(eqn: Any, inputs: Sequence[Any], run: Any) -> Sequence[Any]:
    params = eqn.params
    inner, inner_consts = jaxcompat.opened(params["jaxpr"]), jaxcompat.consts_of(params["jaxpr"])
    n_consts, n_carry = counts_of_scan(eqn)
    consts, init, xs = inputs[:n_consts], inputs[n_consts : n_consts + n_carry], inputs[n_consts + n_carry :]

    def body(carry: Sequence[Any], x: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        out = jaxcompat.eval_jaxpr(inner, inner_consts, *consts, *carry, *x)
        return out[:n_carry], out[n_carry:]

    options = {"length": params["length"], "reverse": params["reverse"], "unroll": params["unroll"]}
    carry, ys = run(eqn, inputs, body, list(init), list(xs), options)
    return [*carry, *ys]
