"""Loops within a function, opened: the same function with the schedules of `scan(checkpoint=...)` for its scans.

A plain scan is one operation to the planner, with the residuals of all its steps as one value. For each budget there
are a few versions of the function, in which the scans that remember much share a part of the budget.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend.core as jex

from .. import _jaxcompat as jaxcompat
from .._jaxpr.primitives import Kind, kind_of
from .._jaxpr.rewrite import evaluate
from .._jaxpr.walk import inner_jaxprs, moving
from .._loops.budget import MemoryBudget
from .._loops.loops import scan as binomial_scan
from .._state.errors import BudgetError
from .cost import counts_of_scan


@dataclasses.dataclass(frozen=True)
class Opened:
    """A version: the closed jaxpr, what was chosen for each loop, and the bytes of that together."""

    jaxpr: Any
    key: tuple[Any, ...]
    bytes: int = 0


def scans_in(closed: Any) -> list[Any]:
    """The scans of a jaxpr without calls, and of its branches, in order. Those in the step of a scan are not listed."""
    found = []
    for eqn in jaxcompat.opened(closed).eqns:
        if _can_open(eqn):
            found.append(eqn)
        elif kind_of(eqn) is Kind.BRANCH:
            found += [scan for inner in inner_jaxprs(eqn) for scan in scans_in(inner.jaxpr)]
    return found


def _can_open(eqn: Any) -> bool:
    return eqn.primitive.name == "scan" and eqn.params["length"] > 2


def _looked_at(closed: Any) -> set[Any]:
    """The variables of a jaxpr and of its branches."""
    body = jaxcompat.opened(closed)
    found = {*body.constvars, *body.invars, *[var for eqn in body.eqns for var in eqn.outvars]}
    for eqn in body.eqns:
        if kind_of(eqn) is Kind.BRANCH:
            found.update(*[_looked_at(inner.jaxpr) for inner in inner_jaxprs(eqn)])
    return found


def _with_tangent(closed: Any, moves: Sequence[bool]) -> set[Any]:
    """The variables of a jaxpr and of its branches that can have a tangent if some of its inputs have one."""
    found = moving(closed, moves)
    for eqn in jaxcompat.opened(closed).eqns:
        if kind_of(eqn) is Kind.BRANCH:
            given = [not isinstance(atom, jex.Literal) and atom in found for atom in eqn.invars[1:]]
            found.update(*[_with_tangent(inner.jaxpr, given) for inner in inner_jaxprs(eqn)])
    return found


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
    looked_at, with_tangent = _looked_at(closed), _with_tangent(closed, moves)
    is_still = lambda atom: isinstance(atom, jex.Literal) or (atom in looked_at and atom not in with_tangent)

    def run(size: int, loop: ScanLoop) -> Any:
        still = {id(x) for atom, x in zip(loop.atoms, loop.inputs, strict=True) if is_still(atom)}
        budget = MemoryBudget(max(size, 1))
        scan = functools.partial(binomial_scan, checkpoint=budget, is_still=lambda x: id(x) in still, **loop.options)
        try:
            out = scan(loop.body(None), loop.init, loop.xs)
        except BudgetError:
            if not loop.has_loops:
                raise
            out = scan(loop.body(functools.partial(run, size // 2)), loop.init, loop.xs)
        chosen.append(budget.choices[-1])
        return out

    jaxpr = _rewritten(closed, functools.partial(run, size))
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
    """With each step recomputed from its carry, or from that and its products; so in loops that are in a step."""
    policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable if keeps_products else None
    step = functools.partial(jax.checkpoint, prevent_cse=False, policy=policy)
    run = lambda loop: jax.lax.scan(step(loop.body(run)), loop.init, loop.xs, **loop.options)
    return Opened(_rewritten(closed, run), ("products" if keeps_products else "step",))


@dataclasses.dataclass(frozen=True)
class ScanLoop:
    """A scan with its inputs.

    Attributes:
      eqn: the equation.
      inputs: the values of its operands.
    """

    eqn: Any
    inputs: Sequence[Any]

    @property
    def atoms(self) -> Sequence[Any]:
        """Its operands."""
        return self.eqn.invars

    @property
    def options(self) -> dict[str, Any]:
        """Its length, direction and unrolling."""
        return {name: self.eqn.params[name] for name in ("length", "reverse", "unroll")}

    @property
    def init(self) -> list[Any]:
        """The values of the carry before the first step."""
        n_consts, n_carry = counts_of_scan(self.eqn)
        return list(self.inputs[n_consts : n_consts + n_carry])

    @property
    def xs(self) -> list[Any]:
        """What it runs over."""
        return list(self.inputs[sum(counts_of_scan(self.eqn)) :])

    @property
    def has_loops(self) -> bool:
        """Whether there are loops to open in its step."""
        return bool(scans_in(self.eqn.params["jaxpr"]))

    def body(self, run: Run | None) -> Callable[[Any, Any], tuple[list[Any], list[Any]]]:
        """Its step, with the loops in it run in some way; None for as they are."""
        inner, inner_consts = jaxcompat.opened(self.eqn.params["jaxpr"]), jaxcompat.consts_of(self.eqn.params["jaxpr"])
        n_consts, n_carry = counts_of_scan(self.eqn)
        consts = self.inputs[:n_consts]

        def body(carry: Sequence[Any], x: Sequence[Any]) -> tuple[list[Any], list[Any]]:
            out = _run_with(inner, inner_consts, [*consts, *carry, *x], run)
            return out[:n_carry], out[n_carry:]

        return body


Run = Callable[[ScanLoop], tuple[Sequence[Any], Sequence[Any]]]


def _run_with(body: Any, consts: Sequence[Any], inputs: Sequence[Any], run: Run | None) -> list[Any]:
    """Evaluates an open jaxpr with its loops run in some way."""
    if run is None:
        return jaxcompat.eval_jaxpr(body, consts, *inputs)

    def visit(eqn: Any, inputs: Sequence[Any], place: Any) -> Sequence[Any] | None:
        del place
        if not _can_open(eqn):
            return None
        carry, ys = run(ScanLoop(eqn, inputs))
        return [*carry, *ys]

    return evaluate(body, consts, inputs, visit)


def _rewritten(closed: Any, run: Run) -> Any:
    body, consts = jaxcompat.opened(closed), jaxcompat.consts_of(closed)
    avals = [var.aval for var in body.invars]
    return jax.make_jaxpr(lambda *args: _run_with(body, consts, args, run))(*avals)
