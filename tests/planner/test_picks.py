"""The gradient of `take_along_axis` is computed without a scatter into an array as large as what is picked from."""

from __future__ import annotations

from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
import pytest

# Whether a plan is made depends on its bytes; here each gradient is computed so.
from statetransform._memory.plans.picks import without_scatters
from statetransform._memory.programs.rewrite import inlined


def gradients(pick: Any, x: Any, places: Any) -> tuple[bool, Any, Any]:
    """Whether the gradient still scatters, its value, and that of JAX."""
    step = lambda x: jax.grad(lambda x: (jnp.nan_to_num(pick(x, places)) ** 3).sum())(x)
    flat = without_scatters(inlined(jax.make_jaxpr(step)(x)))
    has_scatter = any(eqn.primitive.name == "scatter-add" for eqn in flat.jaxpr.eqns)
    return has_scatter, jex.jaxpr_as_fun(flat)(x)[0], step(x)


@pytest.mark.parametrize("mode", ["fill", "clip", "promise_in_bounds"])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_it_is_the_gradient_of_jax(mode: str, axis: int) -> None:
    """With places that count from the end, and some that are outside unless none may be."""
    x = jax.random.normal(jax.random.key(0), (3, 4, 5))
    shape = [1 if k == axis % 3 else size for k, size in enumerate(x.shape)]
    low, high = (0, x.shape[axis]) if mode == "promise_in_bounds" else (-8, 9)
    places = jax.random.randint(jax.random.key(1), shape, low, high)
    has_scatter, ours, theirs = gradients(lambda x, i: jnp.take_along_axis(x, i, axis, mode=mode), x, places)
    assert not has_scatter
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("dtype", [jnp.uint8, jnp.int8, jnp.uint32])
def test_places_of_small_types_are_compared_as_such_of_large_ones(dtype: Any) -> None:
    x, places = jax.random.normal(jax.random.key(0), (4, 300)), jnp.array([[0], [7], [100], [127]], dtype)
    has_scatter, ours, theirs = gradients(lambda x, i: jnp.take_along_axis(x, i, -1), x, places)
    assert not has_scatter
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("pick", [lambda x, i: jnp.take_along_axis(x, i, 1), lambda x, i: x[i[:, 0]]])
def test_what_may_be_picked_twice_is_scattered(pick: Any) -> None:
    x, places = jax.random.normal(jax.random.key(0), (4, 5)), jnp.array([[0, 0], [3, 1], [3, 3], [-1, 4]])
    has_scatter, ours, theirs = gradients(pick, x, places)
    assert has_scatter
    np.testing.assert_array_equal(ours, theirs)
