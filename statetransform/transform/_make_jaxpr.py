"""Programs that are shown and not run: `make_jaxpr`, `eval_shape`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

from .._jax import typeof
from .._states.frame import kept_by_nobody, only_births, read
from .._states.values import Values
from .._traces.arguments import NO_SELF, StaticArguments, abstract, hide, positional_parameters, reveal
from .._traces.lift import method_of
from .._traces.trace import Call
from .._traces.tracebacks import boundary
from .._traces.traces import find_for_once
from .._traces.wrapper import Transformed, decorate
from ._names import name_inputs
from ._options import as_in


@boundary
def eval_shape(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The shapes and dtypes that a stateful function returns: :func:`jax.eval_shape`. Nothing is computed or written.

    A state that the function creates has `jax.ShapeDtypeStruct` leaves as its value. Give it arrays before it is used.

    Args:
      fun (Callable): the function; it is traced and not run.
      *args: arrays, or anything with a shape and a dtype.
      **kwargs: the same, by keyword.

    Returns:
      The output with `jax.ShapeDtypeStruct` leaves.

    References:
      https://docs.jax.dev/en/latest/_autosummary/jax.eval_shape.html

    Example:
      >>> from statetransform import State, transform
      >>> import jax.numpy as jnp
      >>> u = State(jnp.zeros(3), name="u")
      >>> transform.eval_shape(lambda x: u.value * x, 2.0)
      ShapeDtypeStruct(shape=(3,), dtype=float32)
    """
    (args, kwargs), objects = hide(abstract((args, kwargs)))
    call = find_for_once("eval_shape", fun, args, kwargs, objects)
    return only_births(lambda: call.finish(*_shapes(call.out_avals)))


@as_in(jax.make_jaxpr)
def make_jaxpr(
    fun: Any = None,
    static_argnums: Any = (),
    axis_env: Any = None,
    return_shape: bool = False,
    **options: Any,
) -> Callable[..., Any]:
    """Shows what a stateful function computes: :func:`jax.make_jaxpr`. Nothing is computed or written.

    Args:
      fun (Callable | None): the function. Without it, the call returns a decorator. Default: None.
      static_argnums (int | Sequence[int]): positions of arguments that Python sees as they are. Default: ().
      axis_env (Sequence, optional): pairs of name and size of mapped axes. Default: None.
      return_shape (bool): whether to return a pair of the jaxpr and the output's shapes and dtypes. Default:
        False.

    Returns:
      A function that gives the jaxpr, with the values of the states read as the first inputs and those written as the
      last outputs.

    References:
      https://docs.jax.dev/en/latest/_autosummary/jax.make_jaxpr.html

    Example:
      >>> from statetransform import State, transform
      >>> n = State(0, name="n")
      >>> def f(x):
      ...     n.value = n.value + 1
      ...     return x
      >>> len(transform.make_jaxpr(f)(2.0).jaxpr.outvars), n.value
      (2, 0)
    """
    options = {"static_argnums": static_argnums, "axis_env": axis_env, "return_shape": return_shape, **options}
    return decorate(Shown, fun, **options)


class Shown(Transformed):
    """A function whose jaxpr is made at each call."""

    where = "make_jaxpr"

    def __init__(
        self, fun: Callable[..., Any], *, is_method: bool, static_argnums: Any, return_shape: bool, **options: Any
    ) -> None:
        super().__init__(fun, is_method=is_method)
        self._static = StaticArguments(fun, static_argnums, ())
        self._returns_shape, self._make_options = return_shape, options

    def _call(self, obj: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        fun = method_of(self.__wrapped__, obj)
        args, kwargs = self._static.hide(args, kwargs, has_self=obj is not NO_SELF)
        (args, kwargs), objects = hide((args, kwargs))
        args, kwargs = jax.tree.map(typeof, abstract((args, kwargs)))
        found: list[Call] = []

        def find(*args: Any, **kwargs: Any) -> None:
            with kept_by_nobody():
                found.append(find_for_once("make_jaxpr", fun, args, kwargs, objects))

        names = positional_parameters(fun)[0][: len(args)]
        jax.make_jaxpr(name_inputs(find, names, kwargs), axis_env=self._make_options["axis_env"])(*args, **kwargs)
        call = found[0]

        @functools.wraps(fun, assigned=("__name__",), updated=())
        def pure(values: Any, /, *args: Any, **kwargs: Any) -> Any:
            out, written, _ = call.apply(args, kwargs, values)
            return out, Values(dict(zip(call.written, written, strict=True)))

        values = Values({state: read(state) for state in call.reads})
        make = jax.make_jaxpr(name_inputs(pure, ["values", *names], kwargs), **self._make_options)
        jaxpr = make(values, *args, **kwargs)
        if not self._returns_shape:
            return jaxpr
        return jaxpr, reveal(_shapes(call.out_avals[0]), call.objects)


def _shapes(avals: Any) -> Any:
    """The shapes and dtypes of abstract values, with what else JAX says of them, such as their sharding."""
    return jax.eval_shape(lambda x: x, avals)
