"""What the loops take from below JAX's public surface, and when each piece is no longer needed.

Each test fails when JAX offers the thing itself, and says what may then go.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
import pytest
from jax.custom_derivatives import linear_call

from statetransform import _jax
from statetransform._memory.loops.lanes import lanes_first

EXPLICIT = jax.sharding.AxisType.Explicit


def explicit_mesh() -> Any:
    return jax.set_mesh(jax.make_mesh((8,), ("i",), axis_types=(EXPLICIT,), devices=jax.devices("cpu")))


def test_zeros_have_the_sharding_of_their_type() -> None:
    """`jnp.zeros_like` loses that of keys. When it keeps it, with and without `jax.set_mesh`, `zeros` may call it."""
    lost = []

    def check(x: jax.Array) -> jax.Array:
        aval = jax.typeof(x)
        assert jax.typeof(_jax.zeros(aval)) == aval
        assert jax.typeof(_jax.zeros(aval, (3,))).sharding.spec == jax.P(None, "i")
        lost.append(jax.typeof(jnp.zeros_like(aval)) != aval)
        return x

    with explicit_mesh():
        x = jax.reshard(jnp.arange(16.0), jax.P("i"))
        keys = jax.reshard(jax.random.split(jax.random.key(0), 16), jax.P("i"))
        for array in (x, keys):
            jax.jit(check)(array)
    jax.jit(check)(x)
    assert any(lost)


def test_zeros_vary_over_the_axes_of_shard_map_that_their_type_says() -> None:
    """`jnp.zeros` does not; when it takes that, `zeros` may leave `pcast` to it."""
    with explicit_mesh():
        seen = []

        def piece(x: jax.Array) -> jax.Array:
            same = _jax.zeros(jax.typeof(x))
            seen.append(jax.typeof(same) == jax.typeof(x) != jax.typeof(jnp.zeros(x.shape)))
            return same

        jax.jit(jax.shard_map(piece, out_specs=jax.P("i")))(jax.reshard(jnp.arange(16.0), jax.P("i")))
        assert all(seen) and seen


def test_a_weak_type_can_be_given_back_which_no_public_function_does() -> None:
    """When `lax.convert_element_type` takes `weak_type`, `weak` may go."""
    x = jnp.ones(3, jnp.bfloat16)
    again = jax.jit(_jax.weak)(x)
    assert again.weak_type and again.dtype == x.dtype
    with pytest.raises(TypeError):
        jax.lax.convert_element_type(x, x.dtype, weak_type=True)  # type: ignore[call-arg]


def test_no_public_predicate_tells_a_symbolic_zero() -> None:
    """When `jax.custom_derivatives` has one, `is_zero_tangent` may call that."""
    assert not [name for name in dir(jax.custom_derivatives) if "is_symbolic" in name or "is_zero" in name]


def test_the_leaves_of_a_pullback_are_its_residuals() -> None:
    """Made of other leaves, a pullback pulls at another point. That it is a pytree is documented, and no more."""
    split = lambda x: jax.tree.flatten(jax.vjp(jnp.sin, x)[1])
    leaves, tree = split(0.3)
    others, _ = split(0.7)
    assert len(leaves) == 1
    np.testing.assert_array_equal(tree.unflatten(others)(1.0)[0], jnp.cos(0.7))


def test_no_public_function_cuts_a_jaxpr_at_variables_that_are_no_outputs_of_it() -> None:
    """When `jax.extend.core` has one, `part_of` may go."""
    assert not [name for name in dir(jex) if "dce" in name or "slice" in name]


def test_jax_own_linear_call_still_has_no_batching() -> None:
    """When this fails, `jax.custom_derivatives.linear_call` may take the place of `linear.Linear` and `define`."""
    own = lambda x: linear_call(lambda _, x: 2 * x, lambda _, ct: 2 * ct, (), x)
    with pytest.raises(NotImplementedError, match="Batching rule"):
        jax.vmap(own)(jnp.ones(3))


def test_jax_still_takes_lanes_from_the_function_of_a_rule_and_values_from_the_rule() -> None:
    """When this fails for every JAX that is supported, `lanes.lanes_first` may go."""

    @jax.custom_jvp
    def halves(x: Any) -> Any:
        return jax.lax.scan(lambda x, _: (x / 2, x), x, length=4)[1]  # under `vmap`, lanes are at axis 1

    def rule(primals: Any, tangents: Any) -> Any:
        return tuple(x * 0.5 ** jnp.arange(4.0) for x in (*primals, *tangents))  # and at axis 0

    halves.defjvp(rule)
    x = jnp.arange(1.0, 5.0)
    expected = x[:, None] * 0.5 ** jnp.arange(4.0)
    derivative = lambda f: jax.jvp(jax.vmap(f), (x,), (x,))
    np.testing.assert_array_equal(derivative(halves), [expected] * 2)
    np.testing.assert_array_equal(derivative(jax.jit(halves)), [expected.T] * 2)
    from_front = jax.custom_jvp(lambda x: lanes_first(halves(x)))
    from_front.defjvp(rule)
    np.testing.assert_array_equal(derivative(jax.jit(from_front)), [expected] * 2)
