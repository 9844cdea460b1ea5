"""Loops: written states ride in the carry, states that are only read are constants of the loop."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import jax
import jax.core
import jax.extend.core as jex

from .._core.arguments import hide, reveal
from .._core.compat import has_tracer, typeof
from .._core.errors import StateTraceError
from .._core.lift import at_once
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
    """Loops over the leading axis of arrays: :func:`jax.lax.scan` over states. Written states ride in the carry.

    Args:
      f, init, xs, length, reverse, unroll: as in :func:`jax.lax.scan`.
      checkpoint: None to store what the backward pass needs, "step" to recompute each step from its carry.
      progress: reserved.

    Returns:
      `(carry, ys)` as in :func:`jax.lax.scan`.

    Raises:
      StateStructureError: the body changes shape, dtype or structure of a state; the message shows both types.
      StateTraceError: the body makes a state that outlives it; make it before the loop.

    References:
      https://docs.jax.dev/en/latest/_autosummary/jax.lax.scan.html

    Example:
      >>> from statetransform import State, transform
      >>> n = State(0, name="n")
      >>> import jax.numpy as jnp
      >>> def body(total, x):
      ...     n.value = n.value + 1
      ...     return total + x, total
      >>> total, _ = transform.scan(body, 0.0, jnp.arange(4.0))
      >>> float(total), int(n.value)
      (6.0, 4)
    """
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
    """Calls a function for each slice of some arrays: :func:`jax.lax.scan` without a carry but the states.

    Args:
      f: called with one slice of each of `xs`.
      *xs: pytrees of arrays with the same leading axis; none with `length`.
      length, reverse, unroll: as in :func:`jax.lax.scan`.
      checkpoint: None to store what the backward pass needs, "step" to recompute each step from its carry.
      progress: reserved.

    Returns:
      The outputs, stacked on a new leading axis.

    Raises:
      StateStructureError: the body changes shape, dtype or structure of a state; the message shows both types.
      StateTraceError: the body makes a state that outlives it; make it before the loop.

    References:
      https://docs.jax.dev/en/latest/_autosummary/jax.lax.scan.html

    Example:
      >>> from statetransform import State, transform
      >>> n = State(0, name="n")
      >>> def step(x):
      ...     n.value = n.value + 1
      ...     return 2 * x
      >>> import jax.numpy as jnp
      >>> transform.for_loop(step, jnp.arange(3)).tolist(), int(n.value)
      ([0, 2, 4], 3)
    """
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
    if jax.config.jax_disable_jit:
        in_python = lambda carry, x: split(hide(f(*reveal(make_args(carry, x)))))
        return reveal(at_once(jax.lax.scan, in_python, init, xs, **options))
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
    """Loops from `lower` to `upper`: :func:`jax.lax.fori_loop` over states. Written states ride in the carry.

    Args:
      lower, upper, body_fun, init_val, unroll: as in :func:`jax.lax.fori_loop`.
      checkpoint, progress: reserved.

    Returns:
      The last carry.

    Raises:
      StateStructureError: the body changes shape, dtype or structure of a state; the message shows both types.
      StateTraceError: the body makes a state that outlives it; make it before the loop.

    References:
      https://docs.jax.dev/en/latest/_autosummary/jax.lax.fori_loop.html

    Example:
      >>> from statetransform import State, transform
      >>> n = State(0, name="n")
      >>> def body(i, total):
      ...     n.value = n.value + 1
      ...     return total + i
      >>> int(transform.fori_loop(0, 4, body, 0)), int(n.value)
      (6, 4)
    """
    _refuse_planned("fori_loop", checkpoint=checkpoint, progress=progress)
    init_val = hide(init_val)
    if jax.config.jax_disable_jit and not has_tracer((lower, upper)):
        in_python = lambda i, carry: hide(body_fun(i, reveal(carry)))
        return reveal(at_once(jax.lax.fori_loop, lower, upper, in_python, init_val))
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
    """Loops while a condition holds: :func:`jax.lax.while_loop` over states, which the condition may read.

    Args:
      cond_fun, body_fun, init_val: as in :func:`jax.lax.while_loop`.
      max_steps, checkpoint, progress: reserved.

    Returns:
      The last carry.

    Raises:
      StateStructureError: the body changes shape, dtype or structure of a state; the message shows both types.
      StateTraceError: the body makes a state that outlives it; make it before the loop.
      StateTraceError: the condition writes a state; write it in the body.

    References:
      https://docs.jax.dev/en/latest/_autosummary/jax.lax.while_loop.html

    Example:
      >>> from statetransform import State, transform
      >>> n = State(0, name="n")
      >>> def body(x):
      ...     n.value = n.value + 1
      ...     return x / 2
      >>> float(transform.while_loop(lambda x: n.value < 3, body, 8.0)), int(n.value)
      (1.0, 3)
    """
    _refuse_planned("while_loop", max_steps=max_steps, checkpoint=checkpoint, progress=progress)
    init_val = hide(init_val)
    if jax.config.jax_disable_jit:
        # As in JAX: a condition that Python cannot decide on, under `vmap` for example, is staged.
        with contextlib.suppress(jax.errors.ConcretizationTypeError):
            return at_once(_while_in_python, cond_fun, body_fun, init_val)
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


def _while_in_python(cond_fun: Callable[[Any], Any], body_fun: Callable[[Any], Any], carry: Any) -> Any:
    while cond_fun(carry):
        carry = body_fun(carry)
    return carry


def map(f: Callable[[Any], Any], xs: Any, *, batch_size: int | None = None) -> Any:
    """Applies a function to each slice, one after another: :func:`jax.lax.map` over states.

    Args:
      f, xs, batch_size: as in :func:`jax.lax.map`. Within a batch, states are shared as in `vmap`.

    Returns:
      The outputs, stacked on a new leading axis.

    Raises:
      StateStructureError: the body changes shape, dtype or structure of a state; the message shows both types.
      StateTraceError: the body makes a state that outlives it; make it before the loop.

    References:
      https://docs.jax.dev/en/latest/_autosummary/jax.lax.map.html

    Example:
      >>> from statetransform import State, transform
      >>> n = State(0, name="n")
      >>> import jax.numpy as jnp
      >>> def f(x):
      ...     n.value = n.value + 1
      ...     return x * n.value
      >>> transform.map(f, jnp.ones(3)).tolist()
      [1.0, 2.0, 3.0]
    """
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
    """A parallel prefix scan: :func:`jax.lax.associative_scan` over states that the function reads.

    Args:
      fn, elems, reverse, axis: as in :func:`jax.lax.associative_scan`. JAX calls `fn` directly, some times
      that depend on the
        length only, so what it writes is written as often.

    Returns:
      The scanned array or pytree.

    References:
      https://docs.jax.dev/en/latest/_autosummary/jax.lax.associative_scan.html

    Example:
      >>> from statetransform import State, transform
      >>> w = State(3.0, name="w")
      >>> import jax.numpy as jnp
      >>> transform.associative_scan(lambda a, b: a + b * w.value / 3, jnp.arange(4.0)).tolist()
      [0.0, 1.0, 3.0, 6.0]
    """
    # JAX calls `fn` directly, a number of times that depends on the length only; the frame makes the
    # writes of those calls one.
    return at_once(jax.lax.associative_scan, fn, elems, reverse=reverse, axis=axis)


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
