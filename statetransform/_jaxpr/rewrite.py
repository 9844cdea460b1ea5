"""Re-evaluating a jaxpr with some of its equations replaced.

The result is a new closed jaxpr with the same inputs and outputs. Loops, branches, calls and checkpointed regions are
entered; the bodies of ``custom_jvp`` and ``custom_vjp`` functions are left alone, since
differentiation does not use them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend.core as jex

from .._core import jaxcompat
from .primitives import ENTERED, Kind, kind_of
from .sources import Place, is_library_code
from .walk import inner_jaxprs

# A visitor gets an equation, its input values and its place, and returns the outputs, or None for "as it was".
Visitor = Callable[[Any, Sequence[Any], Place], Sequence[Any] | None]


def rewrite(jaxpr: Any, visitor: Visitor) -> Any:
    """A closed jaxpr in which ``visitor`` had the first word on every equation.

    >>> import jax, jax.numpy as jnp
    >>> def cosine_for_sine(eqn, inputs, place):
    ...     return [jnp.cos(*inputs)] if eqn.primitive.name == "sin" else None
    >>> jaxpr = rewrite(jax.make_jaxpr(lambda x: jnp.sin(x) * 2)(1.0), cosine_for_sine)
    >>> [eqn.primitive.name for eqn in jaxpr.jaxpr.eqns]
    ['cos', 'mul']
    """
    return _rewritten(jaxpr, visitor, None)


def _rewritten(jaxpr: Any, visitor: Visitor, caller: Place | None) -> Any:
    body, consts = jaxcompat.opened(jaxpr), jaxcompat.consts_of(jaxpr)
    avals = [v.aval for v in body.invars]
    return jax.make_jaxpr(lambda *args: evaluate(body, consts, args, visitor, caller))(*avals)


def evaluate(
    body: Any,
    consts: Sequence[Any],
    args: Sequence[Any],
    visitor: Visitor,
    caller: Place | None = None,
    call: Any = None,
) -> list[Any]:
    """Runs an open jaxpr on values, with ``visitor`` asked at every equation.

    Each equation keeps its source, or gets that of ``call``, an equation around it.
    """
    env: dict[Any, Any] = dict(zip([*body.constvars, *body.invars], [*consts, *args], strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, jex.Literal) else env[atom]

    for eqn in body.eqns:
        inputs = [read(v) for v in eqn.invars]
        with jaxcompat.in_place_of(eqn, call):
            at = Place(eqn, caller)
            outputs = visitor(eqn, inputs, at)
            if outputs is None:
                outputs = _bind(eqn, inputs, visitor, at)
        env.update(zip(eqn.outvars, outputs, strict=True))
    return [read(v) for v in body.outvars]


def _bind(eqn: Any, inputs: Sequence[Any], visitor: Visitor, place: Place) -> Sequence[Any]:
    params = eqn.params
    if kind_of(eqn) in ENTERED or jaxcompat.is_remat(eqn):

        def inside(value: Any) -> Any:
            if isinstance(value, (tuple, list)):
                return type(value)(map(inside, value)) if any(map(jaxcompat.is_jaxpr, value)) else value
            if not jaxcompat.is_jaxpr(value):
                return value
            new = _rewritten(value, visitor, place.inside(value))
            # Where JAX keeps an open jaxpr (inside `remat` before 0.11) it expects one back.
            return new if hasattr(value, "consts") else jaxcompat.opened(new)

        params = {key: inside(value) for key, value in params.items()}
    return jaxcompat.bind(eqn.primitive, inputs, params)


def inlined(jaxpr: Any, *, remat: bool = True, rules: bool = False) -> Any:
    """The jaxpr with calls replaced by what they contain.

    Args:
      jaxpr: a closed jaxpr.
      remat: also checkpointed regions.
      rules: also functions with derivatives of their own, which are then not used any more.

    >>> import jax, jax.numpy as jnp
    >>> jaxpr = jax.make_jaxpr(jax.jit(lambda x: jnp.sin(x)))(1.0)
    >>> [eqn.primitive.name for eqn in inlined(jaxpr).jaxpr.eqns]
    ['sin']
    """

    def visitor(call: Any) -> Visitor:
        def inline(eqn: Any, inputs: Sequence[Any], place: Place) -> Sequence[Any] | None:
            inner = _called(eqn, remat, rules)
            if inner is None:
                # Tracing the body of a loop again takes much longer than looking whether anything would change.
                return None if _has_calls(eqn, remat, rules) else jaxcompat.bind(eqn.primitive, inputs, eqn.params)
            body = jaxcompat.opened(inner)
            # The inside of a library function has the stack of its first call, wherever that was.
            outer = call or (eqn if is_library_code(body) else None)
            return evaluate(body, jaxcompat.consts_of(inner), inputs, visitor(outer), place if outer else None, outer)

        return inline

    return rewrite(jaxpr, visitor(None))


def _has_calls(eqn: Any, remat: bool, rules: bool) -> bool:
    """Whether there is something to inline in the inner jaxprs of an equation."""
    return any(
        _called(inside, remat, rules) is not None or _has_calls(inside, remat, rules)
        for inner in inner_jaxprs(eqn)
        for inside in jaxcompat.opened(inner.jaxpr).eqns
    )


def _called(eqn: Any, remat: bool, rules: bool) -> Any:
    """The jaxpr that an equation does nothing but run, or None."""
    if jaxcompat.is_remat(eqn):
        return jaxcompat.remat_params(eqn)[0] if remat else None
    if kind_of(eqn) is Kind.CALL or (rules and kind_of(eqn) is Kind.RULE):
        return eqn.params.get("jaxpr", eqn.params.get("call_jaxpr"))
    return None
