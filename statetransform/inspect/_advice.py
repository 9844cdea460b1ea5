"""What is said about checkpoints and policies that do not do what they seem to do.

Each finding is from a count and not from a guess: the policy is asked about every equation of the region, and the
function is differentiated without the checkpoint. What follows from the counts rests on a measurement of XLA: a region
is recomputed as a whole before its backward pass starts, so what is recomputed at once is not saved, however little was
kept in the meantime.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections import Counter
from typing import Any

import jax

from .. import _jaxcompat as jaxcompat
from .._jaxcompat import is_remat
from .._jaxpr.flops import equation_flops, jaxpr_flops
from .._jaxpr.primitives import SEPARATE, Kind, kind_of
from .._jaxpr.rewrite import inlined, is_budgeted
from .._jaxpr.sizes import format_bytes, format_count
from .._jaxpr.walk import Site, find, inner_jaxprs, names_in, walk
from .._planner.view import View
from ..policies._policy import ask, describe, is_kept, names_of
from ._gradient import GradientStep, Halves
from ._origins import list_residuals

_AT_MOST = 6  # checkpoints that are looked at one by one
_NEARLY_ALL = 0.9  # of the arithmetic: a region that holds so much is the whole function


def advise(view: View, halves: Halves) -> list[str]:
    """One sentence for each checkpoint that cannot lower memory, and for each policy that keeps nothing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what there is to say is said here
        primal = jax.make_jaxpr(lambda *xs: view.fun(*xs)[0])(*view.inputs)
        regions = find(primal, lambda site: is_remat(site.eqn) and not any(map(is_remat, site.path)))
        notes = [*view.notes, *[f"The gradient for {name} is zero: it is not read." for name in view.unused]]
        if any(is_budgeted(site.eqn) for site in walk(primal)):
            notes.append(_recomputed(GradientStep.of(view, is_compiled=False)))
        places: dict[Any, list[Site]] = {}
        for site in regions:
            places.setdefault(_where(site), []).append(site)
        for sites in list(places.values())[:_AT_MOST]:
            notes += _about(sites, regions, primal, view, halves)
    return notes


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


def _about(sites: list[Site], regions: list[Site], primal: Any, view: View, halves: Halves) -> list[str]:
    """What there is to say of the checkpoints on one line, if anything: one sentence."""
    site = sites[0]
    where = _where(site)
    jaxpr, policy = jaxcompat.remat_params(site.eqn)
    if policy is not None and policy is not jax.checkpoint_policies.nothing_saveable:
        return [] if _keeps(policy, jaxpr) else [_idle(policy, jaxpr, where)]
    kept, without = list_residuals(halves), list_residuals(Halves(_without(sites, primal, view)))
    again = Counter(without) - Counter(kept)
    computed = sum(n * record.bytes for record, n in again.items() if record.kind in ("computed", "named"))
    looped = sum(n * record.bytes for record, n in again.items() if record.iterations > site.repeats)
    if looped and 2 * looped >= computed and not find(jaxpr, lambda s: is_remat(s.eqn)):
        longest = max(record.iterations for record in again) // site.repeats
        return [
            f"The {where} is around a whole loop: when it runs again, the residuals of all {longest} iterations "
            f"({format_bytes(looped)}) are there at once, as many as without it; put the checkpoint on the body of "
            "the loop, `scan(checkpoint(body), ...)`."
        ]
    size, size_without = (sum(record.bytes for record in records) for records in (kept, without))
    if size >= size_without > 0:
        fuses = all(kind_of(inside.eqn) not in (*SEPARATE, Kind.RULE) for inside in walk(jaxpr))
        why = ", since it holds elementwise operations only, which XLA fuses" if fuses else ""
        return [
            f"The {where} does not lower what is kept ({format_bytes(size)} with it, {format_bytes(size_without)} "
            f"without){why}; remove it, or put it around a larger piece."
        ]
    if view.notes:  # a step: the user's own loop is around it
        return []
    whole = jaxpr_flops(primal).operations
    if len(regions) == 1 and site.repeats == 1 and jaxpr_flops(jaxpr).operations >= _NEARLY_ALL * whole and computed:
        return [
            f"The {where} is around nearly the whole function: all that it does not keep ({format_bytes(computed)}) is "
            "recomputed at once, so the peak stays the same; use one checkpoint for each of several "
            "pieces, each layer for example."
        ]
    return []


def _where(site: Site) -> str:
    """How a sentence speaks of a checkpoint: by the function and its first line that computes anything."""
    jaxpr = jaxcompat.remat_params(site.eqn)[0]
    name, _ = jaxcompat.function_of(jaxpr)
    source = next((inner.source for inner in walk(jaxpr) if inner.source), site.source)
    place = f" ({source.short})" if source else ""
    return f"checkpoint of {name}{place}" if name else f"checkpoint{place}"


def _keeps(policy: Any, jaxpr: Any) -> bool:
    """Whether a policy keeps anything at all of a region."""
    for site in walk(jaxpr):
        try:
            verdict = ask(
                policy, site.eqn.primitive, tuple(v.aval for v in site.eqn.invars), site.eqn.params, site.source
            )
        except Exception:  # a user's policy may expect parameters that only JAX passes
            return True
        if is_kept(verdict):
            return True
    return False


def _idle(policy: Any, jaxpr: Any, where: str) -> str:
    dots, seen = find(jaxpr, lambda site: site.primitive == "dot_general"), names_in(jaxpr)
    is_about_dots = "dot" in describe(policy)
    if is_about_dots and not dots:
        why = "there is no matrix product in it; name what is expensive and try `policies.save_only_these_names`"
    elif is_about_dots and all(any(site.eqn.params["dimension_numbers"][1]) for site in dots):
        why = (
            f"the matrix products there, {len(dots)}, all have a batch dimension, as under `vmap` over weights; "
            "try `policies.dots_saveable`"
        )
    elif not names_of(policy) and "names" not in describe(policy).lower():
        why = "it chooses none of the values there; try `policies.dots_saveable`, or name what is expensive"
    elif not seen:
        why = "no value there has a name; give one with `checkpoint_name(value, name)`"
    else:
        have = ", ".join(map(repr, seen))
        why = f"the names there are {have}; try `policies.save_only_these_names` with one of these"
    return f"The policy {describe(policy)} of the {where} keeps nothing: {why}."


def _without(sites: list[Site], primal: Any, view: View) -> View:
    """The function without some of its checkpoints."""
    removed = {id(site.eqn) for site in sites}
    plain = inlined(primal, only=lambda eqn: id(eqn) in removed)
    return dataclasses.replace(view, fun=lambda *xs: (jaxcompat.run(plain, *xs), []))
