"""`checkify`: errors of checks come out as values, beside what the function writes."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import checkify
from jax.sharding import PartitionSpec as P

from statetransform import State, transform


@pytest.mark.parametrize("wrap", ["shard_map", "checkify"])
def test_a_decision_on_a_traced_value_stays_the_error_that_it_is(wrap: str) -> None:
    f = lambda x: x if x.sum() > 0 else -x
    mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:1])
    mapped = functools.partial(transform.shard_map, mesh=mesh, in_specs=P(), out_specs=P())
    with pytest.raises(jax.errors.TracerBoolConversionError):
        {"shard_map": mapped, "checkify": transform.checkify}[wrap](f)(jnp.ones(2))


def test_checkify_closes_over_its_arguments_as_in_jax() -> None:
    n = State(jnp.int32(0), name="n")

    def f(x: Any, mode: str) -> Any:
        n.value = n.value + 1
        checkify.check(jnp.asarray(x) > 0, "not positive")
        return x * n.value if mode == "fast" and x < 10 else x

    for i in range(1, 3):
        error, out = transform.checkify(f)(2.0, "fast")
        assert (error.get(), float(out), int(n.value)) == (None, 2.0 * i, i)
    assert "not positive" in transform.checkify(f)(-1.0, "slow")[0].get()
    assert transform.grad(lambda x: transform.checkify(jax.nn.relu)(x)[1])(2.0) == 1.0
