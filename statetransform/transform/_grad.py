"""Derivatives that take `argnums`: `grad`, `value_and_grad`, `jacfwd`, `jacrev`, `hessian`.

All run the function directly: Python control flow on concrete values works where it works in JAX. Written
states are auxiliary outputs, so writes happen once, from the forward pass. A state that is differentiated
with respect to is differentiated at its value on entry.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, Protocol, cast, overload

import jax

from .._base.errors import describe
from .._jax import typeof
from .._states.formatting import show_types
from .._states.frame import look_at_all
from .._states.state import State
from .._states.state_pytrees import Gathered, differentiated_states, states_of_a_model
from .._traces.arguments import is_reference, without_objects
from .._traces.lift import Direct, Lift, with_aux
from .._traces.wrapper import decorate
from ._options import bound_as_in

P = ParamSpec("P")


class Derivative(Direct):
    """A function under one of the transforms that take `argnums`; `derive` is JAX's."""

    def __init__(
        self,
        fun: Callable[..., Any],
        *,
        where: str,
        derive: Callable[..., Any],
        argnums: Any,
        states: Any,
        has_aux: bool = False,
        is_method: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(fun, is_method=is_method)
        self.where, self._derive = where, derive
        self._argnums = None if argnums is None else _indices(where, argnums)
        self._states, self._has_aux, self._jax_options = states, has_aux, options

    def _run(self, fun: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        argnums = 0 if self._argnums is None and self._states is None else self._argnums
        positions, is_single = self._positions(argnums, args), isinstance(argnums, int)
        # All that is differentiated is gathered into one pytree, so that no index has to be shifted.
        chosen, whole = without_objects(tuple([args[i] for i in positions]))
        primal = chosen[0] if is_single else chosen
        states = None if self._states is None else differentiated_states(self._states, f"{self.where}: ")
        if states is not None:
            values = self._values(states, argnums)
            primal = values if argnums is None else (values, primal)
        lift = Lift(fun)

        def pure(primal: Any) -> Any:
            values: dict[State, Any] = {}
            if states is not None:
                by_state, primal = (primal, ()) if argnums is None else primal
                values = states.by_state(by_state)
            given = dict(zip(positions, whole((primal,) if is_single else primal), strict=True))
            arguments = [given.get(i, arg) for i, arg in enumerate(args)]
            return with_aux(lift.call(values, arguments, kwargs), self._has_aux, self.where)

        first, second = self._derive(pure, has_aux=True, **self._jax_options)(primal)
        # JAX puts the auxiliary data beside the derivative, or beside the value where that is wanted, too.
        has_value = self._derive is jax.value_and_grad
        result, (aux, written, born) = first if has_value else (first, second)
        result = (result, aux) if self._has_aux else result
        return lift.leave((result, second) if has_value else result, written, born)

    def _positions(self, argnums: Any, args: tuple[Any, ...]) -> list[int]:
        """The positions of the arguments to differentiate with respect to; refuses what JAX refuses."""
        n, given = len(args), () if argnums is None else (argnums,) if isinstance(argnums, int) else argnums
        if argnums == () and self._states is None:
            raise ValueError(f"{self.where}: `argnums` is empty, so there is nothing to differentiate with respect to")
        if len({i % n if n else i for i in given}) < len(given):
            raise TypeError(f"{self.where}: argnums={argnums} names an argument twice")
        if self._derive in (jax.grad, jax.value_and_grad) and max(given, default=-1) >= n:
            raise TypeError(
                f"{self.where}: differentiating with respect to argnums={argnums} needs at least {max(given) + 1} "
                f"positional argument(s), but the function was called with {n}"
                + ("" if n else f". To differentiate with respect to states, write {states_of_a_model()}.")
            )
        for i in given:
            if not -n <= i < n:
                raise ValueError(
                    f"{self.where}: argnums={i}, but the function was called with {n} positional argument(s)"
                )
            if not jax.tree.leaves(args[i]) and any(map(is_reference, jax.tree.leaves(args[i], is_leaf=is_reference))):
                raise TypeError(
                    f"{self.where}: argument {i} is passed by reference (it is a state, or holds states), and nothing "
                    f"can be differentiated with respect to it. Name the states instead: {states_of_a_model()}."
                )
        return [i % n for i in given]

    def _values(self, states: Gathered, argnums: Any) -> Any:
        """The values of the states; refuses integers, where JAX's own message would not know the state."""
        if not states.states and argnums is None:
            raise ValueError(
                f"{self.where}: `states=` has no state in it, so there is nothing to differentiate with respect to. If "
                f"it comes from `st.states(model, kind)`, the model has no state of this kind. Write for example "
                f"{states_of_a_model()}."
            )
        values = look_at_all(states.states)
        for state, value in [] if self._jax_options.get("allow_int") else zip(states.states, values, strict=True):
            kinds = {typeof(leaf).dtype for leaf in jax.tree.leaves(value)}
            if not all(jax.numpy.issubdtype(dtype, jax.numpy.inexact) for dtype in kinds):
                raise TypeError(
                    f"{self.where}: {describe(state)} holds {show_types(value)}, but derivatives need "
                    "floating-point values. Leave it out of `states=`, or start it as a float."
                )
        return states.values(values)


def _indices(where: str, argnums: Any) -> int | tuple[int, ...]:
    try:
        return tuple(map(operator.index, argnums)) if isinstance(argnums, Iterable) else operator.index(argnums)
    except TypeError:
        raise TypeError(
            f"{where}: argnums must be an int or a sequence of ints, not {argnums!r}. To differentiate with respect to "
            f"states, write {states_of_a_model()}."
        ) from None


class Differentiates(Protocol):
    """What static type checkers see of `grad` and its like: a decorator that keeps the parameters of a function."""

    @overload
    def __call__(
        self, fun: Callable[P, Any], argnums: Any = None, has_aux: bool = False, *, states: Any = None, **options: Any
    ) -> Callable[P, Any]: ...
    @overload
    def __call__(
        self, fun: None = None, argnums: Any = None, has_aux: bool = False, *, states: Any = None, **options: Any
    ) -> Callable[[Callable[P, Any]], Callable[P, Any]]: ...
    def __call__(self, fun: Any = None, *args: Any, **options: Any) -> Any:
        """The derivative of a function, or what makes derivatives of functions."""
        ...


_as_in = cast(Callable[[Callable[..., Any]], Callable[[Callable[..., Any]], Differentiates]], bound_as_in)


def _derivative(derive: Callable[..., Any], fun: Any, argnums: Any, states: Any, options: dict[str, Any]) -> Any:
    derive(
        lambda: None, **{name: option for name, option in options.items() if name != "has_aux"}
    )  # says what is wrong
    return decorate(Derivative, fun, where=derive.__name__, derive=derive, argnums=argnums, states=states, **options)


@_as_in(jax.grad)
def grad(fun: Any = None, argnums: Any = None, *, states: Any = None, **options: Any) -> Any:
    """The gradient of a scalar function that uses states: :func:`jax.grad`. The forward pass writes states, once.

    Args:
      fun (Callable | None): the function. Without it, the call returns a decorator. Default: None.
      argnums (int | Sequence[int], optional): which positional arguments to differentiate with respect to.
        Default: 0, or no argument if `states` is given.
      states (pytree of `State`, optional): the states to differentiate with respect to, at their values on
        entry. Default: None, no state.
      has_aux (bool): whether `fun` returns a pair `(output, aux)`; only `output` is differentiated.
        Default: False.
      holomorphic (bool): whether `fun` promises to be holomorphic; then inputs and outputs must be complex.
        Default: False.
      allow_int (bool): whether to differentiate with respect to integers, which gives derivatives of dtype
        `float0`. Default: False.
      reduce_axes (Sequence[AxisName]): names of mapped axes over which the gradient is summed. Only for releases
        of JAX that have it. Default: ().

    Returns:
      The function of the same arguments whose result has, without `states`, the form of :func:`jax.grad`; with
      `states` alone, the structure of `states`; with both, the pair `(with respect to states, with respect to
      arguments)`. Where an argument holds an object, such as a state, its gradient has None.

    Raises:
      TypeError: `states` has a leaf that is not a State, or `argnums` names an argument that is passed by reference.

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
    return _derivative(jax.grad, fun, argnums, states, options)


@_as_in(jax.value_and_grad)
def value_and_grad(fun: Any = None, argnums: Any = None, *, states: Any = None, **options: Any) -> Any:
    """Value and gradient of a scalar function that uses states: :func:`jax.value_and_grad`. States are written once.

    Args:
      fun, argnums, states, has_aux, holomorphic, allow_int, reduce_axes: as for :func:`grad`.

    Returns:
      The function of the same arguments that gives `(value, gradient)`, the gradient in the form that :func:`grad`
      gives it; with `has_aux`, `((value, aux), gradient)`.

    Raises:
      TypeError: `states` has a leaf that is not a State, or `argnums` names an argument that is passed by reference.

    References:
      https://docs.jax.dev/en/latest/_autosummary/jax.value_and_grad.html

    Example:
      >>> from statetransform import State, transform
      >>> w = State(3.0, name="w")
      >>> value, gradient = transform.value_and_grad(lambda x: w.value * x**2, states=w)(2.0)
      >>> float(value), float(gradient)
      (12.0, 4.0)
    """
    return _derivative(jax.value_and_grad, fun, argnums, states, options)


@_as_in(jax.jacfwd)
def jacfwd(fun: Any = None, argnums: Any = None, *, states: Any = None, **options: Any) -> Any:
    """The Jacobian of a function that uses states, column by column: :func:`jax.jacfwd`. States are written once.

    Args:
      fun, argnums, states, has_aux, holomorphic: as for :func:`grad`.

    Returns:
      The function of the same arguments that gives the Jacobian: in the form of :func:`jax.jacfwd` with respect to
      the arguments, the states or the pair of both, as for :func:`grad`.

    Raises:
      TypeError: `states` has a leaf that is not a State, or `argnums` names an argument that is passed by reference.

    References:
      https://docs.jax.dev/en/latest/_autosummary/jax.jacfwd.html

    Example:
      >>> from statetransform import State, transform
      >>> w = State(3.0, name="w")
      >>> float(transform.jacfwd(lambda x: w.value * x**2, states=w)(2.0))
      4.0
    """
    return _derivative(jax.jacfwd, fun, argnums, states, options)


@_as_in(jax.jacrev)
def jacrev(fun: Any = None, argnums: Any = None, *, states: Any = None, **options: Any) -> Any:
    """The Jacobian of a function that uses states, row by row: :func:`jax.jacrev`. States are written once.

    Args:
      fun, argnums, states, has_aux, holomorphic, allow_int: as for :func:`grad`.

    Returns:
      The function of the same arguments that gives the Jacobian: in the form of :func:`jax.jacrev` with respect to
      the arguments, the states or the pair of both, as for :func:`grad`.

    Raises:
      TypeError: `states` has a leaf that is not a State, or `argnums` names an argument that is passed by reference.

    References:
      https://docs.jax.dev/en/latest/_autosummary/jax.jacrev.html

    Example:
      >>> from statetransform import State, transform
      >>> w = State(3.0, name="w")
      >>> float(transform.jacrev(lambda x: w.value * x**2)(2.0))
      12.0
    """
    return _derivative(jax.jacrev, fun, argnums, states, options)


@_as_in(jax.hessian)
def hessian(fun: Any = None, argnums: Any = None, *, states: Any = None, **options: Any) -> Any:
    """The matrix of second derivatives of a function that uses states: :func:`jax.hessian`. States are written once.

    Args:
      fun, argnums, states, has_aux, holomorphic: as for :func:`grad`.

    Returns:
      The function of the same arguments that gives the second derivatives: in the form of :func:`jax.hessian` with
      respect to the arguments, the states or the pair of both, as for :func:`grad`.

    Raises:
      TypeError: `states` has a leaf that is not a State, or `argnums` names an argument that is passed by reference.

    References:
      https://docs.jax.dev/en/latest/_autosummary/jax.hessian.html

    Example:
      >>> from statetransform import State, transform
      >>> w = State(3.0, name="w")
      >>> float(transform.hessian(lambda x: w.value**2 * x, states=w)(2.0))
      4.0
    """
    return _derivative(jax.hessian, fun, argnums, states, options)
