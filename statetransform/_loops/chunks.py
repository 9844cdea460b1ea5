"""Telling the host how far a loop is.

Calls to the host stand between chunks of steps, never in a step: a conditional call in the body of a loop, even one
that is never taken, made XLA copy the carry in each step (1.1 to 3 times the time). So loops that are watched are loops
of loops.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


@dataclasses.dataclass(frozen=True, eq=False)
class Watch:
    """The host's functions that follow a loop, called after every so many steps that were run or reversed.

    `over` is called with the number of steps of a loop whose length was not known, when it has ended.
    """

    every: int
    forward: Callable[[Any], None]
    backward: Callable[[Any], None]
    over: Callable[[Any], None]


def fori_loop(
    lower: Any,
    upper: Any,
    body: Callable[[Any, Any], Any],
    init: Any,
    watch: Watch | None,
    done: Callable[[Any], Any] = lambda i: i,
    tell: Callable[[Watch], Callable[[Any], None]] = lambda watch: watch.forward,
) -> Any:
    """:func:`jax.lax.fori_loop` in chunks, if it is watched; arguments as for `while_loop`."""
    if watch is None:
        return lax.fori_loop(lower, upper, body, init)
    count, start = (lambda state: (state[0] + 1, body(*state))), (jnp.asarray(lower, jnp.int32), init)
    return while_loop(lambda state: state[0] < upper, count, start, watch, lambda state: done(state[0]), tell)[1]


def while_loop(
    test: Callable[[Any], Any],
    body: Callable[[Any], Any],
    init: Any,
    watch: Watch | None,
    done: Callable[[Any], Any],
    tell: Callable[[Watch], Callable[[Any], None]] = lambda watch: watch.forward,
) -> Any:
    """:func:`jax.lax.while_loop` in chunks, if it is watched.

    `done` gives the number of steps that are done, out of the carry; `tell` is which function of the watch to call.
    """
    if watch is None:
        return lax.while_loop(test, body, init)

    def chunk(state: Any) -> Any:
        until = (done(state) // watch.every + 1) * watch.every
        state = lax.while_loop(lambda state: test(state) & (done(state) < until), body, state)
        jax.debug.callback(tell(watch), done(state))
        return state

    return lax.while_loop(test, chunk, init)
