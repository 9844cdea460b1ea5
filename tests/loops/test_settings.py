"""Loops that remember little, under the settings of JAX that plain loops work under."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import statetransform as st
from statetransform import State, transform

N = 9

SETTINGS = {
    "strict": lambda: jax.numpy_dtype_promotion("strict"),
    "x64": lambda: jax.enable_x64(True),
    "debug_nans": lambda: jax.debug_nans(True),
    "checking_leaks": jax.checking_leaks,
    "rank_promotion": lambda: jax.numpy_rank_promotion("raise"),
}


def scan(x: jax.Array, w: jax.Array, n: Any, checkpoint: Any) -> jax.Array:
    step = lambda c, s: (jnp.sin(c * w + s), c.sum())
    carry, ys = transform.scan(step, x, jnp.linspace(0, 1, N, dtype=x.dtype), checkpoint=checkpoint)
    return carry.sum() + (ys * jnp.arange(N, dtype=x.dtype)).sum()


def fori_loop(x: jax.Array, w: jax.Array, n: Any, checkpoint: Any) -> jax.Array:
    u = State(x, name="u")

    def body(i: Any, total: Any) -> Any:
        u.value = jnp.sin(u.value * w + i.astype(x.dtype) / 10)
        return total + u.value.sum()

    return transform.fori_loop(0, n, body, jnp.zeros((), x.dtype), checkpoint=checkpoint)


def while_loop(x: jax.Array, w: jax.Array, n: Any, checkpoint: Any) -> jax.Array:
    body = lambda c: (c[0] + 1, jnp.sin(c[1] * w))
    return transform.while_loop(lambda c: c[0] < n, body, (0, x), max_steps=20, checkpoint=checkpoint)[1].sum()


LOOPS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "scan": (scan, (0, 3, "sqrt", st.MemoryBudget(220))),
    "fori_loop": (fori_loop, (3, "log")),
    "fori_loop_traced": (lambda x, w, n, k: transform.jit(lambda n: fori_loop(x, w, n, k))(n), (0, 3)),
    "while_loop": (while_loop, (0, 3, "sqrt", st.MemoryBudget(2000))),
}

TRANSFORMED = {
    "grad": lambda f: lambda x, w: jax.grad(f, (0, 1))(x, w),
    "jit_grad": lambda f: lambda x, w: jax.jit(jax.grad(f, (0, 1)))(x, w),
    "jvp": lambda f: lambda x, w: jax.jvp(f, (x, w), (x, w)),
    "hessian": lambda f: lambda x, w: jax.hessian(f, (0, 1))(x, w),
    "vmap_grad": lambda f: lambda x, w: jax.vmap(jax.grad(f, (0, 1)), (None, 0))(x, jnp.stack([w, -w])),
}


def by_hand(loop: str) -> Callable[..., Any]:
    """The same loops as plain scans."""
    ramp = lambda x: jnp.arange(N, dtype=x.dtype)

    def f(x: jax.Array, w: jax.Array) -> jax.Array:
        if loop == "scan":
            step = lambda c, s: (jnp.sin(c * w + s), c.sum())
            carry, ys = jax.lax.scan(step, x, jnp.linspace(0, 1, N, dtype=x.dtype))
            return carry.sum() + (ys * ramp(x)).sum()
        if loop == "while_loop":
            return jax.lax.scan(lambda c, _: (jnp.sin(c * w), None), x, None, N)[0].sum()
        step = lambda c, s: ((c := jnp.sin(c * w + s / 10)), c.sum())
        return jax.lax.scan(step, x, ramp(x))[1].sum()

    return f


@pytest.mark.parametrize("transformed", TRANSFORMED)
@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("setting", SETTINGS)
def test_few_carries_work_under_every_setting_of_jax(setting: str, loop: str, transformed: str) -> None:
    with contextlib.ExitStack() as stack:
        stack.enter_context(SETTINGS[setting]())
        dtype = jnp.float64 if setting == "x64" else jnp.float32
        x, w = jnp.linspace(0, 1, 4, dtype=dtype), jnp.asarray(0.9, dtype)
        run, forms = LOOPS[loop]
        expected = TRANSFORMED[transformed](by_hand(loop))(x, w)
        for checkpoint in forms if transformed == "grad" else forms[1:2]:
            found = TRANSFORMED[transformed](lambda x, w, k=checkpoint: run(x, w, N, k))(x, w)
            rtol = 1e-10 if setting == "x64" else 2e-4
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol / 10), found, expected)
            assert all(leaf.dtype == dtype for leaf in jax.tree.leaves(found))
