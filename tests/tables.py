"""Transforms as functions from functions to functions: ours on stateful ones, JAX's on their twins.

All map scalar functions to scalar functions, so that any stack of them makes sense. Traits say what a
transform cannot do, so that what is left out is a decision and not a skipped failure.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import checkify

from statetransform import transform

from .cases import Case

Twin = Callable[[Any, Any], tuple[Any, Any]]


class Jax:
    """JAX's functions under the names that they have here."""

    def __getattr__(self, name: str) -> Any:
        return getattr(jax, name) if hasattr(jax, name) else getattr(jax.lax, name)

    checkify = staticmethod(checkify.checkify)


JAX: Any = Jax()


@dataclasses.dataclass(frozen=True)
class Row:
    """One transform, ours and JAX's.

    Attributes:
      is_loop: the body must keep the types of its states.
      reverse: reverse mode through it works.
      shares: states are shared between lanes, so what is written may not depend on the argument.
      drops: nothing that is written leaves it.
    """

    name: str
    ours: Callable[[Callable[[Any], Any]], Callable[[Any], Any]]
    jax: Callable[[Twin], Twin]
    is_loop: bool = False
    reverse: bool = True
    shares: bool = False
    drops: bool = False

    def takes(self, case: Case) -> bool:
        """Whether the transform can do anything with a program."""
        return (case.carries or not self.is_loop) and (case.is_shared or not self.shares)


def _grad(twin: Twin) -> Twin:
    def f(values: Any, x: Any) -> Any:
        def loss(x: Any) -> Any:
            return twin(values, x)

        return jax.grad(loss, has_aux=True)(x)

    return f


def _discard(twin: Twin) -> Twin:
    return lambda values, x: (twin(values, x)[0], values)


def _jvp(twin: Twin) -> Twin:
    def f(values: Any, x: Any) -> Any:
        _, tangent, new = jax.jvp(lambda x: twin(values, x), (x,), (jnp.ones_like(x),), has_aux=True)
        return tangent, new

    return f


def _vjp(twin: Twin) -> Twin:
    def f(values: Any, x: Any) -> Any:
        out, pull, new = jax.vjp(lambda x: twin(values, x), x, has_aux=True)
        return pull(jnp.ones_like(out))[0], new

    return f


def _scan(twin: Twin) -> Twin:
    def f(values: Any, x: Any) -> Any:
        def body(carry: Any, _: Any) -> Any:
            c, values = carry
            out, values = twin(values, x)
            return (c + out, values), None

        return jax.lax.scan(body, (jnp.float32(0), values), None, length=3)[0]

    return f


def _for_loop(twin: Twin) -> Twin:
    def f(values: Any, x: Any) -> Any:
        def body(values: Any, t: Any) -> Any:
            out, values = twin(values, x * t)
            return values, out

        values, outs = jax.lax.scan(body, values, jnp.arange(2.0))
        return outs.sum(), values

    return f


def _fori(twin: Twin) -> Twin:
    def f(values: Any, x: Any) -> Any:
        def body(_: Any, carry: Any) -> Any:
            out, values = twin(carry[1], x)
            return carry[0] + out, values

        return jax.lax.fori_loop(0, 2, body, (jnp.float32(0), values))

    return f


def _while(twin: Twin) -> Twin:
    def f(values: Any, x: Any) -> Any:
        def body(carry: Any) -> Any:
            i, c, values = carry
            out, values = twin(values, x)
            return i + 1, c + out, values

        _, c, values = jax.lax.while_loop(lambda carry: carry[0] < 2, body, (jnp.int32(0), jnp.float32(0), values))
        return c, values

    return f


def _cond(twin: Twin) -> Twin:
    return lambda values, x: jax.lax.cond(jnp.bool_(True), twin, lambda v, x: (x, v), values, x)


def _vmap(twin: Twin) -> Twin:
    def f(values: Any, x: Any) -> Any:
        outs, values = jax.vmap(twin, in_axes=(None, 0), out_axes=(0, None))(values, jnp.stack([x, 2 * x]))
        return outs.sum(), values

    return f


def _ours_while(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def g(x: Any) -> Any:
        start = (jnp.int32(0), jnp.float32(0))
        return transform.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, c[1] + f(x)), start)[1]

    return g


def _ours_vjp(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def g(x: Any) -> Any:
        out, pull = transform.vjp(f, x)
        return pull(jnp.ones_like(out))[0]

    return g


ROWS = [
    Row("checkpoint", transform.checkpoint, jax.checkpoint),
    Row("jit", transform.jit, jax.jit),
    Row("named_call", transform.named_call, lambda twin: jax.named_call(twin, name="twin")),
    Row("discard_writes", transform.discard_writes, _discard, drops=True),
    Row("grad", transform.grad, _grad),
    Row("jvp", lambda f: lambda x: transform.jvp(f, (x,), (jnp.ones_like(x),))[1], _jvp),
    Row("vjp", _ours_vjp, _vjp),
    Row(
        "scan",
        lambda f: lambda x: transform.scan(lambda c, _: (c + f(x), None), jnp.float32(0), None, length=3)[0],
        _scan,
        is_loop=True,
    ),
    Row(
        "for_loop",
        lambda f: lambda x: transform.for_loop(lambda t: f(x * t), jnp.arange(2.0)).sum(),
        _for_loop,
        is_loop=True,
    ),
    Row(
        "fori_loop",
        lambda f: lambda x: transform.fori_loop(0, 2, lambda _, c: c + f(x), jnp.float32(0)),
        _fori,
        is_loop=True,
    ),
    Row("while_loop", _ours_while, _while, is_loop=True, reverse=False),
    Row("cond", lambda f: lambda x: transform.cond(jnp.bool_(True), f, lambda x: x, x), _cond, is_loop=True),
    Row("vmap", lambda f: lambda x: transform.vmap(f)(jnp.stack([x, 2 * x])).sum(), _vmap, shares=True),
]
BY_NAME = {row.name: row for row in ROWS}
#: Loops and branches that run a function once, on a scalar, and give its value; then all transforms that do.
ONCE_IN_LOOPS: dict[str, Callable[[Any], Callable[[Any], Any]]] = {
    "scan": lambda f: lambda x: transform.scan(lambda c, _: (c, f(c)), x, None, length=1)[1][0],
    "checkpointed scan": lambda f: (
        lambda x: transform.scan(lambda c, _: (c, f(c)), x, None, length=1, checkpoint=1)[1][0]
    ),
    "for_loop": lambda f: lambda x: transform.for_loop(f, jnp.stack([x]))[0],
    "fori_loop": lambda f: lambda x: transform.fori_loop(0, 1, lambda i, c: f(c), x),
    "while_loop": lambda f: lambda x: transform.while_loop(lambda c: c[0] < 1, lambda c: (1, f(c[1])), (0, x))[1],
    "cond": lambda f: lambda x: transform.cond(x > 0, f, lambda x: x, x),
    "switch": lambda f: lambda x: transform.switch(1, [lambda x: x, f], x),
}
ONCE: dict[str, Callable[[Any], Callable[[Any], Any]]] = {
    "jit": transform.jit,
    "checkpoint": transform.checkpoint,
    "jit of checkpoint": lambda f: transform.jit(transform.checkpoint(f)),
    "named_call": transform.named_call,
    "value_and_grad": lambda f: lambda x: transform.value_and_grad(f)(x)[0],
    "jit of value_and_grad": lambda f: transform.jit(lambda x: transform.value_and_grad(f)(x)[0]),
    "vjp": lambda f: lambda x: transform.vjp(f, x)[0],
    "jvp": lambda f: lambda x: transform.jvp(f, (x,), (x,))[0],
    "linearize": lambda f: lambda x: transform.linearize(f, x)[0],
    **ONCE_IN_LOOPS,
}
REVERSE = ("grad", "vjp")


def stacks(depth: int) -> list[tuple[Row, ...]]:
    """All stacks of transforms, the outermost first, that reverse mode goes through where it has to."""
    found: list[tuple[Row, ...]] = [()]
    for _ in range(depth):
        found = [(row, *rest) for row in ROWS for rest in found]
    return [
        s for s in found if not any(s[i].name in REVERSE and not r.reverse for i in range(depth) for r in s[i + 1 :])
    ]


def apply_ours(rows: tuple[Row, ...], f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Our transforms around a stateful function."""
    for row in reversed(rows):
        f = row.ours(f)
    return f


def apply_jax(rows: tuple[Row, ...], twin: Twin) -> Twin:
    """JAX's around its twin."""
    for row in reversed(rows):
        twin = row.jax(twin)
    return twin
