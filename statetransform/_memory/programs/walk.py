"""Walking over every equation of a jaxpr, into loops, branches, calls and custom rules."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax.extend.core as jex

from ... import _jax
from ..._jax import is_differentiable
from .primitives import Kind, kind_of
from .sources import Place, Source

MARK = "kept from "  # how the names begin that `policies.save_from` gives
# Where derivative rules are written whose primal function says all that a tangent depends on.
_MEMORY = pathlib.Path(__file__).resolve().parent.parent
_OURS = (f"{_MEMORY / 'loops'}/", f"{_MEMORY / 'plans'}/")


class Inner(NamedTuple):
    """A jaxpr inside an equation: what it is to the equation, and how often it runs when this is known."""

    jaxpr: Any
    role: str
    repeats: int | None


@dataclasses.dataclass(frozen=True, slots=True)
class Site:
    """One equation, the equations around it (outermost first), how often it runs, and where the user wrote it.

    ``repeats`` is the product over the loops around the equation; a loop of unknown length counts once.
    """

    eqn: Any
    path: tuple[Any, ...]
    repeats: int
    place: Place

    @property
    def source(self) -> Source | None:
        """The line of the user's code."""
        return self.place.source

    @property
    def primitive(self) -> str:
        """The name of the equation's primitive."""
        return self.eqn.primitive.name


def inner_jaxprs(eqn: Any) -> list[Inner]:
    """The jaxprs inside an equation.

    >>> import jax
    >>> loop = lambda x: jax.lax.fori_loop(0, 7, lambda i, x: x * 2, x)
    >>> [(i.role, i.repeats) for i in inner_jaxprs(jax.make_jaxpr(loop)(1.0).jaxpr.eqns[0])]
    [('body', 7)]
    """
    name, params = eqn.primitive.name, eqn.params
    if name == "scan":
        return [Inner(params["jaxpr"], "body", int(params["length"]))]
    if name == "while":
        return [Inner(params["cond_jaxpr"], "cond", None), Inner(params["body_jaxpr"], "body", None)]
    if name == "cond":
        return [Inner(branch, "branch", 1) for branch in params["branches"]]
    if _jax.is_remat(eqn):
        return [Inner(_jax.remat_params(eqn)[0], "remat", 1)]
    found = []
    for value in params.values():
        values = value if isinstance(value, (tuple, list)) else (value,)
        found += [Inner(v, "call", 1) for v in values if _jax.is_jaxpr(v)]
    return found


def counts_of_scan(eqn: Any) -> tuple[int, int]:
    """How many inputs of a scan are constants, and how many are carried.

    Read from the shapes, since releases write it down in different ways: stacked inputs and outputs have one axis more
    than what the body sees of them.
    """
    body = _jax.opened(eqn.params["jaxpr"])
    is_same = lambda outer, inner: len(outer.aval.shape) == len(inner.aval.shape)
    n_carry = sum(map(is_same, eqn.outvars, body.outvars))
    n_unstacked = sum(map(is_same, eqn.invars, body.invars))
    return n_unstacked - n_carry, n_carry


def walk(jaxpr: Any, path: tuple[Any, ...] = (), repeats: int = 1, caller: Place | None = None) -> Iterator[Site]:
    """Every equation of a jaxpr and of the jaxprs inside it, each before what is inside it.

    `path`, `repeats` and `caller` are of the equations around the jaxpr.

    >>> import jax, jax.numpy as jnp
    >>> f = lambda x: jax.lax.scan(lambda c, _: (jnp.sin(c), None), x, None, length=3)[0]
    >>> [(s.primitive, s.repeats) for s in walk(jax.make_jaxpr(f)(1.0))]
    [('scan', 1), ('sin', 3)]
    """
    for eqn in _jax.opened(jaxpr).eqns:
        place = Place(eqn, caller)
        yield Site(eqn, path, repeats, place)
        for inner in inner_jaxprs(eqn):
            times = repeats * (1 if inner.repeats is None else inner.repeats)
            yield from walk(inner.jaxpr, (*path, eqn), times, place.inside(inner.jaxpr))


def names_in(jaxpr: Any) -> tuple[str, ...]:
    """The names given by ``checkpoint_name`` anywhere in a jaxpr, in the order of first appearance.

    >>> import jax
    >>> from jax.ad_checkpoint import checkpoint_name
    >>> names_in(jax.make_jaxpr(lambda x: checkpoint_name(x, "b") + checkpoint_name(x, "a"))(1.0))
    ('b', 'a')
    """
    names = (given_name(site.eqn) for site in walk(jaxpr))
    return tuple(dict.fromkeys(name for name in names if name is not None))


def given_name(eqn: Any) -> str | None:
    """The name that a user gave to a value by ``checkpoint_name`` in this equation; None for any other equation."""
    name = _jax.given_name(eqn)
    return None if name is None or name.startswith(MARK) else name


def moving(jaxpr: Any, inputs: Sequence[bool]) -> set[Any]:
    """The variables of a jaxpr that can have a tangent if some of its inputs have one, and these inputs.

    >>> import jax, jax.numpy as jnp
    >>> jaxpr = jax.make_jaxpr(lambda x, y: (jnp.sin(x), jax.lax.stop_gradient(x), y * 2))(1.0, 1.0).jaxpr
    >>> [var in moving(jaxpr, [True, False]) for var in jaxpr.outvars]
    [True, False, False]
    """
    body = _jax.opened(jaxpr)
    found = {var for var, moves in zip(body.invars, inputs, strict=True) if moves}
    for eqn in body.eqns:
        given = [not isinstance(atom, jex.Literal) and atom in found for atom in eqn.invars]
        if any(given) and not _jax.is_without_tangent(eqn):
            outputs = zip(eqn.outvars, _moving(eqn, given), strict=True)
            found.update(var for var, moves in outputs if moves and _can_move(var))
    return found


def _moving(eqn: Any, inputs: list[bool]) -> Sequence[bool]:
    """The same for the outputs of one equation."""
    name, inner = eqn.primitive.name, inner_jaxprs(eqn)
    if _is_run_once(eqn):
        return _moving_outputs(inner[0].jaxpr, inputs)
    if name == "cond":
        branches = [_moving_outputs(branch.jaxpr, inputs[1:]) for branch in inner]
        return list(map(any, zip(*branches, strict=True)))
    if name == "scan":
        n_consts, n_carry = counts_of_scan(eqn)
        consts, carry, xs = inputs[:n_consts], inputs[n_consts : n_consts + n_carry], inputs[n_consts + n_carry :]
        return moving_steps(inner[0].jaxpr, consts, carry, xs)
    if name == "while":
        n_test, n_all = eqn.params["cond_nconsts"], eqn.params["cond_nconsts"] + eqn.params["body_nconsts"]
        return moving_steps(inner[1].jaxpr, inputs[n_test:n_all], inputs[n_all:], [])
    return [True] * len(eqn.outvars)


def _moving_outputs(jaxpr: Any, inputs: Sequence[bool]) -> list[bool]:
    found = moving(jaxpr, inputs)
    return [not isinstance(atom, jex.Literal) and atom in found for atom in _jax.opened(jaxpr).outvars]


def moving_steps(step: Any, consts: Sequence[bool], carry: Sequence[bool], xs: Sequence[bool]) -> list[bool]:
    """The same for a loop with this step: the leaves of the last carry, and the stacked outputs."""
    while True:
        outputs = _moving_outputs(step, [*consts, *carry, *xs])
        more = [a or b for a, b in zip(carry, outputs, strict=False)]
        if more == list(carry):
            return [*carry, *outputs[len(carry) :]]
        carry = more


def _is_run_once(eqn: Any) -> bool:
    """Whether an equation runs a jaxpr with its own inputs and outputs, which says where its tangents come from."""
    is_call = kind_of(eqn) is Kind.CALL or eqn.primitive.name == "shard_map"
    return is_call or _jax.is_remat(eqn) or is_rule_of_ours(eqn)


def is_rule_of_ours(eqn: Any) -> bool:
    """Whether an equation is a function with the derivative rule of one of this package's loops or plans."""
    return kind_of(eqn) is Kind.RULE and _jax.function_of(eqn.params["call_jaxpr"])[1].startswith(_OURS)


def moved_by(jaxpr: Any, outputs: Sequence[bool]) -> tuple[bool, ...]:
    """Which inputs of a jaxpr the tangents of some of its outputs can come from: the opposite of `moving`.

    Both go through loops and branches. What only decides how often or where something is done moves nothing.

    >>> import jax, jax.numpy as jnp
    >>> step = lambda x, y: jax.lax.fori_loop(0, 3, lambda _, c: (jnp.where(c[1] > 0, c[0], 0.0), c[1] * 2), (x, y))
    >>> jaxpr = jax.make_jaxpr(step)(1.0, 1.0)
    >>> moved_by(jaxpr, [True, False]), moved_by(jaxpr, [False, True])
    ((True, False), (False, True))
    """
    body = _jax.opened(jaxpr)
    found = {var for var, is_seen in zip(body.outvars, outputs, strict=True) if is_seen and _can_move(var)}
    for eqn in reversed(body.eqns):
        given = [var in found for var in eqn.outvars]
        if any(given) and not _jax.is_without_tangent(eqn):
            inputs = zip(eqn.invars, _moved_by(eqn, given), strict=True)
            found.update(var for var, moves in inputs if moves and _can_move(var))
    return tuple(var in found for var in body.invars)


def moved_by_steps(step: Any, n_consts: int, carry: Sequence[bool], ys: Sequence[bool]) -> list[bool]:
    """The same for a loop with this step: which constants, leaves of the first carry, and stacked inputs."""
    while True:
        inputs = moved_by(step, [*carry, *ys])
        before = inputs[n_consts : n_consts + len(carry)]
        more = [a or b for a, b in zip(carry, before, strict=True)]
        if more == list(carry):
            return [*inputs[:n_consts], *carry, *inputs[n_consts + len(carry) :]]
        carry = more


def _moved_by(eqn: Any, outputs: list[bool]) -> Sequence[bool]:
    """The same for the inputs of one equation."""
    name, inner = eqn.primitive.name, inner_jaxprs(eqn)
    if _is_run_once(eqn):
        return moved_by(inner[0].jaxpr, outputs)
    if name == "cond":
        branches = [moved_by(branch.jaxpr, outputs) for branch in inner]
        return [False, *map(any, zip(*branches, strict=True))]
    if name == "scan":
        n_consts, n_carry = counts_of_scan(eqn)
        return moved_by_steps(inner[0].jaxpr, n_consts, outputs[:n_carry], outputs[n_carry:])
    if name == "while":
        n_test = eqn.params["cond_nconsts"]
        return [False] * n_test + moved_by_steps(inner[1].jaxpr, eqn.params["body_nconsts"], outputs, [])
    return [True] * len(eqn.invars)


def _can_move(atom: Any) -> bool:
    return not isinstance(atom, jex.Literal) and is_differentiable(atom.aval)


def backward_slice(jaxpr: Any, outputs: Sequence[Any]) -> list[Any]:
    """The equations of a jaxpr that some of its variables depend on, and those with effects.

    >>> import jax, jax.numpy as jnp
    >>> jaxpr = jax.make_jaxpr(lambda x: (jnp.sin(x), jnp.cos(x)))(1.0).jaxpr
    >>> [eqn.primitive.name for eqn in backward_slice(jaxpr, jaxpr.outvars[1:])]
    ['cos']
    """
    needed = {atom for atom in outputs if not isinstance(atom, jex.Literal)}
    kept = []
    for eqn in reversed(_jax.opened(jaxpr).eqns):
        if eqn.effects or any(var in needed for var in eqn.outvars):
            kept.append(eqn)
            needed.update(atom for atom in eqn.invars if not isinstance(atom, jex.Literal))
    return kept[::-1]
