"""Loops that others wrote, with few stored carries: a function in which every loop of JAX is a checkpointed one.

The function is traced, and its program is run again, equation by equation. A `scan` or `while` becomes the loop of
`loops`, also where it is inside another loop, a branch, a call, a checkpointed region, `shard_map`, or a derivative
rule. All other equations are bound as they are.

Three kinds of loops stay as they are: those without floating-point inputs, which no derivative reaches; those of this
package, whose user has said what they store; and what a primitive with rules of its own holds, such as the solver in
`custom_linear_solve`, which JAX does not differentiate.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp
from jax import lax

from ... import _jax
from ..._base.errors import BudgetError, PolicyWarning
from ..._base.sites import warn
from ..._jax import is_differentiable
from ..programs.primitives import Kind, kind_of
from ..programs.references import made_in
from ..programs.rewrite import changed_params, evaluate, rescanned, rewrite
from ..programs.sources import Place
from ..programs.walk import inner_jaxprs, is_rule_of_ours, moving, walk
from . import loops
from .budget import MemoryBudget
from .tangent import forward_only


class Rewriter:
    """Runs programs with other loops.

    Args:
      checkpoint: as for `loops.scan`.
      shared_by: how many loops share a budget's room on the device, and how many that far away.
      only_while: whether scans stay as they are: the plan of a function's budget opens them itself (`plans/opened.py`).
    """

    def __init__(
        self, checkpoint: int | str | MemoryBudget, shared_by: tuple[int, int], only_while: bool = False
    ) -> None:
        self._checkpoint, self._shared_by, self._only_while = checkpoint, shared_by, only_while
        self._options: dict[str, Any] = {"checkpoint": checkpoint, "shared_by": shared_by}  # of the loops
        self._in_steps: dict[int, Rewriter] = {}  # by the number of loops in the step
        self._changed: dict[int, tuple[Any, Any]] = {}  # by identity, with the program itself to keep it alive

    def _in_step(self, jaxpr: Any) -> Rewriter:
        """For the loops in the step of a loop: they share half of its budget, as what they store is alive in the step.

        They store nothing far away, so that a step has no files of its own.
        """
        if not isinstance(self._checkpoint, MemoryBudget):
            return self
        n = max(number_of_loops(jaxpr, self._only_while), 1)
        if n not in self._in_steps:
            half = max(self._checkpoint.bytes // self._shared_by[0] // 2, 1)
            near = dataclasses.replace(self._checkpoint, size=half, host=None, disk=None, folder=None)
            self._in_steps[n] = Rewriter(near, (n, 1), self._only_while)
        return self._in_steps[n]

    def changed(self, jaxpr: Any, caller: Place | None = None) -> Any:
        """A jaxpr with its loops treated, closed; the same object if there is none. What is shared stays shared."""
        if id(jaxpr) not in self._changed:
            new = jaxpr
            if any(map(_concerns, _jax.opened(jaxpr).eqns)):
                new = rewrite(jaxpr, self._visit, caller)
            self._changed[id(jaxpr)] = jaxpr, new
        return self._changed[id(jaxpr)][1]

    def _visit(self, eqn: Any, inputs: Sequence[Any], place: Place) -> Sequence[Any]:
        is_rule = kind_of(eqn) is Kind.RULE
        if not _concerns(eqn) or (is_rule and self._only_while):  # a rule has its loops run, and not reversed
            return _jax.bind(eqn.primitive, inputs, eqn.params)
        if eqn.primitive.name == "scan":
            return self._scan(eqn, inputs, place)
        if eqn.primitive.name == "while":
            return self._while(eqn, inputs, place)
        if eqn.primitive.name == "shard_map":
            return self._shard_map(eqn, inputs, place)
        change = lambda inner: self.changed(inner, place.inside(inner))
        if is_rule:
            is_jvp = eqn.primitive.name.startswith("custom_jvp")
            n_known = len(inputs) if is_jvp else None
            return _jax.bind_with_rules(eqn, inputs, lambda fun: self._rule(fun, n_known))
        if _jax.is_remat(eqn):
            inner, policy = _jax.remat_params(eqn)
            return _jax.bind_remat(change(inner), inputs, eqn.params.get("prevent_cse", True), policy)
        return _jax.bind(eqn.primitive, inputs, changed_params(eqn, change))

    def _rule(self, fun: Callable[..., Any], n_known: int | None) -> Callable[..., Any]:
        """A derivative rule, its loops treated when it is wanted.

        Those of tangents, which are all inputs but the first `n_known`, stay: they are linear, and JAX transposes them.
        """

        def treated(*xs: Any) -> list[Any]:
            jaxpr = jax.make_jaxpr(fun)(*xs)
            of_tangents = moving(jaxpr, [n_known is not None and i >= n_known for i in range(len(xs))])

            def visit(eqn: Any, inputs: Sequence[Any], place: Place) -> Sequence[Any]:
                if any(not isinstance(v, jex.Literal) and v in of_tangents for v in eqn.invars):
                    return _jax.bind(eqn.primitive, inputs, eqn.params)
                return self._visit(eqn, inputs, place)

            return evaluate(jaxpr.jaxpr, jaxpr.consts, xs, visit)

        return treated

    def _scan(self, eqn: Any, inputs: Sequence[Any], place: Place) -> list[Any]:
        params = eqn.params
        in_step = self if self._only_while else self._in_step(params["jaxpr"])
        inner = in_step.changed(params["jaxpr"], place.inside(params["jaxpr"]))
        obstacle = "" if self._only_while else _obstacle(eqn)
        if obstacle:
            warn(f"policies.loops: the scan{_at(place)} keeps all its residuals, since it {obstacle}.", PolicyWarning)
        scan: Callable[..., Any] = lax.scan
        if not obstacle and not self._only_while and _is_floating(eqn):
            scan = functools.partial(loops.scan, where=f"the scan{_at(place)}", **self._options)
        carry, ys = rescanned(scan, eqn, inputs, functools.partial(_jax.run, inner))
        return [*carry, *ys]

    def _while(self, eqn: Any, inputs: Sequence[Any], place: Place) -> list[Any]:
        if not _is_floating(eqn):
            return _jax.bind(eqn.primitive, inputs, eqn.params)
        params, where = eqn.params, f"the while_loop{_at(place)}"
        obstacle = _obstacle(eqn)
        if obstacle and self._only_while:  # it may not be differentiated
            return _jax.bind(eqn.primitive, inputs, params)
        if obstacle:
            raise TypeError(
                f"policies.loops: {where} {obstacle}, and reverse mode recomputes its steps. Take that out of the "
                "loop, or the loop out of the checkpointed function."
            )
        if isinstance(self._checkpoint, str):
            return forward_only(
                lambda *inputs: _jax.bind(eqn.primitive, inputs, params),
                f"policies.loops({self._checkpoint!r}): the number of steps of {where} is not known in advance, so "
                "that it takes a number of stored carries. Write policies.loops(20), for example.",
            )(*inputs)
        body = self._in_step(params["body_jaxpr"]).changed(params["body_jaxpr"], place.inside(params["body_jaxpr"]))
        n, m = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
        test = lambda carry: _jax.run(params["cond_jaxpr"], *inputs[:n], *carry)[0]
        step = lambda carry: _jax.run(body, *inputs[n:m], *carry)
        is_on, advance = _of_all_lanes(test, step) if params["cond_jaxpr"].out_avals[0].shape else (test, step)
        is_still = (lambda _: False) if self._only_while else None
        options: Any = {"where": where, "max_steps": None, "is_still": is_still, **self._options}
        return loops.while_loop(is_on, advance, list(inputs[m:]), **options)

    def _shard_map(self, eqn: Any, inputs: Sequence[Any], place: Place) -> list[Any]:
        params = eqn.params
        body, consts = _jax.opened(params["jaxpr"]), _jax.consts_of(params["jaxpr"])
        run = lambda *args: evaluate(body, consts, args, self._visit, place.inside(params["jaxpr"]))
        return jax.shard_map(
            run,
            mesh=params["mesh"],
            in_specs=tuple(params["in_specs"]),
            out_specs=list(params["out_specs"]),
            check_vma=params["check_vma"],
            axis_names=params["newly_manual_axes"],
        )(*inputs)


def _of_all_lanes(test: Callable[[Any], Any], step: Callable[[Any], Any]) -> tuple[Any, Any]:
    """The loop of a `while` under `vmap`, whose condition has a value for each lane: those that are done stay."""

    def advance(carry: Sequence[Any]) -> list[Any]:
        is_on = test(carry)
        spread = lambda x: is_on.reshape(is_on.shape + (1,) * (x.ndim - is_on.ndim))
        return [jnp.where(spread(old), new, old) for new, old in zip(step(carry), carry, strict=True)]

    return lambda carry: jnp.any(test(carry)), advance


def number_of_loops(jaxpr: Any, only_while: bool = False) -> int:
    """How many loops of a program (or `while` loops alone) store something while others run: not those in a step."""
    kind = lambda eqn: eqn.primitive.name == "while" if only_while else kind_of(eqn) is Kind.LOOP
    is_loop = lambda eqn: kind(eqn) and _is_floating(eqn)
    return sum(is_loop(site.eqn) and not any(map(is_loop, site.path)) for site in walk(jaxpr))


def with_reverse_mode(jaxpr: Any, size: int) -> Any:
    """A closed jaxpr whose `while` loops have a reverse mode: for the planner of a budget, which opens only scans.

    Together they have half of the bytes. Where that is not enough they store no carries, and the plan has to show
    whether the rest fits.
    """
    n = number_of_loops(jaxpr, only_while=True)
    if not n:
        return jaxpr
    try:
        return Rewriter(MemoryBudget(max(size // 2, 1)), (n, 1), only_while=True).changed(jaxpr)
    except BudgetError:
        return Rewriter(0, (1, 1), only_while=True).changed(jaxpr)


def _concerns(eqn: Any) -> bool:
    """Whether there is a loop in an equation, or a derivative rule, in which there may be one."""
    if kind_of(eqn) is Kind.LOOP:
        return True
    if kind_of(eqn) is Kind.RULE:
        return not is_rule_of_ours(eqn)
    is_entered = kind_of(eqn) in (Kind.CALL, Kind.BRANCH) or eqn.primitive.name == "shard_map"
    if not is_entered and not _jax.is_remat(eqn):
        return False
    return any(any(map(_concerns, _jax.opened(inner.jaxpr).eqns)) for inner in inner_jaxprs(eqn))


def _is_floating(eqn: Any) -> bool:
    """Whether an equation has something to differentiate."""
    return any(is_differentiable(v.aval) for v in eqn.invars) and any(is_differentiable(v.aval) for v in eqn.outvars)


def _obstacle(eqn: Any) -> str:
    """Why a loop can have no derivative rule of its own; empty if it can."""
    if not all(_jax.is_array_type(var.aval) for var in eqn.invars):
        return "reads or writes a `jax.Ref`"
    made = next((made for inner in inner_jaxprs(eqn) if (made := made_in(inner.jaxpr)) is not None), None)
    if made is not None:
        return f"makes a `jax.Ref`{made}"
    effects = _jax.effects_that_stay(eqn)
    return f"has an effect that is not to be repeated ({effects[0]})" if effects else ""


def _at(place: Place) -> str:
    return f" at {place.source.short}" if place.source else ""
