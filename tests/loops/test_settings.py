"""Loops that remember little, under the settings of JAX that plain loops work under."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import statetransform as st
from statetransform import transform

N = 9


@contextlib.contextmanager
def strict() -> Iterator[None]:
    """All that is checked while a program is traced."""
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"), jax.checking_leaks():
        yield


SETTINGS = {"strict": strict, "x64": lambda: jax.enable_x64(True), "debug_nans": lambda: jax.debug_nans(True)}


def scan(x: jax.Array, w: jax.Array, n: Any, checkpoint: Any) -> jax.Array:
    step = lambda c, s: (jnp.sin(c * w + s), c.sum())
    carry, ys = transform.scan(step, x, jnp.linspace(0, 1, N, dtype=x.dtype), checkpoint=checkpoint)
    return carry.sum() + (ys * jnp.arange(N, dtype=x.dtype)).sum()


def fori_loop(x: jax.Array, w: jax.Array, n: Any, checkpoint: Any) -> jax.Array:
    def body(i: Any, carry: Any) -> Any:
        u, total = carry
        u = jnp.sin(u * w + i.astype(x.dtype) / 10)
        return u, total + u.sum()

    return transform.fori_loop(0, n, body, (x, jnp.zeros((), x.dtype)), checkpoint=checkpoint)[1]


def while_loop(x: jax.Array, w: jax.Array, n: Any, checkpoint: Any) -> jax.Array:
    body = lambda c: (c[0] + 1, jnp.sin(c[1] * w))
    return transform.while_loop(lambda c: c[0] < n, body, (0, x), max_steps=20, checkpoint=checkpoint)[1].sum()


LOOPS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "scan": (scan, (3, "sqrt", st.MemoryBudget(220), st.MemoryBudget(440))),
    "fori_loop": (fori_loop, (3, "log")),
    "fori_loop_traced": (lambda x, w, n, k: transform.jit(lambda n: fori_loop(x, w, n, k))(n), (3, 0)),
    "while_loop": (while_loop, (3, 0, "sqrt")),
}

TRANSFORMED = {
    "grad": lambda f: lambda x, w: jax.grad(f, (0, 1))(x, w),
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


def derivatives(setting: str, loop: str) -> list[str]:
    """The gradient, and one more: each setting and each loop sees all of them, but not each pair."""
    others = ["jvp", "hessian", "vmap_grad"]
    return ["grad", others[([*SETTINGS].index(setting) + [*LOOPS].index(loop)) % 3]]


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("setting", SETTINGS)
def test_few_carries_work_under_every_setting_of_jax(setting: str, loop: str) -> None:
    run, forms = LOOPS[loop]
    names = derivatives(setting, loop)
    with SETTINGS[setting]():
        dtype, rtol = (jnp.float64, 1e-10) if setting == "x64" else (jnp.float32, 2e-4)
        x, w = jnp.linspace(0, 1, 4, dtype=dtype), jnp.asarray(0.9, dtype)
        every = lambda f: lambda x, w: {name: TRANSFORMED[name](f)(x, w) for name in names}
        expected = jax.jit(every(by_hand(loop)))(x, w)
        found = jax.jit(every(lambda x, w: run(x, w, N, forms[0])))(x, w)
        close = lambda a, b: np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol / 10)
        jax.tree.map(close, found, expected)
        assert all(leaf.dtype == dtype for leaf in jax.tree.leaves(found))
        for checkpoint in forms[1:] if setting in ("strict", "x64") else ():
            if not (setting == "x64" and checkpoint == st.MemoryBudget(220)):
                jax.tree.map(close, jax.grad(run, (0, 1))(x, w, N, checkpoint), expected["grad"])
