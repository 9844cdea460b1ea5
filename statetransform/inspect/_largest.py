"""`largest`: how large a batch, a grid or a length may be."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import jax

from .._jaxpr.sizes import format_bytes, parse_bytes
from .._planner.view import View, view_of
from .._state.errors import BudgetError
from .._trace.tracebacks import boundary
from ._step import step_of

logger = logging.getLogger("statetransform")

_COMPILATIONS = 6
_MOST = 2**31 - 1  # JAX's indices have 32 bits


@boundary
def largest(
    f: Callable[..., Any],
    arguments: Callable[[int], Any],
    budget: int | str,
    /,
    *,
    argnums: Any = None,
    states: Any = None,
) -> int:
    """The largest size for which the gradient step of a function fits into a budget, as compiled.

    The step is compiled for at most six sizes, and not run. Its temporary bytes on one device are compared with the
    budget, as for :func:`statetransform.policies.fit`: arguments, outputs and gradients are not counted. The
    sizes are found by linear interpolation: the answer is exact if the bytes grow in proportion to the size, or in
    regular steps. Otherwise it is the largest size that was seen to fit.

    Args:
      f: a function, with states or without, with a budget or without.
      arguments (Callable[[int], tuple]): returns the arguments for a size, a tuple or a single one: arrays or
        `jax.ShapeDtypeStruct`. It is called under :func:`jax.eval_shape` if that works, so that no array is made.
      budget: bytes, or a text such as "8 GB".
      argnums, states: what to differentiate with respect to, as in `transform.grad`. Default: everything.

    Returns:
      The size, at least 1.

    Raises:
      BudgetError: 1 does not fit.
      TypeError: `f` is not callable, or the backend does not say how many bytes a program needs.

    References:
      https://docs.jax.dev/en/latest/aot.html#debug-information-and-analyses-when-available

    Example:
      >>> import jax.numpy as jnp
      >>> from statetransform import inspect
      >>> loss = lambda w, x: (jnp.sin(jnp.tanh(x @ w)) ** 2).sum()
      >>> rows = lambda n: (jnp.ones((16, 16)), jnp.ones((n, 16)))
      >>> n = inspect.largest(loss, rows, "64 KiB", argnums=0)
      >>> 200 < n < 1100
      True
    """
    most = parse_bytes(budget)
    known: dict[int, int | None] = {}

    def size_at(n: int) -> int | None:
        if n not in known:
            known[n] = _temporary_bytes(view_of(f, _arguments(arguments, n), {}, argnums, states))
            shown = "does not fit its own budget" if known[n] is None else format_bytes(known[n] or 0)
            logger.info("largest: size %d: %s", n, shown)
        return known[n]

    first = size_at(1)
    if first is None or first > most:
        needs = "" if first is None else f" needs {first} bytes ({format_bytes(first)}), and"
        raise BudgetError(
            f"largest: the gradient step{needs} does not fit into {format_bytes(most)} for a size of 1. Raise the "
            "budget, or put one on the function: `transform.checkpoint(f, policy=policies.fit(...))`.",
            least=first,
        )
    fits, too_large = 1, _MOST
    while len(known) < _COMPILATIONS and fits + 1 < too_large:
        n = _next(known, most, fits, too_large)
        size = size_at(n)
        fits, too_large = (n, too_large) if size is not None and size <= most else (fits, n)
    return fits


def _next(known: dict[int, int | None], most: int, fits: int, too_large: int) -> int:
    """The next size to try: where a line meets the budget, between what fits and what is too large."""
    sizes = {n: size for n, size in known.items() if size is not None}
    # The line through both ends of the bracket, or else through what fits and its neighbour.
    others = sorted((n for n in sizes if n != fits), key=lambda n: (n != too_large, abs(n - fits)))
    if not others:
        if too_large < _MOST:  # with a budget of its own, the function cannot do with more
            return (fits + too_large) // 2
        guess = fits * most // max(sizes[fits], 1)
    else:
        slope = (sizes[fits] - sizes[others[0]]) / (fits - others[0])
        guess = fits + int((most - sizes[fits]) / slope) if slope > 0 else 2 * fits
    if guess >= too_large:
        return (fits + too_large) // 2
    return max(guess, fits + 1)


def _arguments(arguments: Callable[[int], Any], n: int) -> tuple[Any, ...]:
    as_tuple = lambda given: given if isinstance(given, tuple) else (given,)
    try:
        return as_tuple(jax.eval_shape(lambda: arguments(n)))
    except TypeError:  # objects, or abstract values
        return as_tuple(arguments(n))


def _temporary_bytes(view: View) -> int | None:
    """Of the gradient step with its outputs; None where a budget inside cannot be met."""
    try:
        size = step_of(view).measured().bytes_of("temp")
    except BudgetError:
        return None
    if size is None:
        raise TypeError(f"largest: the backend {jax.default_backend()!r} does not say how many bytes a program needs")
    return int(size)
