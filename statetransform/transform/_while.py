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
from ._bodies import AROUND, Body, Checkpoint, check_loop, form_of, number_of_steps, traced_once, with_inverse
from ._eager_loops import in_one_program


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
    init_val, objects = hide(init_val)
    body = Body("while_loop", body_fun, init_val, lambda carry: (carry,), lambda out: out, objects)
    test = traced_once("while_loop", cond_fun, (body.init[0],), objects, body.entry)
    for state in test.written:
        raise StateTraceError(
            f"while_loop: the condition writes {describe(state)}. A condition may only read states; "
            "write the state in the body."
        )
    watch = ProgressBar("while_loop", None, progress) if progress else None
    functions = body.over_states(body.found), body.over_states(test)
    call, holds = (fun.call for fun in functions)

    def run(held: list[Any], init: Any) -> Any:
        options: Any = {"max_steps": max_steps, "checkpoint": checkpoint, "watch": watch, "context": AROUND}
        goes_on, step = (lambda c: holds(held[1], c[1], c[0])[0]), (lambda c: call(held[0], c[1], c[0]))
        return _memory.while_loop(goes_on, step, init, **options)

    if watch is None:
        carry, values = in_one_program("while_loop", functions, (max_steps, checkpoint), run, body.init)
    else:
        carry, values = run([fun.held for fun in functions], body.init)
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
    init_val, objects = hide(init_val)
    start, stop, n = _bounds(lower, upper)
    index = typeof(start)
    body = Body("fori_loop", body_fun, init_val, lambda carry: (index, carry), lambda out: out, objects)
    watch = ProgressBar("fori_loop", n, progress) if progress and n != 0 else None
    functions = [body.over_states(body.found)]
    if isinstance(checkpoint, Reversible):
        if n is None:
            raise ValueError(
                "fori_loop: a loop is run backwards, checkpoint=Reversible(...), where its bounds are known when it is "
                "traced. Write a number of carries instead, such as `checkpoint=20`."
            )
        functions.append(body.backwards(checkpoint.inverse, (index, body.init[0]), lambda out: out))
        checkpoint = Reversible(functions[1].call, checkpoint.every)
    call = functions[0].call
    # Known bounds stay known, so that JAX can differentiate.
    known, traced = ((), (start, stop)) if n is None else ((_known(lower), _known(upper)), ())

    def run(held: list[Any], init: Any, traced: Any) -> Any:
        one = lambda i, carry: call(held[0], carry[1], i, carry[0])
        count = lambda state: (state[0] + 1, one(*state))
        undo = lambda back, c, _: (c[0] - 1, back(held[1], c[1][1], c[0] - 1, c[1][0]))
        options: Any = {"where": "fori_loop", "checkpoint": with_inverse(checkpoint, undo), "watch": watch}
        options["context"] = AROUND
        first, last = known or traced
        if checkpoint is None and watch is None:
            return jax.lax.fori_loop(first, last, one, init, unroll=unroll)
        if n is None:
            return _memory.while_loop(lambda c: c[0] < last, count, (first, init), max_steps=None, **options)[1]
        options["unroll"] = unroll or 1
        return _memory.scan(lambda c, _: (count(c), None), (first, init), None, n, **options)[0][1]

    if watch is None:
        options = *known, unroll, form_of(checkpoint)
        carry, values = in_one_program("fori_loop", functions, options, run, body.init, traced)
    else:
        carry, values = run([fun.held for fun in functions], body.init, traced)
    return body.finish(carry, values)


def _known(bound: Any) -> Any:
    """A bound that a program may hold: an integer of Python, or of NumPy for its type."""
    return bound if type(bound) is int else np.asarray(bound)[()]


def _bounds(lower: Any, upper: Any) -> tuple[Any, Any, int | None]:
    """The bounds as :func:`jax.lax.fori_loop` takes them, and the number of steps if they are known."""
    if type(lower) is type(upper) is int:
        return lower, upper, max(upper - lower, 0)
    found: list[Any] = []
    # JAX says what is wrong with them, or what type its index has.
    jax.eval_shape(lambda: jax.lax.fori_loop(lower, upper, lambda i, _: found.append(i.dtype), None))
    if not has_tracer((lower, upper)):
        start, stop = int(lower), int(upper)
        return start, stop, max(stop - start, 0)
    cast = lambda bound: bound if typeof(bound).dtype == found[0] else jax.lax.convert_element_type(bound, found[0])
    return cast(lower), cast(upper), None
