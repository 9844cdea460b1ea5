"""Loops: written states ride in the carry, states that are only read are constants of the loop."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.core
import jax.extend.core as jex

from .._core.arguments import hide, reveal
from .._core.compat import typeof
from .._core.errors import StateTraceError
from .._core.lift import Lift
from ._bodies import Body, Staged
from ._vmap import vmap


def scan(
    f: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
    _split_transpose: bool = False,
    *,
    checkpoint: str | None = None,
    progress: Any = None,
) -> tuple[Any, Any]:
    _refuse_planned("scan", progress=progress)
    return _scan(
        "scan",
        f,
        init,
        xs,
        checkpoint,
        make_args=lambda carry, x: (carry, x),
        split=_pair,
        length=length,
        reverse=reverse,
        unroll=unroll,
        _split_transpose=_split_transpose,
    )


def for_loop(
    f: Callable[..., Any],
    *xs: Any,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
    checkpoint: str | None = None,
    progress: Any = None,
) -> Any:
    _refuse_planned("for_loop", progress=progress)
    _, ys = _scan(
        "for_loop",
        f,
        None,
        xs,
        checkpoint,
        make_args=lambda carry, x: x,
        split=lambda out: (None, out),
        length=length,
        reverse=reverse,
        unroll=unroll,
    )
    return ys


def _scan(
    where: str,
    f: Callable[..., Any],
    init: Any,
    xs: Any,
    checkpoint: str | None,
    *,
    make_args: Callable[[Any, Any], tuple[Any, ...]],
    split: Callable[[Any], tuple[Any, Any]],
    **options: Any,
) -> tuple[Any, Any]:
    """The scan behind `scan`, `for_loop` and `map`, which differ in how the body is called."""
    init, xs = hide((init, xs))
    slices = jax.tree.map(_first_slice, xs)
    body = Body(where, f, init, lambda carry: make_args(carry, slices), lambda out: split(out)[0])

    def step(carry: Any, x: Any) -> tuple[Any, Any]:
        carry, out = body.step(carry, lambda user_carry: make_args(user_carry, x))
        return carry, split(out)[1]

    (carry, values), ys = scan_with(checkpoint)(step, body.init, xs, **options)
    body.leave(values)
    return reveal((carry, ys))


def fori_loop(
    lower: Any,
    upper: Any,
    body_fun: Callable[[Any, Any], Any],
    init_val: Any,
    *,
    unroll: int | bool | None = None,
    checkpoint: None = None,
    progress: Any = None,
) -> Any:
    _refuse_planned("fori_loop", checkpoint=checkpoint, progress=progress)
    init_val = hide(init_val)
    index = jax.core.ShapedArray((), jax.dtypes.result_type(lower, upper), weak_type=True)
    body = Body("fori_loop", body_fun, init_val, lambda carry: (index, carry), lambda out: out)
    step = lambda i, carry: body.step(carry, lambda user_carry: (i, user_carry))[0]
    carry, values = jax.lax.fori_loop(lower, upper, step, body.init, unroll=unroll)
    body.leave(values)
    return reveal(carry)


def while_loop(
    cond_fun: Callable[[Any], Any],
    body_fun: Callable[[Any], Any],
    init_val: Any,
    *,
    max_steps: int | None = None,
    checkpoint: None = None,
    progress: Any = None,
) -> Any:
    _refuse_planned("while_loop", max_steps=max_steps, checkpoint=checkpoint, progress=progress)
    init_val = hide(init_val)
    body = Body("while_loop", body_fun, init_val, lambda carry: (carry,), lambda out: out)
    test = Staged("while_loop", cond_fun, (body.init[0],), body.entry)
    for state in test.record.written:
        raise StateTraceError.written_in_predicate(state)
    constants = body.read_outside(test.record.reads)

    def condition(carry: Any) -> Any:
        user_carry, values = carry
        return test.call((user_carry,), {**constants, **dict(zip(body.written, values, strict=True))})[0]

    step = lambda carry: body.step(carry, lambda user_carry: (user_carry,))[0]
    carry, values = jax.lax.while_loop(condition, step, body.init)
    body.leave(values)
    return reveal(carry)


def map(f: Callable[[Any], Any], xs: Any, *, batch_size: int | None = None) -> Any:
    if batch_size is None:
        return for_loop(f, xs)
    n = {jax.numpy.shape(x)[0] for x in jax.tree.leaves(xs)}.pop()
    n_batches, rest = divmod(n, batch_size)
    head = jax.tree.map(lambda x: x[: n - rest].reshape(n_batches, batch_size, *x.shape[1:]), xs)
    ys = for_loop(vmap(f), head)
    ys = jax.tree.map(lambda y: y.reshape(n - rest, *y.shape[2:]), ys)
    if not rest:
        return ys
    tail = vmap(f)(jax.tree.map(lambda x: x[n - rest :], xs))
    return jax.tree.map(lambda *parts: jax.numpy.concatenate(parts), ys, tail)


def associative_scan(fn: Callable[[Any, Any], Any], elems: Any, reverse: bool = False, axis: int = 0) -> Any:
    # JAX calls `fn` directly, a number of times that depends on the length only; the frame makes the
    # writes of those calls one.
    scan = functools.partial(jax.lax.associative_scan, fn, reverse=reverse, axis=axis)
    lifted = Lift(scan)
    return lifted.leave(*lifted.call({}, (elems,), {}))


def scan_with(checkpoint: str | None) -> Callable[..., Any]:
    """The pure scan that keeps what `checkpoint` says."""
    if checkpoint is None:
        return jax.lax.scan
    if checkpoint != "step":
        raise NotImplementedError(
            f'checkpoint={checkpoint!r} is not available in this version; "step" recomputes each step from its carry'
        )
    return lambda step, *args, **options: jax.lax.scan(jax.checkpoint(step), *args, **options)


def _refuse_planned(where: str, **arguments: Any) -> None:
    """Arguments that are reserved: better an error than a loop that quietly ignores them."""
    for name, value in arguments.items():
        if value is not None:
            raise NotImplementedError(f"{where}: `{name}=` is not available in this version; leave it out")


def _pair(out: Any) -> tuple[Any, Any]:
    if not isinstance(out, tuple) or len(out) != 2:
        raise TypeError(f"scan: the body must return a pair (carry, y), but it returned {out!r}")
    return out


def _first_slice(x: Any) -> Any:
    """The abstract value of one step's input."""
    aval = typeof(x)
    if not aval.shape:
        raise ValueError("scan: each leaf of `xs` needs a leading axis to step along, but one is a scalar")
    return jex.mapped_aval(aval.shape[0], 0, aval)
