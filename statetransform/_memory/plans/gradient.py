"""The gradient step of a function: one jaxpr of both passes, without calls, and without what it would compute twice."""

from __future__ import annotations

import collections
import dataclasses
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.extend.core as jex

from ... import _jax
from ..context import ONE, Lanes
from ..loops.lanes import is_for_lanes
from ..programs.rewrite import inlined, sliced, without_dead
from . import cost
from .picks import without_scatters
from .tricks import PICKS


@dataclasses.dataclass(frozen=True)
class Pattern:
    """What is differentiated: a flag for each input, one for each output that has a cotangent, and how many at once."""

    inputs: tuple[bool, ...]
    outputs: tuple[bool, ...]
    lanes: Lanes = ONE


def gradient_step(closed: Any, pattern: Pattern, n_seen: int = 0) -> Callable[..., list[Any]]:
    """A gradient step: from inputs, and cotangents of the active outputs, to outputs and gradients.

    Args:
      closed: the closed jaxpr of the function, without constants that are tracers.
      pattern: what is differentiated.
      n_seen: how many of its last outputs are those of `seen_in`, which have no cotangents.
    """
    body, consts = _jax.opened(closed), _jax.consts_of(closed)
    n_inputs, n_outputs = len(body.invars), len(body.outvars) - n_seen

    def step(*xs: Any) -> list[Any]:
        inputs, cts = list(xs[:n_inputs]), list(xs[n_inputs:])
        which = [i for i, moves in enumerate(pattern.inputs) if moves]

        def some(*moving: Any) -> tuple[list[Any], list[Any]]:
            whole = list(inputs)
            for i, x in zip(which, moving, strict=True):
                whole[i] = x
            out = _jax.eval_jaxpr(body, consts, *whole)
            return [y for y, wanted in zip(out[:n_outputs], pattern.outputs, strict=True) if wanted], out

        _, pull, out = jax.vjp(some, *[inputs[i] for i in which], has_aux=True)
        return [*out, *pull(cts)]

    return step


def joint_step(closed: Any, pattern: Pattern, seen: Sequence[Any] = ()) -> Any:
    """The closed jaxpr of a gradient step.

    Args:
      closed: the closed jaxpr of the function, without constants that are tracers.
      pattern: what is differentiated.
      seen: variables of the function whose values are also returned, behind the outputs: see `seen_in`.
    """
    body = _jax.opened(closed)
    avals = [var.aval for var in body.invars]
    cotangents = [v.aval for v, wanted in zip(body.outvars, pattern.outputs, strict=True) if wanted]
    if seen:
        constants = dict(zip(body.constvars, _jax.consts_of(closed), strict=True))
        closed = _jax.with_equations(body, body.eqns, [*body.outvars, *seen], constants)
    step = gradient_step(closed, pattern, len(seen))
    return jax.make_jaxpr(step)(*avals, *[a.strip_weak_type() for a in cotangents])


def flattened(step: Any) -> Any:
    """A gradient step without calls, rules of derivatives and what is for lanes, and with nothing dead in its loops."""
    # Nothing differentiates them once more.
    flat = inlined(step, rules=True, passes=is_for_lanes)
    return without_dead(sliced(without_scatters(flat) if PICKS.is_on else flat))


def without_equal(flat: Any) -> Any:
    """A flattened gradient step that computes no product or loop twice, as where a function calls a network twice.

    Not for a step with checkpoints, which would lose its recomputation.

    Compilers merge equal operations as well, unless a barrier is between them. Without equal products there is little
    to gain. What is fused with its only user stays: it takes no memory there, and would take some to serve two.
    """
    body, eqns = _jax.opened(flat), list[Any]()
    is_variable = lambda atom: not isinstance(atom, jex.Literal)
    read_by = [(atom, eqn.primitive.name) for eqn in body.eqns for atom in eqn.invars if is_variable(atom)]
    uses = collections.Counter(atom for atom, _ in read_by)
    fusing = {atom for atom, name in read_by if name in cost.ELEMENTWISE | cost.REDUCTIONS}
    first, numbers, kept, is_worth = dict[Any, Any](), dict[Any, Any](), dict[Any, Any](), False
    read = lambda atom: kept.get(atom, atom) if is_variable(atom) else atom
    for eqn in body.eqns:
        outputs, name = first.setdefault(_known_by(eqn, numbers), eqn.outvars), eqn.primitive.name
        numbers.update(zip(eqn.outvars, outputs, strict=True))
        is_fused = name in cost.ELEMENTWISE and uses[eqn.outvars[0]] == 1 and eqn.outvars[0] in fusing
        if outputs is eqn.outvars or is_fused:
            eqns.append(eqn.replace(invars=list(map(read, eqn.invars))))
        else:
            is_worth |= name in cost.PRODUCTS | cost.LOOPS
            kept.update(zip(eqn.outvars, outputs, strict=True))
    consts = dict(zip(body.constvars, _jax.consts_of(flat), strict=True))
    if not is_worth:
        return flat
    return without_dead(_jax.with_equations(body, eqns, list(map(read, body.outvars)), consts))


def _known_by(eqn: Any, numbers: Mapping[Any, Any]) -> Any:
    """What is the same for equations that compute the same; the outputs where that cannot be said."""
    atoms = [(repr(a.val), a.aval) if isinstance(a, jex.Literal) else numbers.get(a, a) for a in eqn.invars]
    key = (eqn.primitive, *atoms, *sorted(eqn.params.items(), key=operator.itemgetter(0)))
    try:
        hash(key)
    except TypeError:  # some parameters are arrays
        return tuple(eqn.outvars)
    return tuple(eqn.outvars) if eqn.effects or not eqn.outvars else key


def seen_in(closed: Any) -> dict[Any, int]:
    """The arrays of a function that something in it reads, and which of its equations computes each.

    A gradient step returns them until it is flattened, so that its nodes are known by the equations of the function.
    """
    body = _jax.opened(closed)
    read = {atom for eqn in body.eqns for atom in eqn.invars if not isinstance(atom, jex.Literal)}
    made = ((var, t) for t, eqn in enumerate(body.eqns) for var in eqn.outvars)
    return {var: t for var, t in made if var in read and _jax.is_array_type(var.aval)}


def without_seen(step: Any, n_outputs: int, n_seen: int) -> Any:
    """The closed jaxpr of a gradient step that returns outputs and gradients only."""
    body = _jax.opened(step)
    outvars = [*body.outvars[:n_outputs], *body.outvars[n_outputs + n_seen :]]
    return _jax.with_equations(body, body.eqns, outvars, dict(zip(body.constvars, _jax.consts_of(step), strict=True)))
