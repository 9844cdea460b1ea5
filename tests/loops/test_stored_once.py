"""The compiled gradient of a loop holds the stored carries once, whatever the step and whoever keeps the last carry."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from benchmarks.loop_steps import STEPS, temporary
from statetransform import State, transform

BEYOND = 8.05  # carries in temporary memory besides the stored ones, and a few numbers


@pytest.mark.optimized
@pytest.mark.parametrize("name", STEPS)
def test_each_step_holds_the_stored_carries_once(name: str) -> None:
    assert temporary(name, 400, 20) <= 20 + BEYOND


@pytest.mark.optimized
@pytest.mark.parametrize("name", ["logistic", "sine of a stencil", "leapfrog", "network"])
def test_so_does_a_loop_of_unknown_length(name: str) -> None:
    assert temporary(name, 400, 20, is_unknown=True) <= 20 + BEYOND


@pytest.mark.optimized
@pytest.mark.parametrize(("n", "k"), [(400, 0), (400, 10), (400, 40), (4000, 20)])
def test_so_it_is_for_any_number_of_steps_and_carries(n: int, k: int) -> None:
    assert temporary("sine of a stencil", n, k) <= k + BEYOND


@pytest.mark.optimized
@pytest.mark.parametrize("name", ["logistic", "leapfrog"])
def test_each_device_holds_its_part_once(name: str) -> None:
    mesh = jax.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices("cpu")[:4])
    assert temporary(name, 400, 20, size=4096, mesh=mesh) <= 20 + BEYOND


@pytest.mark.optimized
def test_a_state_keeps_the_last_carry() -> None:
    u = State(jnp.linspace(0.1, 0.9, 1 << 15), name="u")

    def loss(r: Any) -> Any:
        def step(_: Any, __: Any) -> Any:
            u.value = jnp.sin(r * u.value)
            return None, None

        transform.scan(step, None, length=400, checkpoint=20)
        return u.value.mean()

    compiled = transform.jit(transform.grad(loss)).lower(jnp.float32(0.9)).compile()
    assert compiled.memory_analysis().temp_size_in_bytes <= (20 + BEYOND) * u.value.nbytes
