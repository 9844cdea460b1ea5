"""Functions with derivative rules that read and write states, and the ways to differentiate one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from statetransform import State, transform

X = jnp.float32(2.0)
WAYS: dict[str, Callable[[Any], Any]] = {
    "grad": transform.grad,
    "jit of grad": lambda f: transform.jit(transform.grad(f)),
    "grad of jit": lambda f: transform.grad(transform.jit(f)),
    "grad of checkpoint": lambda f: transform.grad(transform.checkpoint(f)),
    "grad in lanes": lambda f: lambda x: transform.vmap(transform.grad(f))(x[None])[0],
    "grad of lanes": lambda f: lambda x: transform.grad(lambda x: transform.vmap(f)(x[None])[0])(x),
    "grad of scan": lambda f: transform.grad(lambda x: transform.scan(lambda c, _: (f(c), None), x, length=1)[0]),
    "grad of cond": lambda f: transform.grad(lambda x: transform.cond(x > 0, f, lambda x: x, x)),
    "vjp": lambda f: lambda x: transform.vjp(f, x)[1](jnp.float32(1))[0],
    "jacrev": transform.jacrev,
}
LATE = ("grad of jit", "grad of checkpoint", "grad of scan", "grad of cond")  # rules are called when the call is over
JITTED: dict[str, Callable[[Any], Any]] = {
    f"jit of {way}": lambda f, way=way: transform.jit(WAYS[way](f)) for way in LATE
}


def counted(n: State, x: Any) -> Any:
    n.value = n.value + 1
    return x


def by_vjp(w: State, n: State) -> Any:
    f = transform.custom_vjp(lambda x: counted(n, w.value * x))
    f.defvjp(lambda x: (counted(n, w.value * x), w.value), lambda w, ct: (10 * ct * w,))
    return f


def by_jvp(w: State, n: State) -> Any:
    f = transform.custom_jvp(lambda x: counted(n, w.value * x))
    f.defjvp(lambda primals, tangents: (counted(n, w.value * primals[0]), 10 * w.value * tangents[0]))
    return f
