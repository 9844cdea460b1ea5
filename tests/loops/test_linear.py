"""The linear call with its own transpose."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from statetransform._loops.linear import Linear


def scaled(w: jax.Array, x: jax.Array) -> jax.Array:
    """`w @ x` whose transpose is written down, times ten to tell it apart."""
    out = (jax.core.ShapedArray(w.shape[-2:-1], w.dtype),)
    linear = Linear(lambda r, t: [r[0] @ t[0]], lambda r, ct: [10 * (r[0].T @ ct[0])], out, 1)
    return linear([w], [x])[0]


W, X = jnp.arange(6.0).reshape(2, 3), jnp.array([1.0, -1.0, 2.0])


def test_forward_and_transposed() -> None:
    np.testing.assert_array_equal(scaled(W, X), W @ X)
    np.testing.assert_array_equal(jax.jit(scaled)(W, X), W @ X)
    _, pull = jax.vjp(lambda x: scaled(W, x), X)
    np.testing.assert_array_equal(pull(jnp.ones(2))[0], 10 * W.T @ jnp.ones(2))


def test_derivatives_in_the_residuals() -> None:
    out, dot = jax.jvp(scaled, (W, X), (2 * W, 3 * X))
    np.testing.assert_array_equal(dot, 2 * W @ X + W @ (3 * X))
    _, dot = jax.jvp(lambda w: scaled(w, X), (W,), (W,))
    np.testing.assert_array_equal(dot, out)


@pytest.mark.parametrize("axes", [(0, None), (None, 0), (0, 0)])
def test_batched_forward_and_transposed(axes: tuple) -> None:
    w = jnp.stack([W, -W]) if axes[0] == 0 else W
    x = jnp.stack([X, 2 * X]) if axes[1] == 0 else X
    plain = lambda w, x: w @ x
    np.testing.assert_array_equal(jax.vmap(scaled, axes)(w, x), jax.vmap(plain, axes)(w, x))
    found = jax.grad(lambda x: jax.vmap(scaled, axes)(w, x).sum())(x)
    np.testing.assert_array_equal(found, 10 * jax.grad(lambda x: jax.vmap(plain, axes)(w, x).sum())(x))


def both(w: jax.Array, v: jax.Array, x: jax.Array, y: jax.Array) -> list[jax.Array]:
    """`[w * x + v * y, v * y]` with a transpose that is written down."""
    out = (jax.core.ShapedArray((), jnp.float32),) * 2

    def transpose(r: list, ct: list) -> list:
        first, second = [jnp.zeros(()) if c is None else c for c in ct]
        return [r[0] * first, r[1] * (first + second)]

    return Linear(lambda r, t: [r[0] * t[0] + r[1] * t[1], r[1] * t[1]], transpose, out, 2)([w, v], [x, y])


LANES = jnp.array([1.0, 2.0, 4.0])


@pytest.mark.parametrize("weights", [(1.0, 0.0), (0.0, 1.0), (2.0, 3.0)])
@pytest.mark.parametrize("axes", [(0, None, 0, None), (None, None, 0, None), (0, None, None, None), (0, 0, 0, 0)])
def test_what_all_lanes_share_is_computed_and_transposed_once(axes: tuple, weights: tuple[float, float]) -> None:
    args = [LANES if axis == 0 else jnp.float32(i + 2) for i, axis in enumerate(axes)]
    is_shared = axes[1] is None

    def total(fun, *args):
        a, b = jax.vmap(fun, axes, [0, None if is_shared else 0])(*args)
        assert b.shape == (() if is_shared else (3,))
        return weights[0] * a.sum() + weights[1] * b.sum()

    plain = lambda w, v, x, y: [w * x + v * y, v * y]
    for compiled in (lambda f: f, jax.jit):
        found = compiled(jax.grad(lambda x, y: total(both, *args[:2], x, y), (0, 1)))(*args[2:])
        expected = jax.grad(lambda x, y: total(plain, *args[:2], x, y), (0, 1))(*args[2:])
        np.testing.assert_array_equal(jnp.hstack(found), jnp.hstack(expected))
