"""Transforms that run the function directly, with nothing but the lift: `named_call`, `discard_writes`, `checkify`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, overload

import jax
from jax.experimental import checkify as jax_checkify

from .._base.functions import name_of
from .._traces.lift import Direct, Lift, at_once, method_of
from .._traces.wrapper import Transformed, decorate
from ._options import as_in, bound_as_in

P = ParamSpec("P")
R = TypeVar("R")


@overload
def named_call(fun: Callable[P, R], *, name: str | None = None, **options: Any) -> Callable[P, R]: ...
@overload
def named_call(
    fun: None = None, *, name: str | None = None, **options: Any
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
@as_in(jax.named_call)
def named_call(fun: Any = None, *, name: str | None = None, **options: Any) -> Any:
    """Names a function in profiles and compiled programs: :func:`jax.named_call`.

    Args:
      fun (Callable | None): the function. Without it, the call returns a decorator. Default: None.
      name (str, optional): the name that the function's operations carry in the program. Default: the function's
        own name.

    Returns:
      The function.

    References:
      https://docs.jax.dev/en/latest/_autosummary/jax.named_call.html

    Example:
      >>> from statetransform import State, transform
      >>> w = State(3.0, name="w")
      >>> float(transform.named_call(lambda x: w.value * x, name="scale")(2.0))
      6.0
    """
    return decorate(NamedCall, fun, name=name, **options)


class NamedCall(Transformed):
    """A function that runs as it is, under a name; its writes are one."""

    where = "named_call"

    def _call(self, obj: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        run = lambda: method_of(self.__wrapped__, obj)(*args, **kwargs)  # the arguments stay the same objects
        name = self._options["name"]
        options = {**self._options, "name": name_of(self.__wrapped__) if name is None else name}
        return at_once(jax.named_call(run, **options))


@overload
def discard_writes(fun: Callable[P, R]) -> Callable[P, R]: ...
@overload
def discard_writes(fun: None = None) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def discard_writes(fun: Any = None) -> Any:
    """Runs a function and drops what it writes to states.

    The function sees its own writes while it runs. When it returns, every state is as it was before the call. So each
    call starts from the same states, which is what a gradient check, a line search or an evaluation needs. A
    `RandomState` gives the same keys in each call.

    Only states are restored. A plain attribute, list or dict that the function changes stays changed. A state that the
    function creates and stores somewhere keeps the last value that it was given, since it had no value before.

    Args:
      fun (Callable): a function, method, static or class method, or callable object; None for the form with
        parentheses.

    Returns:
      Callable: the function with the same signature and output.

    Raises:
      TypeError: `fun` is not a function.

    Example:
      >>> from statetransform import State, transform
      >>> u = State(1.0, name="u")
      >>> def grow(rate):
      ...     u.value = u.value * (1 + rate)
      ...     return u.value**2
      >>> slope = transform.grad(transform.discard_writes(grow))
      >>> float(slope(0.5)), float(slope(0.5)), u.value
      (3.0, 3.0, 1.0)
    """
    return decorate(WritesDiscarded, fun)


class WritesDiscarded(Transformed):
    """A function whose frame is dropped with what was written in it."""

    where = "discard_writes"

    def _call(self, obj: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        lift = Lift(method_of(self.__wrapped__, obj))
        out, _, born = lift.call({}, args, kwargs)  # the arguments stay the same objects
        return lift.leave(out, None, born)


@bound_as_in(jax_checkify.checkify)
def checkify(f: Any = None, **options: Any) -> Any:
    """Turns the checks in a function that uses states into a result: :func:`jax.experimental.checkify.checkify`.

    Args:
      f (Callable): the function.
      errors (frozenset): which checks to do. Default: `checkify.user_checks`.

    Returns:
      A function that returns `(error, out)`. States are written whether a check failed or not.

    References:
      https://docs.jax.dev/en/latest/debugging/checkify_guide.html

    Example:
      >>> from statetransform import State, transform
      >>> n = State(0, name="n")
      >>> from jax.experimental import checkify
      >>> def f(x):
      ...     checkify.check(x > 0, "x must be positive")
      ...     n.value = n.value + 1
      ...     return x
      >>> error, _ = transform.checkify(f)(-1.0)
      >>> "x must be positive" in error.get(), int(n.value)
      (True, 1)
    """
    return decorate(Checked, f, **options)


class Checked(Direct):
    """A function under `checkify`, which closes over the arguments, as JAX does."""

    where = "checkify"

    def _run(self, fun: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        lift = Lift(fun)
        error, (out, written, born) = jax_checkify.checkify(lambda: lift.call({}, args, kwargs), **self._options)()
        return lift.leave((error, out), written, born)
