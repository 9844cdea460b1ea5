"""Loops: written states ride in the carry, states that are only read are constants of the loop."""

from __future__ import annotations

import contextlib
import functools
import itertools
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.core
import jax.extend.core as jex
import numpy as np

from .._checkpointed_loops import loops as checkpointed
from .._checkpointed_loops.budget import MemoryBudget
from .._checkpointed_loops.chunks import Watch
from .._checkpointed_loops.loops import steps_of
from .._core.arguments import hide, reveal
from .._core.errors import StateTraceError
from .._core.jaxcompat import has_tracer, is_jit_disabled, typeof
from .._core.lift import at_once
from ._bodies import Body, Staged
from ._progress import Meter
from ._vmap import vmap

Checkpoint = None | int | str | MemoryBudget


def scan(
    f: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
    _split_transpose: bool = False,
    *,
    checkpoint: Checkpoint = None,
    progress: Any = None,
) -> tuple[Any, Any]:
    """Loops over the leading axis of arrays: :func:`jax.lax.scan` over states. Written states ride in the carry.

    Args:
      f, init, xs, length, reverse, unroll: as in :func:`jax.lax.scan`.
      checkpoint: what reverse mode stores. None: the residuals of every step, as JAX. "step": the carry of every step,
        from which the step is recomputed. A number `k`: at most `k` carries besides the initial one, with the fewest
        step evaluations possible, those of :func:`statetransform.schedule`. "sqrt", "log": that with the square root or
        the binary logarithm of the number of steps. A :class:`statetransform.MemoryBudget`: what fits. With any but
        the first two, `unroll` is for the loop that is not differentiated.
      progress: True for a bar of `tqdm`, its label, the number of steps between updates, or a mapping of `every` and
        arguments of `tqdm.tqdm`.

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

      Ten thousand steps backwards with 20 stored carries:

      >>> u = State(jnp.linspace(0.0, 1.0, 50), name="u")
      >>> def simulate(rate):
      ...     def step(_, x):
      ...         u.value = u.value + rate * jnp.sin(u.value)
      ...         return None, None
      ...     transform.scan(step, None, length=10_000, checkpoint=20)
      ...     return u.value.mean()
      >>> gradient = transform.grad(simulate)(1e-4)
    """
    return _scan(
        "scan",
        f,
        init,
        xs,
        checkpoint,
        progress,
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
    checkpoint: Checkpoint = None,
    progress: Any = None,
) -> Any:
    """Calls a function for each slice of some arrays: :func:`jax.lax.scan` without a carry but the states.

    Args:
      f: called with one slice of each of `xs`.
      *xs: pytrees of arrays with the same leading axis; none with `length`.
      length, reverse, unroll: as in :func:`jax.lax.scan`.
      checkpoint, progress: as in :func:`scan`.

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
    _, ys = _scan(
        "for_loop",
        f,
        None,
        xs,
        checkpoint,
        progress,
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
    checkpoint: Checkpoint,
    progress: Any,
    *,
    make_args: Callable[[Any, Any], tuple[Any, ...]],
    split: Callable[[Any], tuple[Any, Any]],
    **options: Any,
) -> tuple[Any, Any]:
    """The scan behind `scan`, `for_loop` and `map`, which differ in how the body is called."""
    _refuse_no_function(where, f)
    _refuse_no_choice(where, checkpoint)
    if is_jit_disabled():
        return _scan_in_python(f, init, xs, make_args, split, options)
    (init, xs), objects = hide((init, xs))
    if options["length"] is None and not jax.tree.leaves(xs):
        raise ValueError(f"{where}: there is nothing to step along: give `xs`, or the number of steps as `length`")
    lengths = {np.shape(x)[0] for x in jax.tree.leaves(xs) if np.ndim(x)}
    if len({*lengths, options["length"]} - {None}) > 1:
        jax.lax.scan(lambda carry, _: (carry, None), None, xs, options["length"])  # says what is wrong
    slices = jax.tree.map(functools.partial(_first_slice, where), xs)
    carry_of = lambda out: split(out)[0]
    body = Body(where, f, init, lambda carry: make_args(carry, slices), carry_of, objects)
    n = steps_of(xs, options["length"])
    watch = Meter(where, n, progress) if progress and n else None
    scan = scan_with(where, checkpoint, watch)

    def loop(step: Callable[..., Any], init: Any, xs: Any) -> Any:
        def pure(carry: Any, x: Any) -> tuple[Any, Any]:
            carry, out = step(carry, lambda user_carry: make_args(user_carry, x))
            return carry, split(out)[1]

        return scan(pure, init, xs, **options)

    way = (where, checkpoint, watch, *sorted(options.items()))
    (carry, values), ys = body.run(way, loop, carry_of, xs)
    body.leave(values)
    return body.reveal((carry, ys))


def _scan_in_python(
    f: Callable[..., Any],
    init: Any,
    xs: Any,
    make_args: Callable[[Any, Any], tuple[Any, ...]],
    split: Callable[[Any], tuple[Any, Any]],
    options: dict[str, Any],
) -> tuple[Any, Any]:
    """The loop under :func:`jax.disable_jit`: JAX calls the body with values."""
    (init, xs), objects = hide((init, xs))
    seen: list[Any] = list(objects)

    def step(carry: Any, x: Any) -> tuple[Any, Any]:
        out, seen[:] = hide(split(f(*reveal(make_args(carry, x), objects))))
        return out

    return reveal(at_once(jax.lax.scan, step, init, xs, **options), seen)


def fori_loop(
    lower: Any,
    upper: Any,
    body_fun: Callable[[Any, Any], Any],
    init_val: Any,
    *,
    unroll: int | bool | None = None,
    checkpoint: Checkpoint = None,
    progress: Any = None,
) -> Any:
    """Loops from `lower` to `upper`: :func:`jax.lax.fori_loop` over states. Written states ride in the carry.

    Args:
      lower, upper, body_fun, init_val, unroll: as in :func:`jax.lax.fori_loop`.
      checkpoint, progress: as in :func:`scan`. With bounds that are traced, too, reverse mode works with a number of
        carries or a budget.

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
    _refuse_no_function("fori_loop", body_fun)
    _refuse_no_choice("fori_loop", checkpoint)
    if is_jit_disabled() and not has_tracer((lower, upper)):
        hidden, objects = hide(init_val)
        in_python = lambda i, carry: hide(body_fun(i, reveal(carry, objects)))[0]
        return reveal(at_once(jax.lax.fori_loop, lower, upper, in_python, hidden), objects)
    init_val, objects = hide(init_val)
    start, stop, n = _bounds(lower, upper)
    index = typeof(start)
    body = Body("fori_loop", body_fun, init_val, lambda carry: (index, carry), lambda out: out, objects)
    watch = Meter("fori_loop", n, progress) if progress and n != 0 else None

    def loop(step: Callable[..., Any], init: Any, lower: Any, upper: Any) -> Any:
        one = lambda i, carry: step(carry, lambda user_carry: (i, user_carry))[0]
        if checkpoint is None and watch is None:
            return jax.lax.fori_loop(lower, upper, one, init, unroll=unroll)
        count = lambda state: (state[0] + 1, one(*state))
        if n is None:
            run = while_with("fori_loop", checkpoint, None, watch)
            return run(lambda state: state[0] < upper, count, (lower, init))[1]
        counted = lambda state, _: (count(state), None)
        scan = scan_with("fori_loop", checkpoint, watch)
        return scan(counted, (lower, init), None, n, unroll=unroll or 1)[0][1]

    way = ("fori_loop", checkpoint, watch, unroll, n, str(index))
    if n is None:
        carry, values = body.run(way, loop, lambda out: out, start, stop)
    else:  # known bounds stay known, so that JAX can differentiate
        fixed = lambda step, init: loop(step, init, lower, upper)
        carry, values = body.run((*way, start), fixed, lambda out: out)
    body.leave(values)
    return body.reveal(carry)


def _bounds(lower: Any, upper: Any) -> tuple[Any, Any, int | None]:
    """The bounds as :func:`jax.lax.fori_loop` takes them, and the number of steps if they are known."""
    if not has_tracer((lower, upper)):
        _common_dtype(lower, upper)
        start, stop = int(lower), int(upper)
        return start, stop, max(stop - start, 0)
    dtype = _common_dtype(lower, upper)
    cast = lambda bound: bound if typeof(bound).dtype == dtype else jax.lax.convert_element_type(bound, dtype)
    return cast(lower), cast(upper), None


def _common_dtype(lower: Any, upper: Any) -> Any:
    """The type of both bounds; a Python scalar takes that of the other."""
    try:
        a, b = typeof(lower), typeof(upper)
    except (TypeError, ValueError):
        jax.lax.fori_loop(lower, upper, lambda i, carry: carry, 0)  # says what is wrong
        raise
    if a.dtype == b.dtype:
        return a.dtype
    is_signed = lambda aval: jax.numpy.issubdtype(aval.dtype, jax.numpy.signedinteger)
    if is_signed(a) and is_signed(b) and a.weak_type != b.weak_type:
        return b.dtype if a.weak_type else a.dtype
    raise TypeError(
        f"fori_loop: `lower` and `upper` must have equal types, but are {a.str_short()} and {b.str_short()}. "
        "Convert one of them, `upper.astype(lower.dtype)` for example."
    )


def while_with(
    where: str, checkpoint: Checkpoint, max_steps: int | None, watch: Watch | None = None
) -> Callable[..., Any]:
    """The pure loop of unknown length that keeps what `checkpoint` says."""
    if checkpoint == "step" and max_steps is not None:
        checkpoint = max_steps
    if isinstance(checkpoint, str) and checkpoint == "step":
        raise ValueError(
            f'{where}: checkpoint="step" stores the carry of every step, but the number of steps is not known. Write '
            "how many carries may be stored, checkpoint=20 for example"
            + (", or the largest number of steps, `max_steps=`." if where == "while_loop" else ".")
        )
    return functools.partial(
        checkpointed.while_loop, where=where, max_steps=max_steps, checkpoint=checkpoint, watch=watch
    )


def while_loop(
    cond_fun: Callable[[Any], Any],
    body_fun: Callable[[Any], Any],
    init_val: Any,
    *,
    max_steps: int | None = None,
    checkpoint: Checkpoint = None,
    progress: Any = None,
) -> Any:
    """Loops while a condition holds: :func:`jax.lax.while_loop` over states, which the condition may read.

    Args:
      cond_fun, body_fun, init_val: as in :func:`jax.lax.while_loop`.
      max_steps: after how many steps the loop ends even if the condition still holds; None for no limit.
      checkpoint: None for no reverse mode, as JAX. A number `k`, or a :class:`statetransform.MemoryBudget`: reverse
        mode with at most `k` stored carries besides the initial one, for a length that is not known in advance; it
        takes a few percent more step evaluations than if it were. "sqrt", "log", "step": as in :func:`scan`, of
        `max_steps`.
        Reverse mode over reverse mode needs `max_steps`.
      progress: as in :func:`scan`.

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
    if max_steps is not None and (isinstance(max_steps, bool) or operator.index(max_steps) < 0):
        raise ValueError(f"while_loop: `max_steps` must be a number of steps, not {max_steps!r}")
    _refuse_no_function("while_loop", cond_fun)
    _refuse_no_function("while_loop", body_fun)
    _refuse_no_choice("while_loop", checkpoint)
    if is_jit_disabled():
        init_val = jax.tree.map(jax.numpy.asarray, init_val)  # or the body could change the caller's arrays in place
        # As in JAX: a condition that Python cannot decide on, under `vmap` for example, is staged.
        with contextlib.suppress(jax.errors.ConcretizationTypeError):
            return at_once(_while_in_python, cond_fun, body_fun, init_val, max_steps)
    init_val, objects = hide(init_val)
    body = Body("while_loop", body_fun, init_val, lambda carry: (carry,), lambda out: out, objects)
    test = Staged("while_loop", cond_fun, (body.init[0],), objects, body.entry)
    for state in test.written:
        raise StateTraceError.written_in_predicate(state)
    watch = Meter("while_loop", None, progress) if progress else None
    run = while_with("while_loop", checkpoint, max_steps, watch)

    def loop(step: Callable[..., Any], condition: Callable[..., Any], init: Any) -> Any:
        return run(condition, lambda carry: step(carry, lambda user_carry: (user_carry,))[0], init)

    carry, values = body.run(("while_loop", checkpoint, max_steps, watch), loop, lambda out: out, test=test)
    body.leave(values)
    return body.reveal(carry)


def _while_in_python(
    cond_fun: Callable[[Any], Any], body_fun: Callable[[Any], Any], carry: Any, max_steps: int | None
) -> Any:
    steps = itertools.count() if max_steps is None else range(max_steps)
    for _ in steps:
        if not cond_fun(carry):
            break
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
    leaves = jax.tree.leaves(xs)
    if batch_size is None or not leaves:
        return for_loop(f if batch_size is None else vmap(f), xs)
    n = jax.numpy.shape(leaves[0])[0]
    n_batches, rest = divmod(n, batch_size) if batch_size else (0, n)  # as in JAX, 0 is one batch of all
    tail = jax.tree.map(lambda x: x[n - rest :], xs)
    if n_batches == 0:
        return vmap(f)(tail)
    head = jax.tree.map(lambda x: x[: n - rest].reshape(n_batches, batch_size, *x.shape[1:]), xs)
    ys = for_loop(vmap(f), head)
    ys = jax.tree.map(lambda y: y.reshape(-1, *y.shape[2:]), ys)
    if not rest:
        return ys
    return jax.tree.map(lambda *parts: jax.lax.concatenate(parts, 0), ys, vmap(f)(tail))


def associative_scan(fn: Callable[[Any, Any], Any], elems: Any, reverse: bool = False, axis: int = 0) -> Any:
    """A parallel prefix scan: :func:`jax.lax.associative_scan` over states that the function reads.

    Args:
      fn, elems, reverse, axis: as in :func:`jax.lax.associative_scan`. JAX calls `fn` directly, some times
        that depend on the length only, so what it writes is written as often.

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


def scan_with(where: str, checkpoint: Checkpoint, watch: Watch | None = None) -> Callable[..., Any]:
    """The pure scan that keeps what `checkpoint` says."""
    if checkpoint is None and watch is None:
        return jax.lax.scan
    if checkpoint == "step" and watch is None:
        return lambda step, *args, **options: jax.lax.scan(jax.checkpoint(step), *args, **options)
    return functools.partial(checkpointed.scan, where=where, checkpoint=checkpoint, watch=watch)


def _pair(out: Any) -> tuple[Any, Any]:
    if not isinstance(out, tuple) or len(out) != 2:
        raise TypeError(f"scan: the body must return a pair (carry, y), but it returned {out!r}")
    return out


class _NoLeadingAxisError(ValueError, IndexError):
    """JAX raises the one or the other, according to the release."""


def _first_slice(where: str, x: Any) -> Any:
    """The abstract value of one step's input."""
    aval = typeof(x)
    if not aval.shape:
        cure = f" For {x} calls without arguments write `length={x}`." if isinstance(x, int) else ""
        raise _NoLeadingAxisError(
            f"{where}: each leaf of `xs` needs a leading axis to step along, but one is a scalar.{cure}"
        )
    return jex.mapped_aval(aval.shape[0], 0, aval)


def _refuse_no_function(where: str, fun: Any) -> None:
    if not callable(fun):
        cure = (
            "The function comes first: `for_loop(f, xs)`, or `for_loop(f, length=100)`." if where == "for_loop" else ""
        )
        raise TypeError(f"{where}: expected a function, not {fun!r} of type {type(fun).__name__}. {cure}".rstrip())


def _refuse_no_choice(where: str, checkpoint: Any) -> None:
    """Refuses what other functions take for `checkpoint`, or for a policy."""
    if isinstance(checkpoint, bool) or (callable(checkpoint) and not isinstance(checkpoint, MemoryBudget)):
        cure = 'Write how many carries may be stored, checkpoint=20 for example, or "step", "sqrt", "log"'
        if callable(checkpoint):
            cure = f"A policy belongs to a function: `{where}(transform.checkpoint(body, policy=...), ...)`. {cure}"
        raise TypeError(f"{where}: checkpoint={checkpoint!r} does not say which carries are stored. {cure}.")
