"""`largest`: how large a batch, a grid or a length may be."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from .._base.errors import BudgetError, PolicyWarning
from .._jax import Tracer
from .._memory.programs.sizes import format_bytes, nbytes, parse_bytes
from .._memory.programs.walk import walk
from .._memory.targets import target_of
from .._traces.tracebacks import boundary
from ._gradient import GradientStep
from ._view import view_of

logger = logging.getLogger("statetransform")

_COMPILATIONS = 6
_MOST = 2**31 - 1  # JAX's indices have 32 bits
_NO_MACHINE = 2**48  # bytes of a single value
_ARRAYS = (jax.Array, jax.ShapeDtypeStruct, np.ndarray, np.generic, int, float, complex)


@boundary
def largest(
    f: Callable[..., Any],
    arguments: Callable[[int], Any],
    budget: int | str,
    /,
    *,
    argnums: Any = None,
    states: Any = None,
    target: Any = None,
) -> int:
    """The largest size for which the gradient step of a function fits into a budget, as compiled.

    The step is compiled for at most six sizes, and not run. Its temporary bytes on one device are compared with the
    budget, as for :func:`statetransform.policies.fit`: arguments, outputs and gradients are not counted. The
    sizes are found by interpolation: the answer is exact if the bytes are a constant plus a multiple of the size, of
    its square or of its cube, or nearly so. Otherwise it is the largest size that was seen to fit.

    Args:
      f: a function, with states or without, with a budget or without.
      arguments (Callable[[int], tuple]): returns the arguments for a size, a tuple or a single one: arrays or
        `jax.ShapeDtypeStruct`. It is called under :func:`jax.eval_shape` if that works, so that no array is made. For
        arrays on several devices return a `jax.ShapeDtypeStruct` with their sharding: an array that is made under
        `eval_shape` has none, except on a mesh with explicit axes.
      budget: bytes, or a text such as "8 GB".
      argnums, states: what to differentiate with respect to, as in `transform.grad`. Default: everything.
      target: the devices to compile for, if they are not there: a :class:`statetransform.Target`, its name ("H100"), or
        devices of a topology. Default: where the arguments are, or what JAX runs on.

    Returns:
      The size, at least 1.

    Raises:
      BudgetError: 1 does not fit.
      TypeError: `f` is not callable, or the backend does not say how many bytes a program needs.
      ValueError, ImportError, RuntimeError: `target` cannot be had; see :func:`statetransform.target`.

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
    if not callable(arguments):
        raise TypeError(
            f"largest: `arguments` is a function that gives the arguments for a size, not {arguments!r} of type "
            f"{type(arguments).__name__}. Write `largest(f, lambda n: jnp.ones((n, 16)), budget)`."
        )
    target = None if target is None else target_of(target)
    known: dict[int, int | None] = {}

    def size_at(n: int) -> int | None:
        if n not in known:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", PolicyWarning)  # a budget of `f` that is not met at this size
                    view = view_of(f, _arguments(arguments, n), {}, argnums, states, target)
                    known[n] = _bytes_of(GradientStep.of(view), most)
            except (BudgetError, OverflowError) as error:
                if n == 1 and isinstance(error, OverflowError):
                    raise
                known[n] = None
                logger.info("largest: size %d cannot be compiled within its budget", n)
                return None
            if known[n] is None:
                where = target_of(target).platform
                raise TypeError(f"largest: the backend {where!r} does not say how many bytes a program needs")
            logger.info("largest: size %d: %s", n, format_bytes(known[n] or 0))
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


def _bytes_of(step: GradientStep, most: int) -> int | None:
    """The temporary bytes of a gradient step as compiled; of one that is far too large more than `most`."""
    one = max((nbytes(var.aval) for site in walk(step.jaxpr) for var in site.eqn.outvars), default=0)
    # XLA ends the process when it counts bytes beyond 64 bits.
    if one > max(most, _NO_MACHINE) or step.compiled is None:
        return one
    if step.compiled.is_refused:  # arguments and outputs may be what does not fit
        return max(step.compiled.temporary or 0, most + 1)
    return step.compiled.temporary


def _next(known: dict[int, int | None], most: int, fits: int, too_large: int) -> int:
    """The next size to try: where `a + b n**p` through the sizes nearest to the budget meets it, if that is inside."""
    bytes_at = {n: size for n, size in known.items() if size}
    near = sorted(bytes_at, key=lambda n: abs(math.log(bytes_at[n] / max(most, 1))))[:3]
    if len(near) < 2:
        guess = near[0] * most // bytes_at[near[0]] if near else fits * most
    else:
        low, high = (fits, too_large) if {fits, too_large} <= bytes_at.keys() else sorted(near[:2])
        power = _power([(n, bytes_at[n]) for n in sorted(near)]) if len(near) == 3 else 1.0
        slope = (bytes_at[high] - bytes_at[low]) / (high**power - low**power)
        reach = high**power + (most - bytes_at[high]) / slope if slope > 0 else (8 * high) ** power
        guess = int(max(reach, 0) ** (1 / power) + 1e-9)
    if not fits < guess < too_large:  # the bytes do not grow like that
        if too_large == _MOST:
            guess = max(guess, 2 * fits)
        elif too_large > 2 * fits:
            guess = math.isqrt(fits * too_large)
        else:
            step = max((too_large - fits) // 8, 1)
            guess = too_large - step if guess >= too_large else fits + step
    elif len(known) == _COMPILATIONS - 1:  # the last one is better a little too small than too large
        guess -= (guess - fits) // 16 if guess < 2 * fits else guess // 50
    return min(max(guess, fits + 1), too_large - 1)


def _power(points: list[tuple[int, int]]) -> float:
    """The `p` with which `a + b n**p` goes through three points; 1 where the bytes do not grow."""
    (n0, small), (n1, middle), (n2, large) = points
    if not small < middle < large:
        return 1.0
    low, high = 0.25, 8.0
    for _ in range(40):
        power = (low + high) / 2
        is_less = (n2**power - n1**power) * (middle - small) < (large - middle) * (n1**power - n0**power)
        low, high = (power, high) if is_less else (low, power)
    return (low + high) / 2


def _arguments(arguments: Callable[[int], Any], n: int) -> tuple[Any, ...]:
    """The arguments for a size, of arrays that are made for it their types."""
    as_tuple = lambda given: given if isinstance(given, tuple) else (given,)
    leaves, tree = list[Any](), jax.tree.structure(())

    def made() -> list[Any]:
        nonlocal leaves, tree
        leaves, tree = jax.tree.flatten(as_tuple(arguments(n)))
        if not all(isinstance(leaf, _ARRAYS) for leaf in leaves):
            raise TypeError("objects may have arrays in them")
        return [leaf for leaf in leaves if isinstance(leaf, Tracer)]

    try:
        avals = iter(jax.eval_shape(made))
    except TypeError:
        return as_tuple(arguments(n))
    return tree.unflatten([next(avals) if isinstance(leaf, Tracer) else leaf for leaf in leaves])
