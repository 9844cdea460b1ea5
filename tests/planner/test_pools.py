"""The gradient of max pooling is computed without the integers that XLA's scatter takes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

# Whether a plan computes an equation so depends on its bytes; here each one is.
from statetransform._memory.plans.pools import is_unpooled, unpooled


def pooled(x: Any, window: Any, strides: Any, padding: str = "VALID") -> Any:
    return lax.reduce_window(x, -jnp.inf, lax.max, window, strides, padding)


@pytest.mark.parametrize(
    ("window", "strides", "shape", "padding"),
    [
        ((1, 2, 2, 1), (1, 2, 2, 1), (2, 8, 8, 3), "VALID"),
        ((1, 2, 2, 1), (1, 2, 2, 1), (2, 9, 7, 3), "VALID"),  # the last ones are in no window
        ((1, 2, 2, 1), (1, 2, 2, 1), (2, 9, 7, 3), "SAME"),
        ((1, 3, 3, 1), (1, 2, 2, 1), (2, 9, 8, 3), "SAME"),
        ((1, 3, 3, 1), (1, 1, 1, 1), (2, 5, 5, 3), "SAME"),
        ((1, 2), (1, 3), (4, 11), "VALID"),
        ((3, 3), (2, 2), (9, 9), "VALID"),
        ((3,), (1,), (11,), "VALID"),
    ],
)
def test_it_is_the_gradient_of_jax(window: Any, strides: Any, shape: Any, padding: str) -> None:
    """With equal numbers in a window, and one that is none."""
    x = jnp.round(2 * jax.random.normal(jax.random.key(0), shape)).at[tuple(n // 2 for n in shape)].set(-jnp.inf)
    x = x if padding == "SAME" else x.at[(0,) * x.ndim].set(jnp.nan)
    y, pull = jax.vjp(lambda x: pooled(x, window, strides, padding), x)
    cotangent = jax.random.normal(jax.random.key(1), y.shape)
    (eqn,) = (e for e in jax.make_jaxpr(pull)(cotangent).eqns if is_unpooled(e))
    assert jnp.allclose(unpooled(eqn.params, cotangent, x), pull(cotangent)[0], rtol=1e-6, atol=1e-6)


def test_the_cotangent_of_a_window_without_a_largest_value_goes_to_one_in_it() -> None:
    x = jnp.full((4, 4), -jnp.inf)
    y, pull = jax.vjp(lambda x: pooled(x, (3, 3), (1, 1), "SAME"), x)
    (eqn,) = (e for e in jax.make_jaxpr(pull)(y).eqns if is_unpooled(e))
    assert unpooled(eqn.params, jnp.ones_like(y), x).sum() == 16
