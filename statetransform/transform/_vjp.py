"""Products with Jacobians: `vjp`, `jvp`, `linearize`. With `states`, the states are the first primal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from .._states.frame import look_at_all
from .._states.state_pytrees import differentiated_states
from .._traces.arguments import hide, revealing, without_objects
from .._traces.lift import Lift, with_aux
from .._traces.tracebacks import boundary
from ._options import as_in


@boundary
@as_in(jax.vjp)
def vjp(fun: Callable[..., Any], *primals: Any, has_aux: bool = False, states: Any = None, **options: Any) -> Any:
    """The vector-Jacobian product of a function that uses states: :func:`jax.vjp`. It runs once, and writes once.

    Args:
      fun (Callable): the function.
      *primals: the arguments at which to differentiate: pytrees of arrays.
      has_aux (bool): whether `fun` returns a pair `(output, aux)`; only `output` is differentiated.
        Default: False.
      reduce_axes (Sequence[AxisName]): names of mapped axes over which the gradient is summed. Only for releases
        of JAX that have it. Default: ().
      saveable_args (pytree of bool): which primals the residuals may refer to instead of copying them. Only for
        releases of JAX that have it. Default: True, all.
      in_nzs (pytree of bool, optional): which primals have a nonzero tangent. Only for releases of JAX that have it.
        Default: all.
      states (pytree of `State`, optional): the states to differentiate with respect to; their values become the
        first primal. Default: None, no state.

    Returns:
      `(out, pullback)`, or `(out, pullback, aux)`. `pullback(cotangent)` gives a tuple with one cotangent for each
      primal; with `states`, those of the states come first.

    Raises:
      TypeError: `states` has a leaf that is not a State.

    References:
      https://docs.jax.dev/en/latest/_autosummary/jax.vjp.html

    Example:
      >>> from statetransform import State, transform
      >>> w = State(3.0, name="w")
      >>> out, pullback = transform.vjp(lambda x: w.value * x, 2.0, states=w)
      >>> [float(ct) for ct in pullback(1.0)]
      [2.0, 3.0]
    """
    lift, pure, primals = _first_primal("vjp", fun, primals, states, has_aux)
    out, pullback, (aux, written, born) = jax.vjp(pure, *primals, has_aux=True, **options)
    if states is not None:
        pullback = jax.tree_util.Partial(_pull, pullback)  # like JAX's own, it may leave a transform around
    out, aux = lift.leave((out, aux), written, born)
    return (out, pullback, aux) if has_aux else (out, pullback)


@boundary
def _pull(pullback: Callable[[Any], Any], cotangents: Any) -> Any:  # whose errors say what to write
    return pullback(cotangents)


@boundary
@as_in(jax.jvp)
def jvp(
    fun: Callable[..., Any], primals: Any, tangents: Any, has_aux: bool = False, *, states: Any = None, **options: Any
) -> Any:
    """The Jacobian-vector product of a function that uses states: :func:`jax.jvp`. It runs once, and writes once.

    Args:
      fun (Callable): the function.
      primals (tuple | list): the arguments at which to differentiate.
      tangents (tuple | list): their tangents, of the same structure, shapes and tangent dtypes. With `states`:
        `(state_tangents, *tangents)`.
      has_aux, states: as for :func:`vjp`.

    Returns:
      `(out, tangent)`, or `(out, tangent, aux)`.

    Raises:
      TypeError: `states` has a leaf that is not a State, or `tangents` has another number of entries.

    References:
      https://docs.jax.dev/en/latest/_autosummary/jax.jvp.html

    Example:
      >>> from statetransform import State, transform
      >>> w = State(3.0, name="w")
      >>> out, tangent = transform.jvp(lambda x: w.value * x, (2.0,), (1.0, 1.0), states=w)
      >>> float(out), float(tangent)
      (6.0, 5.0)
    """
    for given in (primals, tangents):
        if type(given) is not type(primals) or not isinstance(given, tuple | list):
            raise TypeError(
                "jvp: primals and tangents must both be tuples, or both lists, not "
                f"{type(primals).__name__} and {type(tangents).__name__}"
            )
    if states is not None and len(tangents) != len(primals) + 1:
        raise TypeError(
            "jvp: with `states`, the first primal is the values of the states, which are read and not passed; "
            f"`tangents` holds the tangent of the states and one for each of the {len(primals)} primals given, "
            f"{len(primals) + 1} in all, not {len(tangents)}"
        )
    lift, pure, primals = _first_primal("jvp", fun, tuple(primals), states, has_aux)
    out, tangent, (aux, written, born) = jax.jvp(pure, primals, tuple(tangents), has_aux=True, **options)
    out, aux = lift.leave((out, aux), written, born)
    return (out, tangent, aux) if has_aux else (out, tangent)


@boundary
@as_in(jax.linearize)
def linearize(fun: Callable[..., Any], *primals: Any, has_aux: bool = False, states: Any = None, **options: Any) -> Any:
    """Value and linear approximation of a stateful function: :func:`jax.linearize`. It runs once, and writes once.

    Args:
      fun (Callable): the function.
      *primals: the arguments at which to differentiate: pytrees of arrays.
      has_aux, in_nzs, states: as for :func:`vjp`.

    Returns:
      `(out, pushforward)`, or `(out, pushforward, aux)`; `pushforward` takes a tangent for each primal; with `states`,
      that of the states comes first. It can be called later, repeatedly, and under other transforms.

    Raises:
      TypeError: `states` has a leaf that is not a State.

    References:
      https://docs.jax.dev/en/latest/_autosummary/jax.linearize.html

    Example:
      >>> from statetransform import State, transform
      >>> w = State(3.0, name="w")
      >>> out, pushforward = transform.linearize(lambda x: w.value * x**2, 2.0)
      >>> float(pushforward(1.0))
      12.0
    """
    lift, pure, primals = _first_primal("linearize", fun, primals, states, has_aux)
    out, pushforward, (aux, written, born) = jax.linearize(pure, *primals, has_aux=True, **options)
    out, aux = lift.leave((out, aux), written, born)
    return (out, pushforward, aux) if has_aux else (out, pushforward)


def _first_primal(
    where: str, fun: Callable[..., Any], primals: tuple[Any, ...], states: Any, has_aux: bool
) -> tuple[Lift, Callable[..., Any], tuple[Any, ...]]:
    """A pure function, and its primals: if there are `states`, their values come first, in their structure."""
    primals, objects = hide(primals)
    primals, whole = without_objects(primals)
    lift = Lift(revealing(fun, objects))
    if states is None:
        return lift, lambda *primals: with_aux(lift.call({}, whole(primals), {}), has_aux, where), primals
    wrt = differentiated_states(states, f"{where}: ")

    def pure(leading: Any, *primals: Any) -> Any:
        return with_aux(lift.call(wrt.by_state(leading), whole(primals), {}), has_aux, where)

    return lift, pure, (wrt.values(look_at_all(wrt.states)), *primals)
