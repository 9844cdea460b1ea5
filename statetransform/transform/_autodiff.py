"""Derivatives: `grad`, `value_and_grad`, `jacfwd`, `jacrev`, `hessian`, `vjp`, `jvp`, `linearize`.

All run the function directly: Python control flow on concrete values works where it works in JAX. Written
states are auxiliary outputs, so writes happen once, from the forward pass. A state that is differentiated
with respect to is differentiated at its value on entry.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from .._core.arguments import hide
from .._core.lift import Differentiated, Direct, Lift
from .._core.outcome import Results
from .._core.wrapper import decorate


class Derivative(Direct):
    """A function under one of the transforms that take `argnums`.

    Args:
      where: the transform's name.
      derive: the JAX transform.
    """

    def __init__(
        self,
        fun: Callable[..., Any],
        *,
        where: str,
        derive: Callable[..., Any],
        argnums: Any,
        states: Any,
        has_aux: bool,
        is_method: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(
            fun,
            is_method=is_method,
            where=where,
            derive=derive,
            argnums=argnums,
            states=states,
            has_aux=has_aux,
            **options,
        )
        self._where, self._derive = where, derive
        self._argnums, self._states, self._has_aux, self._jax_options = (
            argnums,
            states,
            has_aux,
            options,
        )

    def _run(self, fun: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        wrt = Differentiated(self._where, self._states, self._argnums, args)
        lift = Lift(fun)

        def pure(primal: Any) -> Any:
            values, args = wrt.split(primal)
            return _with_aux(lift.call(values, args, kwargs), self._has_aux, self._where)

        derived = self._derive(pure, has_aux=True, **self._jax_options)(wrt.primal)
        result, (aux, written, born) = self._take_aux(derived)
        return lift.leave(self._put_aux(result, aux) if self._has_aux else result, written, born)

    def _take_aux(self, derived: Any) -> tuple[Any, Any]:
        """What the JAX transform gives, apart from the auxiliary data in it."""
        return derived

    def _put_aux(self, result: Any, aux: Any) -> Any:
        """The result with the function's own auxiliary data where JAX puts it."""
        return result, aux


class ValueAndGrad(Derivative):
    """A function under `value_and_grad`, where the auxiliary data stand beside the value."""

    def _take_aux(self, derived: Any) -> tuple[Any, Any]:
        (value, aux), gradient = derived
        return (value, gradient), aux

    def _put_aux(self, result: Any, aux: Any) -> Any:
        value, gradient = result
        return (value, aux), gradient


def _with_aux(results: Results, has_aux: bool, where: str) -> tuple[Any, Any]:
    """Results as `(output, auxiliary data)`, what was written being auxiliary."""
    out, written, born = results
    if not has_aux:
        return out, (None, written, born)
    if not isinstance(out, tuple) or len(out) != 2:
        raise TypeError(
            f"{where}: with has_aux=True the function must return a pair (output, aux), not {type(out).__name__}"
        )
    return out[0], (out[1], written, born)


def grad(
    fun: Any = None,
    argnums: Any = None,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    reduce_axes: Any = (),
    *,
    states: Any = None,
) -> Any:
    return _derivative(
        "grad",
        jax.grad,
        fun,
        argnums,
        states,
        has_aux,
        holomorphic=holomorphic,
        allow_int=allow_int,
    )


def value_and_grad(
    fun: Any = None,
    argnums: Any = None,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    reduce_axes: Any = (),
    *,
    states: Any = None,
) -> Any:
    return decorate(
        ValueAndGrad,
        fun,
        where="value_and_grad",
        derive=jax.value_and_grad,
        argnums=argnums,
        states=states,
        has_aux=has_aux,
        holomorphic=holomorphic,
        allow_int=allow_int,
    )


def jacfwd(
    fun: Any = None,
    argnums: Any = None,
    has_aux: bool = False,
    holomorphic: bool = False,
    *,
    states: Any = None,
) -> Any:
    return _derivative("jacfwd", jax.jacfwd, fun, argnums, states, has_aux, holomorphic=holomorphic)


def jacrev(
    fun: Any = None,
    argnums: Any = None,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    *,
    states: Any = None,
) -> Any:
    return _derivative(
        "jacrev",
        jax.jacrev,
        fun,
        argnums,
        states,
        has_aux,
        holomorphic=holomorphic,
        allow_int=allow_int,
    )


def hessian(
    fun: Any = None,
    argnums: Any = None,
    has_aux: bool = False,
    holomorphic: bool = False,
    *,
    states: Any = None,
) -> Any:
    return _derivative("hessian", jax.hessian, fun, argnums, states, has_aux, holomorphic=holomorphic)


def _derivative(where: str, derive: Any, fun: Any, argnums: Any, states: Any, has_aux: bool, **options: Any) -> Any:
    return decorate(
        Derivative,
        fun,
        where=where,
        derive=derive,
        argnums=argnums,
        states=states,
        has_aux=has_aux,
        **options,
    )


def vjp(
    fun: Callable[..., Any],
    *primals: Any,
    has_aux: bool = False,
    reduce_axes: Any = (),
    states: Any = None,
) -> Any:
    lift, pure, leading, primals = _first_primal("vjp", fun, primals, states, has_aux)
    out, pull, (aux, written, born) = jax.vjp(pure, leading, *primals, has_aux=True)

    def pullback(cotangents: Any) -> Any:
        state_cotangents, *rest = pull(cotangents)
        if states is None:
            return tuple(rest)
        return (state_cotangents, *rest) if rest else state_cotangents

    pullback_ = jax.tree_util.Partial(pullback)
    out, aux = lift.leave((out, aux), written, born)
    return (out, pullback_, aux) if has_aux else (out, pullback_)


def jvp(
    fun: Callable[..., Any],
    primals: Any,
    tangents: Any,
    has_aux: bool = False,
    *,
    states: Any = None,
) -> Any:
    primals, tangents = tuple(primals), tuple(tangents)
    lift, pure, leading, primals = _first_primal("jvp", fun, primals, states, has_aux)
    if states is None:
        tangents = (None, *tangents)
    out, tangent, (aux, written, born) = jax.jvp(pure, (leading, *primals), tangents, has_aux=True)
    out, aux = lift.leave((out, aux), written, born)
    return (out, tangent, aux) if has_aux else (out, tangent)


def linearize(fun: Callable[..., Any], *primals: Any, has_aux: bool = False, states: Any = None) -> Any:
    lift, pure, leading, primals = _first_primal("linearize", fun, primals, states, has_aux)
    out, push, (aux, written, born) = jax.linearize(pure, leading, *primals, has_aux=True)
    pushforward = push if states is not None else jax.tree_util.Partial(push, None)
    out, aux = lift.leave((out, aux), written, born)
    return (out, pushforward, aux) if has_aux else (out, pushforward)


def _first_primal(
    where: str, fun: Callable[..., Any], primals: tuple[Any, ...], states: Any, has_aux: bool
) -> tuple[Lift, Callable[..., Any], Any, tuple[Any, ...]]:
    """A pure function whose first primal is the values of `states`, in their structure, or None."""
    primals = hide(primals)
    wrt = Differentiated(where, states, (), ())
    lift = Lift(fun)

    def pure(leading: Any, *primals: Any) -> Any:
        values = {} if states is None else wrt.split((leading, ()))[0]
        return _with_aux(lift.call(values, primals, {}), has_aux, where)

    return lift, pure, None if states is None else wrt.primal[0], primals
