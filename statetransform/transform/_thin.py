"""Transforms that need nothing but the lift: `named_call`, `eval_shape`, `make_jaxpr`, `shard_map`, `checkify`,
`discard_writes`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, overload

import jax
from jax.experimental import checkify as jax_checkify

from .._jaxcompat import typeof
from .._state.errors import check_function
from .._state.frame import Frame, kept_by_nobody, leave, read
from .._state.values import Values
from .._trace.arguments import NO_SELF, StaticArguments, abstract, hide, hide_self, name_of, named_apart, reveal
from .._trace.lift import Direct, Lift, at_once, bind
from .._trace.record import Call
from .._trace.tracebacks import boundary
from .._trace.traces import find_for_once
from .._trace.wrapper import Transformed, decorate, unbound
from ._sharded import Sharded, checked
from ._signatures import as_in, bound_as_in

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
    """Gives a function over states a name in profiles and compiled programs: :func:`jax.named_call`.

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

    def __init__(
        self, fun: Callable[..., Any], *, is_method: bool = False, name: str | None = None, **options: Any
    ) -> None:
        super().__init__(fun, is_method=is_method)
        self._jax_options = {"name": name_of(fun) if name is None else name, **options}

    def _call(self, obj: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        run = lambda: bind(self.__wrapped__, obj)(*args, **kwargs)  # the arguments stay the same objects
        return at_once(jax.named_call(run, **self._jax_options))


@overload
def discard_writes(fun: Callable[P, R]) -> Callable[P, R]: ...
@overload
def discard_writes(fun: None = None) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def discard_writes(fun: Any = None) -> Any:
    """Runs a function over states and drops what it writes to them.

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
        lift = Lift(bind(self.__wrapped__, obj))
        out, _, born = lift.call({}, args, kwargs)  # the arguments stay the same objects
        return lift.leave(out, None, born)


@bound_as_in(jax.shard_map)
def shard_map(f: Any = None, *, state_specs: Any = None, **options: Any) -> Any:
    """Maps a function over shards of its arguments: :func:`jax.shard_map`.

    States are replicated, each device sees them whole, unless `state_specs` lists them.

    Args:
      f (Callable | None): the function of one shard. Without it, the call returns a decorator. Default: None.
      out_specs (pytree of PartitionSpec): how the outputs of the shards are put together.
      in_specs (pytree of PartitionSpec, optional): how the arguments are split. Default: from the arguments'
        shardings, on explicit meshes.
      mesh (Mesh | AbstractMesh, optional): the mesh. Default: the one of the context.
      axis_names (Set): the mesh axes that are manual inside. Default: all.
      check_vma (bool): whether JAX checks over which axes values vary. Default: True.
      state_specs: a mapping from `State`, kind or predicate to the partition spec of its value, in and out.

    Returns:
      The mapped function.

    Raises:
      StateAxisError: a replicated state is given a value that differs between devices; list it in `state_specs`, or
        write a value that they share (`jax.lax.psum` and the like).

    References:
      https://docs.jax.dev/en/latest/_autosummary/jax.shard_map.html

    Example:
      >>> from statetransform import State, transform
      >>> import jax
      >>> import jax.numpy as jnp
      >>> from jax.sharding import PartitionSpec as P
      >>> total = State(0.0, name="total")
      >>> def add(x):
      ...     total.value = total.value + jax.lax.psum(x.sum(), "i")
      ...     return x
      >>> auto = (jax.sharding.AxisType.Auto,)
      >>> mesh = jax.make_mesh((1,), ("i",), axis_types=auto, devices=jax.devices()[:1])
      >>> _ = transform.shard_map(add, mesh=mesh, in_specs=P("i"), out_specs=P("i"))(jnp.arange(4.0))
      >>> float(total.value)
      6.0
    """
    return decorate(Sharded, f, state_specs=checked(state_specs), **options)


@bound_as_in(jax_checkify.checkify)
def checkify(f: Any = None, **options: Any) -> Any:
    """Makes the checks in a function over states values: :func:`jax.experimental.checkify.checkify`.

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

    def __init__(self, fun: Callable[..., Any], *, is_method: bool = False, **options: Any) -> None:
        super().__init__(fun, is_method=is_method)
        self._jax_options = options

    def _run(self, fun: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        lift = Lift(fun)
        error, (out, written, born) = jax_checkify.checkify(lambda: lift.call({}, args, kwargs), **self._jax_options)()
        return lift.leave((error, out), written, born)


@boundary
def eval_shape(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Shapes and dtypes of what a function over states returns: :func:`jax.eval_shape`. Nothing is computed or written.

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
    record = _trace("eval_shape", fun, *abstract((args, kwargs)))
    with Frame() as frame:  # takes the writes; states that were made go on, with abstract values
        out = record.finish(*jax.tree.map(_shape, record.out_avals))
        born = frame.survivors()
    leave((), born.items())
    return out


@as_in(jax.make_jaxpr)
def make_jaxpr(
    fun: Any = None,
    static_argnums: Any = (),
    axis_env: Any = None,
    return_shape: bool = False,
    **options: Any,
) -> Callable[..., Any]:
    """Shows what a function over states computes: :func:`jax.make_jaxpr`. Nothing is computed or written.

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
    if fun is None:
        given = {"static_argnums": static_argnums, "axis_env": axis_env, "return_shape": return_shape, **options}
        return functools.partial(make_jaxpr, **given)
    check_function("make_jaxpr", fun)
    static = StaticArguments(fun, static_argnums, ())

    @boundary
    @functools.wraps(fun)
    def traced(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = static.hide(args, kwargs, has_self=False)
        (args, kwargs), objects = hide((args, kwargs))
        args, kwargs = jax.tree.map(typeof, abstract((args, kwargs)))
        found: list[Call] = []

        def find(*args: Any, **kwargs: Any) -> None:
            with kept_by_nobody():
                found.append(_find("make_jaxpr", fun, args, kwargs, objects))

        jax.make_jaxpr(named_apart(find, kwargs), axis_env=axis_env)(*args, **kwargs)
        call = found[0]

        @functools.wraps(fun, assigned=("__name__",), updated=())
        def pure(values: Any, /, *args: Any, **kwargs: Any) -> Any:
            out, written, _ = call.apply(args, kwargs, values)
            return out, Values(dict(zip(call.written, written, strict=True)))

        values = Values({state: read(state) for state in call.reads})
        jaxpr = jax.make_jaxpr(named_apart(pure, kwargs), axis_env=axis_env, **options)(values, *args, **kwargs)
        if not return_shape:
            return jaxpr
        return jaxpr, reveal(jax.tree.map(_shape, call.out_avals[0]), call.objects)

    return traced


def _trace(where: str, fun: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    (args, kwargs), objects = hide((args, kwargs))
    return _find(where, fun, args, kwargs, objects)


def _find(where: str, fun: Callable[..., Any], args: Any, kwargs: Any, objects: list[Any]) -> Call:
    fun, obj = unbound(fun)
    instance, owners = (None, []) if obj is NO_SELF else hide_self(obj)
    leading = () if obj is NO_SELF else (instance,)
    return find_for_once(where, fun, (*leading, *args), kwargs, [*owners, *objects])


def _shape(aval: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)
