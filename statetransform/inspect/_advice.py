"""What a report of residuals says besides: what has no gradient, what a budget recomputes, what does not help."""

from __future__ import annotations

import warnings
from collections import Counter
from typing import Any

import jax

from .. import _jax
from .._jax import is_remat
from .._memory.programs.flops import equation_flops, jaxpr_flops
from .._memory.programs.rewrite import is_budgeted
from .._memory.programs.sizes import format_count
from .._memory.programs.walk import inner_jaxprs, walk
from ._gradient import GradientStep
from ._view import View

_AT_MOST = 6  # operations that are listed
_NEARLY_ALL = 0.9  # of the arithmetic: a region that holds so much is the whole function


def advise(view: View) -> list[str]:
    """What there is to say of a gradient besides what it keeps."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what there is to say is said here
        primal = jax.make_jaxpr(lambda *xs: view.fun(*xs)[0])(*view.inputs)
        notes = [*view.notes, *[f"The gradient for {name} is zero: it is not read." for name in view.unused]]
        if any(is_budgeted(site.eqn) for site in walk(primal)):
            notes.append(_recomputed(GradientStep.of(view, is_compiled=False)))
    return notes if view.notes else [*notes, *_around_all(primal)]  # around a step is the user's own loop


def _recomputed(step: GradientStep) -> str:
    """What the plans for budgets compute again, and at which cost."""
    plain = step.without_checkpoints()
    again = (_work(step.jaxpr) - _work(plain.jaxpr)).most_common()
    cost = step.flops / (plain.flops or 1)
    if cost < 1.005 or not again:
        return "Nothing is recomputed to meet the budget."
    listed = ", ".join(f"{what} ({format_count(flops)})" for what, flops in again[:_AT_MOST])
    rest = f", and {len(again) - _AT_MOST} more" if len(again) > _AT_MOST else ""
    return f"To meet the budget, the gradient step takes {cost:.2f} times the FLOPs. Recomputed: {listed}{rest}."


def _work(jaxpr: Any) -> Counter[str]:
    """FLOPs by primitive and line."""
    found: Counter[str] = Counter()
    for site in walk(jaxpr):
        if not inner_jaxprs(site.eqn) and site.source:
            found[f"{site.primitive} of {site.source.short}"] += site.repeats * equation_flops(site.eqn)
    return found


def _around_all(primal: Any) -> list[str]:
    """A sentence on a checkpoint that leaves the peak where it was: XLA recomputes a region as a whole."""
    sites = [site for site in walk(primal) if is_remat(site.eqn)]
    if len(sites) != 1 or sites[0].repeats > 1:
        return []
    jaxpr, policy = _jax.remat_params(sites[0].eqn)
    is_all = jaxpr_flops(jaxpr) >= _NEARLY_ALL * jaxpr_flops(primal)
    if policy not in (None, jax.checkpoint_policies.nothing_saveable) or not is_all:
        return []
    name = _jax.function_of(jaxpr)[0]
    return [
        f"The checkpoint{f' of {name}' if name else ''} is around nearly the whole function: all of it is recomputed "
        "at once, so the peak stays the same. Use one checkpoint for each of several pieces: each layer, or the body "
        "of a loop, `scan(checkpoint(body), ...)`."
    ]
