"""How a program keeps the order of a plan: what is behind a barrier neither runs before it nor is merged with that.

Most compilers keep `optimization_barrier`. The CPU's compiler of JAX 0.10 removes it before it merges equal operations.
There a loop takes its place, which runs not once, though no compiler knows that: its values stay where they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ... import _jax


def keeps_barriers() -> bool:
    """Whether the compiler of the default backend keeps `optimization_barrier`."""
    return jax.default_backend() != "cpu" or jax.__version_info__ >= (0, 11)


def tied(values: Sequence[Any]) -> list[Any]:
    """The same values behind a barrier, with the same types."""
    if not keeps_barriers() and (numbers := [x for x in values if has_number(x)]):
        return _around_a_loop(values, min(numbers, key=lambda x: (len(_jax.varying_axes(x)), x.size)))
    return _jax.barrier(list(values))


def behind(number: Any, x: Any) -> Any:
    """A number that no compiler knows before it has an array: what is made of it is made then."""
    never, dtype = _never(x), jnp.asarray(number).dtype
    return jnp.where(never, jnp.asarray(0 if number else 1, dtype), jnp.asarray(number, dtype))


def behind_all(values: Sequence[Any], number: Any) -> Any:
    """A number that no compiler knows before some others; those that vary over more devices are left alone."""
    for x in values:
        if _jax.varying_axes(x) <= _jax.varying_axes(number):
            number = jnp.where(_never(x), jnp.zeros_like(number), number)
    return number


def _around_a_loop(values: Sequence[Any], number: Any) -> list[Any]:
    """The values of a loop that never runs. Its step changes them, as compilers remove what leaves them as they are."""
    never = _never(number)
    step = lambda carry: (jnp.zeros_like(never), *[_jax.zeros(jax.typeof(x)) for x in carry[1:]])
    return list(lax.while_loop(lambda carry: carry[0], step, (never, *values))[1:])


def _never(x: Any) -> Any:
    """False, which no compiler knows: of the 32 bits of the first number no more than 32 are ones."""
    first = lax.slice(x, [0] * x.ndim, [1] * x.ndim).reshape(())
    real = lax.real(first) if jnp.iscomplexobj(first) else first
    return lax.population_count(lax.bitcast_convert_type(real.astype(jnp.float32), jnp.uint32)) > 64


def has_number(x: Any) -> bool:
    """Whether one device can read a number from an array without asking the others."""
    aval = jax.typeof(x)
    return bool(jnp.issubdtype(aval.dtype, jnp.number) and aval.size) and all(n is None for n in aval.sharding.spec)
