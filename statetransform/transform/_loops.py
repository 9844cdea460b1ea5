"""Loops: written states ride in the carry, states that are only read are constants of the loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.extend.core as jex

from .._core.arguments import hide, reveal
from .._core.compat import typeof
from .._core.errors import StateTraceError
from ._bodies import Body, Staged


def scan(
    f: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
    _split_transpose: bool = False,
    *,
    checkpoint: Any = None,
    progress: Any = None,
) -> tuple[Any, Any]:
    init, xs = hide((init, xs))
    n = _length(xs, length)
    slices = jax.tree.map(lambda x: _first_slice(x, n), xs)
    body = Body("scan", f, init, lambda carry: (carry, slices), lambda out: _pair(out)[0])

    def step(carry: Any, x: Any) -> tuple[Any, Any]:
        carry, out = body.step(carry, lambda user_carry: (user_carry, x))
        return carry, out[1]

    options = {"length": length, "reverse": reverse, "unroll": unroll}
    if checkpoint is None:
        (carry, values), ys = jax.lax.scan(step, body.init, xs, _split_transpose=_split_transpose, **options)
    else:
        (carry, values), ys = _checkpointed(step, body.init, xs, checkpoint, **options)
    body.leave(values)
    return reveal((carry, ys))


def _checkpointed(step: Any, init: Any, xs: Any, checkpoint: Any, **options: Any) -> Any:
    from .._binomial import checkpointed_scan

    return checkpointed_scan(step, init, xs, checkpoint=checkpoint, **options)


def for_loop(
    f: Callable[..., Any],
    *xs: Any,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
    checkpoint: Any = None,
    progress: Any = None,
) -> Any:
    call = _ForLoopBody(f)
    _, ys = scan(call, None, xs, length, reverse, unroll, checkpoint=checkpoint, progress=progress)
    return ys


class _ForLoopBody:
    """`f` as the body of a scan without a carry. Equal for equal `f`, so that traces are found again."""

    def __init__(self, f: Callable[..., Any]) -> None:
        self.f = f

    def __call__(self, carry: None, xs: tuple[Any, ...]) -> tuple[None, Any]:
        return carry, self.f(*xs)


def fori_loop(
    lower: Any,
    upper: Any,
    body_fun: Callable[[Any, Any], Any],
    init_val: Any,
    *,
    unroll: int | bool | None = None,
    checkpoint: Any = None,
    progress: Any = None,
) -> Any:
    init_val = hide(init_val)
    index = jax.ShapeDtypeStruct((), jax.dtypes.result_type(lower, upper), weak_type=True)
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
    checkpoint: Any = None,
    progress: Any = None,
) -> Any:
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


def _pair(out: Any) -> tuple[Any, Any]:
    if not isinstance(out, tuple) or len(out) != 2:
        raise TypeError(f"scan: the body must return a pair (carry, y), but it returned {out!r}")
    return out


def _length(xs: Any, length: int | None) -> int:
    """The number of steps; `jax.lax.scan` itself checks that all of `xs` agree."""
    sizes = [jax.numpy.shape(x)[0] for x in jax.tree.leaves(xs) if jax.numpy.ndim(x)]
    return sizes[0] if sizes else (length or 0)


def _first_slice(x: Any, n: int) -> Any:
    """The abstract value of one step's input."""
    aval = typeof(x)
    if not aval.shape:
        raise ValueError("scan: each leaf of `xs` needs a leading axis to step along, but one is a scalar")
    aval = jex.mapped_aval(aval.shape[0], 0, aval)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)
