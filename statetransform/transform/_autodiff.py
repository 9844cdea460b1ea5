"""Derivatives: `grad`, `value_and_grad`, `jacfwd`, `jacrev`, `hessian`, `vjp`, `jvp`, `linearize`.

All run the function directly: Python control flow on concrete values works where it works in JAX. Written
states are auxiliary outputs, so writes happen once, from the forward pass. A state that is differentiated
with respect to is differentiated at its value on entry.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, overload

import jax

from .._core.arguments import hide, revealing
from .._core.errors import describe, refuse_asynchronous
from .._core.foreign import to_states
from .._core.frame import read
from .._core.jaxcompat import typeof
from .._core.lift import Differentiated, Direct, Lift
from .._core.outcome import Results
from .._core.state import show_types
from .._core.wrapper import decorate

P = ParamSpec("P")


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
        refuse_asynchronous(where, fun)
        argnums = None if argnums is None else _indices(argnums)
        self._where, self._derive = where, derive
        self._argnums, self._states, self._has_aux, self._jax_options = (
            argnums,
            states,
            has_aux,
            options,
        )

    def _run(self, fun: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        argnums = 0 if self._argnums is None and self._states is None else self._argnums
        self._refuse_positions(argnums, len(args))
        states = to_states(self._states)
        wrt = Differentiated(self._where, states, argnums, args)
        if not self._jax_options.get("allow_int"):
            self._refuse_integers(states)
        lift = Lift(fun)

        def pure(primal: Any) -> Any:
            values, args = wrt.split(primal)
            return _with_aux(lift.call(values, args, kwargs), self._has_aux, self._where)

        with _explained():
            derived = self._derive(pure, has_aux=True, **self._jax_options)(wrt.primal)
        result, (aux, written, born) = self._take_aux(derived)
        return lift.leave(self._put_aux(result, aux) if self._has_aux else result, written, born)

    def _refuse_positions(self, argnums: Any, n_args: int) -> None:
        """Refuses what JAX refuses; positions out of range are left to `Differentiated` for the others, as to JAX."""
        positions = () if argnums is None else (argnums,) if isinstance(argnums, int) else argnums
        if argnums == () and self._states is None:
            raise ValueError(f"{self._where}: `argnums` is empty, so there is nothing to differentiate with respect to")
        if len({i % n_args if n_args else i for i in positions}) < len(positions):
            raise TypeError(f"{self._where}: argnums={argnums} names an argument twice")
        if self._derive in (jax.grad, jax.value_and_grad) and max(positions, default=-1) >= n_args:
            raise TypeError(
                f"{self._where}: differentiating with respect to argnums={argnums} needs at least {max(positions) + 1} "
                f"positional argument(s), but the function was called with {n_args}"
            )

    def _refuse_integers(self, states: Any) -> None:
        """JAX's own message would not know the state."""
        for state in jax.tree.leaves(states):
            kinds = {typeof(leaf).dtype for leaf in jax.tree.leaves(read(state))}
            if not all(jax.numpy.issubdtype(dtype, jax.numpy.inexact) for dtype in kinds):
                raise TypeError(
                    f"{self._where}: {describe(state)} holds {show_types(read(state))}, and derivatives need values of "
                    "floating point. Leave it out of `states=`, or start it as a float."
                )

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


def _indices(argnums: Any) -> int | tuple[int, ...]:
    try:
        return operator.index(argnums)
    except TypeError:
        return tuple(map(operator.index, argnums))


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Says of a loop that JAX cannot differentiate what this package has for that."""
    try:
        yield
    except ValueError as error:
        if "Reverse-mode differentiation does not work for lax.while_loop" in str(error):
            error.add_note(
                "With a number of stored carries a loop of unknown length can be differentiated: "
                "`transform.while_loop(..., checkpoint=20)`, or `transform.fori_loop(..., checkpoint=20)`."
            )
        raise


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


@overload
def grad(
    fun: Callable[P, Any],
    argnums: Any = None,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    reduce_axes: Any = (),
    *,
    states: Any = None,
) -> Callable[P, Any]: ...
@overload
def grad(
    fun: None = None,
    argnums: Any = None,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    reduce_axes: Any = (),
    *,
    states: Any = None,
) -> Callable[[Callable[P, Any]], Callable[P, Any]]: ...
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
    """The gradient of a scalar function over states: :func:`jax.grad`. State writes happen once, from the forward pass.

    Args:
      fun: the function; None for the form with arguments.
      argnums, has_aux, holomorphic: as in :func:`jax.grad`; `argnums` is 0 unless `states` is given.
      allow_int, reduce_axes: as in :func:`jax.grad`.
      states: a `State` or a pytree of them to differentiate with respect to, at their values on entry.

    Returns:
      The function of the same arguments whose result has, without `states`, the form of :func:`jax.grad`;
      with `states` alone,
      the structure of `states`; with both, the pair `(with respect to states, with respect to arguments)`.

    Raises:
      TypeError: `states` has a leaf that is no State, or `argnums` names an argument that is passed by reference.

    References:
      https://docs.jax.dev/en/latest/_autosummary/jax.grad.html

    Example:
      >>> from statetransform import State, transform
      >>> w = State(3.0, name="w")
      >>> loss = lambda x: w.value * x**2
      >>> float(transform.grad(loss)(2.0))
      12.0
      >>> float(transform.grad(loss, states=w)(2.0))
      4.0
      >>> by_state, by_x = transform.grad(loss, argnums=0, states={"w": w})(2.0)
      >>> float(by_state["w"]), float(by_x)
      (4.0, 12.0)
    """
    _refuse_reduce_axes("grad", reduce_axes)
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


@overload
def value_and_grad(
    fun: Callable[P, Any],
    argnums: Any = None,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    reduce_axes: Any = (),
    *,
    states: Any = None,
) -> Callable[P, Any]: ...
@overload
def value_and_grad(
    fun: None = None,
    argnums: Any = None,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    reduce_axes: Any = (),
    *,
    states: Any = None,
) -> Callable[[Callable[P, Any]], Callable[P, Any]]: ...
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
    """Value and gradient of a scalar function over states: :func:`jax.value_and_grad`. State writes happen once.

    Args:
      fun: the function; None for the form with arguments.
      argnums, has_aux, holomorphic: as in :func:`jax.value_and_grad`; `argnums` is 0 unless `states` is given.
      allow_int, reduce_axes: as in :func:`jax.value_and_grad`.
      states: a `State` or a pytree of them to differentiate with respect to, at their values on entry.

    Returns:
      The function of the same arguments whose result has, without `states`, the form of
      :func:`jax.value_and_grad`; with `states` alone,
      the structure of `states`; with both, the pair `(with respect to states, with respect to arguments)`.

    Raises:
      TypeError: `states` has a leaf that is no State, or `argnums` names an argument that is passed by reference.

    References:
      https://docs.jax.dev/en/latest/_autosummary/jax.value_and_grad.html

    Example:
      >>> from statetransform import State, transform
      >>> w = State(3.0, name="w")
      >>> value, gradient = transform.value_and_grad(lambda x: w.value * x**2, states=w)(2.0)
      >>> float(value), float(gradient)
      (12.0, 4.0)
    """
    _refuse_reduce_axes("value_and_grad", reduce_axes)
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


@overload
def jacfwd(
    fun: Callable[P, Any],
    argnums: Any = None,
    has_aux: bool = False,
    holomorphic: bool = False,
    *,
    states: Any = None,
) -> Callable[P, Any]: ...
@overload
def jacfwd(
    fun: None = None,
    argnums: Any = None,
    has_aux: bool = False,
    holomorphic: bool = False,
    *,
    states: Any = None,
) -> Callable[[Callable[P, Any]], Callable[P, Any]]: ...
def jacfwd(
    fun: Any = None,
    argnums: Any = None,
    has_aux: bool = False,
    holomorphic: bool = False,
    *,
    states: Any = None,
) -> Any:
    """The derivative that :func:`jax.jacfwd` gives, of a function over states; writes happen once, from the
    forward pass.

    Args:
      fun: the function; None for the form with arguments.
      argnums, has_aux, holomorphic: as in :func:`jax.jacfwd`; `argnums` is 0 unless `states` is given.
      states: a `State` or a pytree of them to differentiate with respect to, at their values on entry.

    Returns:
      The function of the same arguments whose result has, without `states`, the form of :func:`jax.jacfwd`;
      with `states` alone,
      the structure of `states`; with both, the pair `(with respect to states, with respect to arguments)`.

    Raises:
      TypeError: `states` has a leaf that is no State, or `argnums` names an argument that is passed by reference.

    References:
      https://docs.jax.dev/en/latest/_autosummary/jax.jacfwd.html

    Example:
      >>> from statetransform import State, transform
      >>> w = State(3.0, name="w")
      >>> float(transform.jacfwd(lambda x: w.value * x**2, states=w)(2.0))
      4.0
    """
    return _derivative("jacfwd", jax.jacfwd, fun, argnums, states, has_aux, holomorphic=holomorphic)


@overload
def jacrev(
    fun: Callable[P, Any],
    argnums: Any = None,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    *,
    states: Any = None,
) -> Callable[P, Any]: ...
@overload
def jacrev(
    fun: None = None,
    argnums: Any = None,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    *,
    states: Any = None,
) -> Callable[[Callable[P, Any]], Callable[P, Any]]: ...
def jacrev(
    fun: Any = None,
    argnums: Any = None,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    *,
    states: Any = None,
) -> Any:
    """The derivative that :func:`jax.jacrev` gives, of a function over states; writes happen once, from the
    forward pass.

    Args:
      fun: the function; None for the form with arguments.
      argnums, has_aux, holomorphic: as in :func:`jax.jacrev`; `argnums` is 0 unless `states` is given.
      allow_int: as in :func:`jax.jacrev`.
      states: a `State` or a pytree of them to differentiate with respect to, at their values on entry.

    Returns:
      The function of the same arguments whose result has, without `states`, the form of :func:`jax.jacrev`;
      with `states` alone,
      the structure of `states`; with both, the pair `(with respect to states, with respect to arguments)`.

    Raises:
      TypeError: `states` has a leaf that is no State, or `argnums` names an argument that is passed by reference.

    References:
      https://docs.jax.dev/en/latest/_autosummary/jax.jacrev.html

    Example:
      >>> from statetransform import State, transform
      >>> w = State(3.0, name="w")
      >>> float(transform.jacrev(lambda x: w.value * x**2)(2.0))
      12.0
    """
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


@overload
def hessian(
    fun: Callable[P, Any],
    argnums: Any = None,
    has_aux: bool = False,
    holomorphic: bool = False,
    *,
    states: Any = None,
) -> Callable[P, Any]: ...
@overload
def hessian(
    fun: None = None,
    argnums: Any = None,
    has_aux: bool = False,
    holomorphic: bool = False,
    *,
    states: Any = None,
) -> Callable[[Callable[P, Any]], Callable[P, Any]]: ...
def hessian(
    fun: Any = None,
    argnums: Any = None,
    has_aux: bool = False,
    holomorphic: bool = False,
    *,
    states: Any = None,
) -> Any:
    """The derivative that :func:`jax.hessian` gives, of a function over states; writes happen once, from the
    forward pass.

    Args:
      fun: the function; None for the form with arguments.
      argnums, has_aux, holomorphic: as in :func:`jax.hessian`; `argnums` is 0 unless `states` is given.
      states: a `State` or a pytree of them to differentiate with respect to, at their values on entry.

    Returns:
      The function of the same arguments whose result has, without `states`, the form of :func:`jax.hessian`;
      with `states` alone,
      the structure of `states`; with both, the pair `(with respect to states, with respect to arguments)`.

    Raises:
      TypeError: `states` has a leaf that is no State, or `argnums` names an argument that is passed by reference.

    References:
      https://docs.jax.dev/en/latest/_autosummary/jax.hessian.html

    Example:
      >>> from statetransform import State, transform
      >>> w = State(3.0, name="w")
      >>> float(transform.hessian(lambda x: w.value**2 * x, states=w)(2.0))
      4.0
    """
    return _derivative("hessian", jax.hessian, fun, argnums, states, has_aux, holomorphic=holomorphic)


def _refuse_reduce_axes(where: str, reduce_axes: Any) -> None:
    if reduce_axes:
        raise NotImplementedError(f"{where}: the argument `reduce_axes` is gone, as in JAX")


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
    saveable_args: Any = True,
    in_nzs: Any = None,
    states: Any = None,
) -> Any:
    """The vector-Jacobian product of a function over states: :func:`jax.vjp`. The function runs once, and writes once.

    Args:
      fun, `*primals`, has_aux, reduce_axes: as in :func:`jax.vjp`.
      saveable_args, in_nzs: as in :func:`jax.vjp` of the newer releases; for the primals without the states.
      states: a `State` or a pytree of them; they become the first primal.

    Returns:
      `(out, pullback)`, or `(out, pullback, aux)`. `pullback(cotangent)` gives a tuple with one cotangent for
      each primal; with
      `states`, those of the states come first, and stand alone where there are no primals.

    Raises:
      TypeError: `states` has a leaf that is no State, or `argnums` names an argument that is passed by reference.

    References:
      https://docs.jax.dev/en/latest/_autosummary/jax.vjp.html

    Example:
      >>> from statetransform import State, transform
      >>> w = State(3.0, name="w")
      >>> out, pullback = transform.vjp(lambda x: w.value * x, 2.0, states=w)
      >>> [float(ct) for ct in pullback(1.0)]
      [2.0, 3.0]
    """
    _refuse_reduce_axes("vjp", reduce_axes)
    lift, pure, primals = _first_primal("vjp", fun, primals, states, has_aux)
    options = _flags(primals, states, saveable_args=saveable_args, in_nzs=in_nzs)
    out, pullback, (aux, written, born) = jax.vjp(pure, *primals, has_aux=True, **options)
    if states is not None and len(primals) == 1:
        pullback = jax.tree_util.Partial(_alone, pullback)  # like JAX's own, it may leave a transform around
    out, aux = lift.leave((out, aux), written, born)
    return (out, pullback, aux) if has_aux else (out, pullback)


def _alone(pullback: Callable[[Any], Any], cotangents: Any) -> Any:
    (cotangent,) = pullback(cotangents)
    return cotangent


def jvp(
    fun: Callable[..., Any],
    primals: Any,
    tangents: Any,
    has_aux: bool = False,
    *,
    states: Any = None,
) -> Any:
    """The Jacobian-vector product of a function over states: :func:`jax.jvp`. The function runs once, and writes once.

    Args:
      fun, primals, tangents, has_aux: as in :func:`jax.jvp`.
      states: a `State` or a pytree of them; they become the first primal: `tangents=(state_tangents, *tangents)`.

    Returns:
      `(out, tangent)`, or `(out, tangent, aux)`.

    Raises:
      TypeError: `states` has a leaf that is no State, or `argnums` names an argument that is passed by reference.

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
    lift, pure, primals = _first_primal("jvp", fun, tuple(primals), states, has_aux)
    out, tangent, (aux, written, born) = jax.jvp(pure, primals, tuple(tangents), has_aux=True)
    out, aux = lift.leave((out, aux), written, born)
    return (out, tangent, aux) if has_aux else (out, tangent)


def linearize(
    fun: Callable[..., Any], *primals: Any, has_aux: bool = False, in_nzs: Any = None, states: Any = None
) -> Any:
    """Value and linear approximation of a function over states: :func:`jax.linearize`. It runs once, and writes once.

    Args:
      fun, `*primals`, has_aux: as in :func:`jax.linearize`.
      in_nzs: as in :func:`jax.linearize` of the newer releases; for the primals without the states.
      states: a `State` or a pytree of them; they become the first primal.

    Returns:
      `(out, pushforward)`, or `(out, pushforward, aux)`; `pushforward` takes a tangent for each primal, with
      `states` that of
      the states first. It can be called later, repeatedly, and under other transforms.

    Raises:
      TypeError: `states` has a leaf that is no State, or `argnums` names an argument that is passed by reference.

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
    options = _flags(primals, states, in_nzs=in_nzs)
    out, pushforward, (aux, written, born) = jax.linearize(pure, *primals, has_aux=True, **options)
    out, aux = lift.leave((out, aux), written, born)
    return (out, pushforward, aux) if has_aux else (out, pushforward)


def _first_primal(
    where: str, fun: Callable[..., Any], primals: tuple[Any, ...], states: Any, has_aux: bool
) -> tuple[Lift, Callable[..., Any], tuple[Any, ...]]:
    """A pure function, and its primals: if there are `states`, their values come first, in their structure."""
    primals, objects = hide(primals)
    lift = Lift(revealing(fun, objects))
    if states is None:
        return lift, lambda *primals: _with_aux(lift.call({}, primals, {}), has_aux, where), primals
    wrt = Differentiated(where, states, (), ())

    def pure(leading: Any, *primals: Any) -> Any:
        return _with_aux(lift.call(wrt.split((leading, ()))[0], primals, {}), has_aux, where)

    return lift, pure, (wrt.primal[0], *primals)


def _flags(primals: tuple[Any, ...], states: Any, **flags: Any) -> dict[str, Any]:
    """Flags for the primals, with one for the states; without those that are not given, which not every JAX knows."""
    given = {name: value for name, value in flags.items() if value is not None and value is not True}
    if states is None:
        return given
    each = lambda value: value if isinstance(value, tuple | list) else (value,) * (len(primals) - 1)
    return {name: (True, *each(value)) for name, value in given.items()}
