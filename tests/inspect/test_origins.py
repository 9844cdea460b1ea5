"""Values are followed to where they were computed: through calls, loops, branches, checkpoints and names."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from statetransform.inspect._origins import Origins

X = jnp.ones(3)


def origin(fun, *args, output: int = 0):
    jaxpr = jax.make_jaxpr(fun)(*args)
    return Origins(jaxpr).of(jaxpr.jaxpr.outvars[output])


named = lambda x: checkpoint_name(jnp.sin(x), "a")


@pytest.mark.parametrize(
    ("fun", "expected"),
    [
        (lambda x: x, ("input", None, None)),
        (lambda x: 1.0, ("literal", None, None)),
        (jnp.sin, ("equation", "sin", None)),
        (named, ("equation", "sin", "a")),
        (lambda x: checkpoint_name(x, "b"), ("input", None, "b")),
        (jax.jit(named), ("equation", "sin", "a")),
        (jax.jit(jax.jit(lambda x: x)), ("input", None, None)),
        (jax.checkpoint(named), ("equation", "sin", "a")),
        (lambda x: lax.optimization_barrier((jnp.sin(x), x))[0], ("equation", "sin", None)),
        (lambda x: lax.reduce_precision(named(x), 8, 23), ("equation", "sin", "a")),
        (lambda x: lax.cond(True, lambda x: jnp.zeros(3), named, x), ("equation", "cond", None)),
        (lambda x: lax.while_loop(lambda c: c[0] > 0, named, x), ("equation", "sin", "a")),
        (lambda x: lax.scan(lambda c, _: (named(c), None), x, None, length=2)[0], ("equation", "sin", "a")),
    ],
)
def test_what_computed_a_value(fun, expected):
    found = origin(fun, X)
    assert (found.kind, found.primitive, found.name) == expected
