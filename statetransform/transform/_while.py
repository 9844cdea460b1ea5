"""Loops that a condition or bounds end: `while_loop`, `fori_loop`. Written states ride in the carry."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from .. import _memory
from .._base.errors import StateTraceError, describe
from .._jax import has_tracer, is_jit_disabled, typeof
from .._memory import ProgressBar, Reversible
from .._traces.arguments import hide, reveal
from .._traces.lift import at_once
from .._traces.tracebacks import boundary
from ._bodies import Body, Checkpoint, check_loop, number_of_steps, traced_once
from ._eager_loops import in_eager_mode
from ._entry import OTHER


@boundary
def while_loop(
    cond_fun: Callable[[Any], Any],
    body_fun: Callable[[Any], Any],
    init_val: Any,
    *,
    max_steps: int | None = None,
    checkpoint: Checkpoint = None,
    progress: Any = None,
) -> Any:
    """Loops while a condition holds: :func:`jax.lax.while_loop` with states, which the condition may read.

    Args:
      cond_fun (Callable): takes the carry and returns a boolean scalar: whether to go on. It may read states,
        and must not write them.
      body_fun (Callable): takes the carry and returns the next one, of the same structure, shapes and dtypes.
      init_val (pytree): the carry on entry.
      max_steps (int, optional): after how many steps the loop ends even if the condition still holds. Default: None,
        no limit.
      checkpoint (None | int | str | MemoryBudget): None for no reverse mode, as JAX. A number `k`, or a
        :class:`statetransform.MemoryBudget`: reverse mode with at most `k` stored carries besides the initial one, for
        a length that is not known in advance; it takes a few percent more step evaluations than if it were. "sqrt",
        "log", "step": as in :func:`scan`, of `max_steps`. Reverse mode over reverse mode needs `max_steps`.
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
    if max_steps is not None:
        if isinstance(max_steps, bool | float | str):
            raise TypeError(f"while_loop: `max_steps` must be a number of steps, not {max_steps!r}")
        max_steps = number_of_steps("while_loop", "max_steps", max_steps)
    check_loop("while_loop", checkpoint, cond_fun, body_fun)
    if is_jit_disabled():
        hidden, objects = hide(init_val)  # the copies are for a body that changes its arrays in place
        init_val = reveal(jax.tree.map(jax.numpy.asarray, hidden), objects)

        def in_python(carry: Any, n: int = 0) -> Any:
            while n != max_steps and cond_fun(carry):
                carry, n = body_fun(carry), n + 1
            return carry

        # As in JAX: a condition that Python cannot decide on, under `vmap` for example, is staged.
        with contextlib.suppress(jax.errors.ConcretizationTypeError):
            return at_once(in_python, init_val)
    if not progress:
        within = lambda body, cond, init: while_loop(cond, body, init, max_steps=max_steps, checkpoint=checkpoint)
        out = in_eager_mode("while_loop", (body_fun, cond_fun), (max_steps, checkpoint), within, init_val)
        if out is not OTHER:
            return out
    init_val, objects = hide(init_val)
    body = Body("while_loop", body_fun, init_val, lambda carry: (carry,), lambda out: out, objects)
    test = traced_once("while_loop", cond_fun, (body.init[0],), objects, body.entry)
    for state in test.written:
        raise StateTraceError(
            f"while_loop: the condition writes {describe(state)}. A condition may only read states; "
            "write the state in the body."
        )
    watch = ProgressBar("while_loop", None, progress) if progress else None
    options: Any = {"max_steps": max_steps, "checkpoint": checkpoint, "watch": watch}
    step, holds = body.over_states(body.found), body.over_states(test)
    carry, values = _memory.while_loop(lambda c: holds(c[1], c[0])[0], lambda c: step(c[1], c[0]), body.init, **options)
    return body.finish(carry, values)


@boundary
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
    """Loops from `lower` to `upper`: :func:`jax.lax.fori_loop` with states.

    States that the body writes are part of the carry.

    Args:
      lower (int): the first index.
      upper (int): the index after the last one.
      body_fun (Callable): `body_fun(i, carry)` returns the next carry.
      init_val (pytree): the carry on entry.
      unroll (int | bool, optional): how many steps one iteration of the compiled loop evaluates, where the
        bounds are known. Default: None, one.
      checkpoint, progress: as in :func:`scan`. With traced bounds, reverse mode works with a number of
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
    check_loop("fori_loop", checkpoint, body_fun)
    if is_jit_disabled() and not has_tracer((lower, upper)):

        def in_order(carry: Any) -> Any:
            for i in range(lower, upper):
                carry = body_fun(i, carry)
            return carry

        return at_once(in_order, init_val)
    bounds = _key_of(lower), _key_of(upper)
    if not progress and None not in bounds and not isinstance(checkpoint, Reversible):
        within = lambda body, init: fori_loop(lower, upper, body, init, unroll=unroll, checkpoint=checkpoint)
        out = in_eager_mode("fori_loop", (body_fun,), (*bounds, unroll, checkpoint), within, init_val)
        if out is not OTHER:
            return out
    init_val, objects = hide(init_val)
    start, stop, n = _bounds(lower, upper)
    index = typeof(start)
    body = Body("fori_loop", body_fun, init_val, lambda carry: (index, carry), lambda out: out, objects)
    watch = ProgressBar("fori_loop", n, progress) if progress and n != 0 else None

    step = body.over_states(body.found)
    one = lambda i, carry: step(carry[1], i, carry[0])
    count = lambda state: (state[0] + 1, one(*state))
    if isinstance(checkpoint, Reversible):
        if n is None:
            raise ValueError(
                "fori_loop: a loop is run backwards, checkpoint=Reversible(...), where its bounds are known when it is "
                "traced. Write a number of carries instead, such as `checkpoint=20`."
            )
        back = body.backwards(checkpoint.inverse, (index, body.init[0]), lambda out: out)
        undo = lambda c, _: (c[0] - 1, back(c[1][1], c[0] - 1, c[1][0]))
        checkpoint = Reversible(undo, checkpoint.every)
    options: Any = {"where": "fori_loop", "checkpoint": checkpoint, "watch": watch}
    if checkpoint is None and watch is None:
        # Known bounds stay known, so that JAX can differentiate.
        ends = (start, stop) if n is None else (lower, upper)
        carry, values = jax.lax.fori_loop(*ends, one, body.init, unroll=unroll)
    elif n is None:
        goes = lambda state: state[0] < stop
        _, (carry, values) = _memory.while_loop(goes, count, (start, body.init), max_steps=None, **options)
    else:
        options["unroll"] = unroll or 1
        (_, (carry, values)), _ = _memory.scan(lambda c, _: (count(c), None), (lower, body.init), None, n, **options)
    return body.finish(carry, values)


def _key_of(bound: Any) -> Any:
    """What a loop depends on in a bound that is known: the integer and its type; None for others."""
    if type(bound) is int:
        return bound
    is_integer = (
        isinstance(bound, jax.Array | np.integer) and not has_tracer(bound) and np.issubdtype(bound.dtype, np.integer)
    )
    return (int(bound), typeof(bound)) if is_integer and not bound.ndim else None


def _bounds(lower: Any, upper: Any) -> tuple[Any, Any, int | None]:
    """The bounds as :func:`jax.lax.fori_loop` takes them, and the number of steps if they are known."""
    found: list[Any] = []
    # JAX says what is wrong with them, or what type its index has.
    jax.eval_shape(lambda: jax.lax.fori_loop(lower, upper, lambda i, _: found.append(i.dtype), None))
    if not has_tracer((lower, upper)):
        start, stop = int(lower), int(upper)
        return start, stop, max(stop - start, 0)
    cast = lambda bound: bound if typeof(bound).dtype == found[0] else jax.lax.convert_element_type(bound, found[0])
    return cast(lower), cast(upper), None
