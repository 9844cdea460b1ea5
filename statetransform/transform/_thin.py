"""Transforms that need nothing but the lift: `named_call`, `eval_shape`, `make_jaxpr`, `shard_map`, `checkify`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
from jax.experimental import checkify as jax_checkify

from .._core.arguments import StaticArguments, hide, reveal
from .._core.compat import typeof
from .._core.frame import Frame, leave, read
from .._core.lift import Staged, cache_of
from .._core.stage import Record
from .._core.values import Values
from .._core.wrapper import decorate

# JAX has no public name for "take the specs from the arguments".
_INFER: Any = inspect.signature(jax.shard_map).parameters["in_specs"].default


def named_call(fun: Any = None, *, name: str | None = None) -> Any:
    return decorate(Staged, fun, around=functools.partial(jax.named_call, name=name))


def shard_map(
    f: Any = None,
    /,
    *,
    out_specs: Any,
    in_specs: Any = _INFER,
    mesh: Any = None,
    axis_names: Any = frozenset(),
    check_vma: bool = True,
) -> Any:
    options = {"axis_names": axis_names, "check_vma": check_vma}
    replicated = jax.sharding.PartitionSpec()

    def around(body: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            # A method's instance comes first; it has no leaves, or is the same on all devices.
            specs = in_specs
            if isinstance(specs, tuple | list) and len(args) == len(specs) + 1:
                specs = (replicated, *specs)
            results = (out_specs, replicated, replicated)
            return jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=results, **options)(*args)

        return call

    return decorate(Staged, f, around=around)


def checkify(fun: Any = None, errors: Any = jax_checkify.user_checks) -> Any:
    def around(body: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            error, (out, written, born) = jax_checkify.checkify(body, errors)(*args, **kwargs)
            return (error, out), written, born

        return call

    return decorate(Staged, fun, around=around)


def eval_shape(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    record = _trace("eval_shape", fun, args, kwargs)
    with Frame() as frame:  # takes the writes; states that were made go on, with abstract values
        out = record.layout.finish(*jax.tree.map(_shape, record.out_avals))
        born = frame.survivors()
    leave((), born.items())
    return out


def make_jaxpr(
    fun: Callable[..., Any],
    static_argnums: Any = (),
    axis_env: Any = None,
    return_shape: bool = False,
) -> Callable[..., Any]:
    static = StaticArguments(fun, static_argnums, ())

    @functools.wraps(fun)
    def traced(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = static.hide(args, kwargs, has_self=False)
        args, kwargs = jax.tree.map(typeof, hide((args, kwargs)))
        records: list[Record] = []
        find = lambda *args, **kwargs: records.append(_trace("make_jaxpr", fun, args, kwargs))
        jax.make_jaxpr(find, axis_env=axis_env)(*args, **kwargs)
        record = records[0]

        @functools.wraps(fun, assigned=("__name__",), updated=())
        def pure(values: Any, *args: Any, **kwargs: Any) -> Any:
            out, written, _ = record.call(args, kwargs, values)
            return out, Values(dict(zip(record.written, written, strict=True)))

        values = Values({state: read(state) for state in record.reads})
        jaxpr = jax.make_jaxpr(pure, axis_env=axis_env)(values, *args, **kwargs)
        if not return_shape:
            return jaxpr
        return jaxpr, reveal(jax.tree.map(_shape, record.out_avals[0]))

    return traced


def _trace(where: str, fun: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Record:
    cache, fun, leading = cache_of(fun, where)
    args, kwargs = hide((args, kwargs))
    return cache.find(fun, (*leading, *args), kwargs)[1]


def _shape(aval: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)
