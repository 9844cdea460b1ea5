"""Re-evaluating a jaxpr with some of its equations replaced.

The result is a new closed jaxpr with the same inputs and outputs. Loops, branches, calls and checkpointed regions are
entered; the bodies of ``custom_jvp`` and ``custom_vjp`` functions are left alone, since
differentiation does not use them.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend.core as jex

from ... import _jax
from .primitives import ENTERED, Kind, kind_of
from .sources import Place, is_library_code
from .walk import backward_slice, counts_of_scan, inner_jaxprs

BUDGETED = "statetransform.within_a_budget"  # the name of each function under a budget, in a jaxpr

_PASSED = object()  # in the place of a jaxpr, for an equation that hands its operands on

# A visitor gets an equation, its input values and its place, and returns the outputs, or None for "as it was".
Visitor = Callable[[Any, Sequence[Any], Place], Sequence[Any] | None]


def program_of(fun: Callable[..., Any], args: Any, kwargs: Any) -> tuple[Any, Any, list[Any]]:
    """A function of pytrees as a closed jaxpr of their leaves, the abstract values of its result, and the leaves."""
    leaves, treedef = jax.tree.flatten((args, kwargs))

    @functools.wraps(fun, updated=())
    def flat(*xs: Any) -> Any:
        args, kwargs = treedef.unflatten(xs)
        return fun(*args, **kwargs)

    return *jax.make_jaxpr(flat, return_shape=True)(*leaves), leaves


def rewrite(jaxpr: Any, visitor: Visitor, caller: Place | None = None) -> Any:
    """A closed jaxpr in which ``visitor`` has replaced the equations that it wants to; `caller` is around them.

    >>> import jax, jax.numpy as jnp
    >>> def cosine_for_sine(eqn, inputs, place):
    ...     return [jnp.cos(*inputs)] if eqn.primitive.name == "sin" else None
    >>> jaxpr = rewrite(jax.make_jaxpr(lambda x: jnp.sin(x) * 2)(1.0), cosine_for_sine)
    >>> [eqn.primitive.name for eqn in jaxpr.jaxpr.eqns]
    ['cos', 'mul']
    """
    body, consts = _jax.opened(jaxpr), _jax.consts_of(jaxpr)
    avals = [v.aval for v in body.invars]
    return jax.make_jaxpr(lambda *args: evaluate(body, consts, args, visitor, caller))(*avals)


def evaluate(
    body: Any, consts: Sequence[Any], args: Sequence[Any], visitor: Visitor, caller: Place | None = None
) -> list[Any]:
    """Runs an open jaxpr on values, with ``visitor`` asked at every equation; each equation keeps its source."""
    env: dict[Any, Any] = dict(zip([*body.constvars, *body.invars], [*consts, *args], strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, jex.Literal) else env[atom]

    for eqn in body.eqns:
        inputs = [read(v) for v in eqn.invars]
        with _jax.in_place_of(eqn):
            at = Place(eqn, caller)
            outputs = visitor(eqn, inputs, at)
            if outputs is None:
                params = changed_params(eqn, lambda inner, at=at: rewrite(inner, visitor, at.inside(inner)))
                outputs = _jax.bind(eqn.primitive, inputs, params)
        env.update(zip(eqn.outvars, outputs, strict=True))
    return [read(v) for v in body.outvars]


def rescanned(scan: Callable[..., Any], eqn: Any, inputs: Sequence[Any], step: Callable[..., Any]) -> Any:
    """The carry and outputs of a scan run by another function like :func:`jax.lax.scan`; `step` runs its jaxpr."""
    n_consts, n_carry = counts_of_scan(eqn)
    consts, init, xs = inputs[:n_consts], inputs[n_consts : n_consts + n_carry], inputs[n_consts + n_carry :]

    def body(carry: Sequence[Any], x: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        out = step(*consts, *carry, *x)
        return out[:n_carry], out[n_carry:]

    options = {name: eqn.params[name] for name in ("length", "reverse", "unroll")}
    return scan(body, list(init), list(xs), **options)


def changed_params(eqn: Any, change: Callable[[Any], Any]) -> dict[str, Any]:
    """The parameters of an equation, with the jaxprs in it changed if it is one of those that are entered."""
    if kind_of(eqn) not in ENTERED and not _jax.is_remat(eqn):
        return eqn.params

    def inside(value: Any) -> Any:
        if isinstance(value, (tuple, list)):
            return type(value)(map(inside, value)) if any(map(_jax.is_jaxpr, value)) else value
        if not _jax.is_jaxpr(value):
            return value
        # Where JAX keeps an open jaxpr (inside `remat` before 0.11) it expects one back.
        return change(value) if hasattr(value, "consts") else _jax.opened(change(value))

    return {key: inside(value) for key, value in eqn.params.items()}


def is_budgeted(eqn: Any) -> bool:
    """Whether an equation runs a function under a budget, which is not differentiated yet."""
    return kind_of(eqn) is Kind.RULE and any(_jax.function_of(i.jaxpr)[0] == BUDGETED for i in inner_jaxprs(eqn))


def inlined(
    jaxpr: Any, *, rules: bool = False, budgets: bool = False, passes: Callable[[Any], bool] = lambda _: False
) -> Any:
    """The jaxpr with calls and checkpointed regions replaced by what they contain.

    Args:
      jaxpr: a closed jaxpr.
      rules: also functions with derivatives of their own, which are then not used any more.
      budgets: also functions under a budget.
      passes: which other equations hand their operands on, and are left out.

    >>> import jax, jax.numpy as jnp
    >>> jaxpr = jax.make_jaxpr(jax.jit(lambda x: jnp.sin(x)))(1.0)
    >>> [eqn.primitive.name for eqn in inlined(jaxpr).jaxpr.eqns]
    ['sin']
    """

    def content_of(eqn: Any) -> Any:
        if passes(eqn):
            return _PASSED
        return _run_by(eqn, rules or (budgets and is_budgeted(eqn)))

    return _flat(jaxpr, content_of, None)


def sliced(jaxpr: Any) -> Any:
    """The jaxpr with a slice for each row of an array that is unstacked: compilers see no more than slices.

    >>> import jax, jax.numpy as jnp
    >>> jaxpr = jax.make_jaxpr(lambda x: sum(x))(jnp.ones((2, 3)))
    >>> "unstack" in str(sliced(jaxpr))
    False
    """
    return _flat(jaxpr, lambda eqn: _slices(eqn) if eqn.primitive.name == "unstack" else None, None)


def _slices(eqn: Any) -> Any:
    x, axis = eqn.invars[0].aval, eqn.params["axis"]
    rows = lambda x: [jax.lax.index_in_dim(x, k, axis, keepdims=False) for k in range(x.shape[axis])]
    with _jax.in_place_of(eqn):
        return jax.make_jaxpr(rows)(x)


def without_dead(jaxpr: Any) -> Any:
    """The jaxpr with nothing in its loops and branches that no output of these depends on.

    >>> import jax, jax.numpy as jnp
    >>> jaxpr = jax.make_jaxpr(lambda x: jax.lax.fori_loop(0, 9, lambda i, x: (jnp.sin(x), x * 2)[1], x))(1.0)
    >>> "sin" in str(jaxpr), "sin" in str(without_dead(jaxpr))
    (True, False)
    """
    body = _jax.opened(jaxpr)
    eqns = [_without_dead(eqn) for eqn in body.eqns]
    return jaxpr if all(map(operator.is_, eqns, body.eqns)) else _with_equations(jaxpr, eqns)


def _without_dead(eqn: Any) -> Any:
    is_changed = False

    def needed(inner: Any) -> Any:
        nonlocal is_changed
        body = _jax.opened(inner)
        eqns = list(map(_without_dead, backward_slice(body, body.outvars)))
        if len(eqns) == len(body.eqns) and all(map(operator.is_, eqns, body.eqns)):
            return inner
        is_changed = True
        return _with_equations(inner, eqns)

    params = changed_params(eqn, needed)
    return eqn.replace(params=params) if is_changed else eqn


def _with_equations(jaxpr: Any, eqns: list[Any]) -> Any:
    body = _jax.opened(jaxpr)
    consts = dict(zip(body.constvars, _jax.consts_of(jaxpr), strict=True))
    return _jax.with_equations(body, eqns, body.outvars, consts)


def _flat(jaxpr: Any, content_of: Callable[[Any], Any], call: Any) -> Any:
    """A jaxpr with what `content_of` gives in the place of an equation: a jaxpr, `_PASSED`, or None for the equation.

    All of its equations get the source of `call`, an equation around it, if that is given. They are copied, not traced:
    to trace a program a second time takes several times as long.
    """
    body, lines = _jax.opened(jaxpr), _Lines(content_of)
    outputs = lines.add(body, _jax.consts_of(jaxpr), body.invars, call)
    return _jax.with_equations(body, lines.eqns, outputs, lines.consts)


class _Lines:
    """The equations of a jaxpr and of what it calls, one after the other.

    Attributes:
      eqns: the equations.
      consts: the values of all constants, by their new variables.
    """

    def __init__(self, content_of: Callable[[Any], Any]) -> None:
        self.eqns: list[Any] = []
        self.consts: dict[Any, Any] = {}
        self._content_of = content_of

    def add(self, body: Any, consts: Sequence[Any], inputs: Sequence[Any], call: Any, scopes: Any = None) -> list[Any]:
        """Adds an open jaxpr for the atoms of its inputs; gives those of its outputs.

        Args:
          call: the equation whose source its equations get; None for their own.
          scopes: the equation in whose name scopes they are.
        """
        own = {var: jex.Var(var.aval) for var in body.constvars}
        self.consts.update(zip(own.values(), consts, strict=True))
        env = {**own, **dict(zip(body.invars, inputs, strict=True))}
        read = lambda atom: atom if isinstance(atom, jex.Literal) else env[atom]
        for eqn in body.eqns:
            atoms, inner = list(map(read, eqn.invars)), self._content_of(eqn)
            relocated = _jax.relocated(eqn, call, scopes)
            if inner is None:
                outputs = [jex.Var(var.aval) for var in eqn.outvars]
                # Bodies of loops that stay what they are stay shared.
                flat = lambda inner: _flat(inner, self._content_of, call)
                params = changed_params(eqn, flat) if _has_calls(eqn, self._content_of) else eqn.params
                self.eqns.append(relocated.replace(invars=atoms, outvars=outputs, params=params))
            elif inner is _PASSED:
                outputs = atoms
            else:
                # The inside of a library function has the stack of its first call, wherever that was.
                outer = call or (eqn if is_library_code(_jax.opened(inner)) else None)
                around = relocated if inner_jaxprs(eqn) else None  # slices have the scopes of what they replace
                outputs = self.add(_jax.opened(inner), _jax.consts_of(inner), atoms, outer, around)
            env.update(zip(eqn.outvars, outputs, strict=True))
        return list(map(read, body.outvars))


def _has_calls(eqn: Any, content_of: Callable[[Any], Any]) -> bool:
    """Whether there is something to inline in the inner jaxprs of an equation."""
    return any(
        content_of(inside) is not None or _has_calls(inside, content_of)
        for inner in inner_jaxprs(eqn)
        for inside in _jax.opened(inner.jaxpr).eqns
    )


def _run_by(eqn: Any, opens_rules: bool) -> Any:
    """The jaxpr that an equation does nothing but run, or None."""
    if _jax.is_remat(eqn):
        return _jax.remat_params(eqn)[0]
    if kind_of(eqn) is Kind.CALL or (opens_rules and kind_of(eqn) is Kind.RULE):
        return eqn.params.get("jaxpr", eqn.params.get("call_jaxpr"))
    return None
