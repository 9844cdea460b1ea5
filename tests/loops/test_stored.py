"""What a loop stores: the carries once, and of them only the leaves that the derivative depends on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.loop_steps import STEPS, temporary
from statetransform import State, transform

N, SIZE = 60, 1 << 12
X = jnp.linspace(0.1, 0.9, SIZE)


def run(step: Callable[[Any, Any], Any], init: Any, n: int, checkpoint: Any, is_unknown: bool) -> Any:
    if is_unknown:
        body = lambda s: (s[0] + 1, step(s[1], s[0]))
        return transform.while_loop(lambda s: s[0] < n, body, (0, init), max_steps=N, checkpoint=checkpoint)[1]
    return transform.scan(lambda c, i: (step(c, i), None), init, jnp.arange(n), checkpoint=checkpoint)[0]


def source(w: Any, n: int, checkpoint: Any, is_unknown: bool) -> Any:
    """Linear in the source, with a factor that depends on the step."""
    return run(lambda c, i: jnp.sin(0.1 * i) * c + w, X, n, checkpoint, is_unknown).sum()


def filtered(m: Any, n: int, checkpoint: Any, is_unknown: bool) -> Any:
    """A mean, linear in itself, next to a small variance that is not."""

    def step(c: Any, _: Any) -> Any:
        mean, variance = c
        return mean + (X - mean) * variance / (variance + 1), variance / (variance + 1) + 0.1

    return run(step, (m, jnp.float32(1.0)), n, checkpoint, is_unknown)[0].sum()


@pytest.mark.optimized
@pytest.mark.parametrize("is_unknown", [False, True], ids=["known", "unknown"])
@pytest.mark.parametrize("f", [source, filtered])
def test_what_is_linear_is_not_stored(f: Any, is_unknown: bool) -> None:
    gradient = jax.jit(jax.grad(lambda x: f(x, N, 20, is_unknown)))
    assert gradient.lower(X).compile().memory_analysis().temp_size_in_bytes < 6 * X.nbytes
    np.testing.assert_allclose(gradient(X), jax.grad(lambda x: f(x, N, None, False))(X), rtol=1e-5)


@pytest.mark.parametrize("is_unknown", [False, True], ids=["known", "unknown"])
@pytest.mark.parametrize("f", [source, filtered])
@pytest.mark.parametrize("n", [0, 9])
def test_for_every_length_and_in_lanes(f: Any, n: int, is_unknown: bool) -> None:
    found = jax.jit(jax.grad(lambda x: f(x, n, 2, is_unknown)))(X)
    np.testing.assert_allclose(found, jax.jit(jax.grad(lambda x: f(x, n, None, False)))(X), rtol=1e-5)
    lanes = jax.jit(jax.vmap(jax.grad(lambda x: f(x, n, 2, is_unknown))))(jnp.stack([X, 2 * X]))
    np.testing.assert_allclose(lanes[0], found, rtol=1e-5)


def test_second_order_through_what_is_not_stored() -> None:
    twice = lambda checkpoint: jax.grad(lambda a: jax.grad(lambda x: filtered(a * x, 9, checkpoint, False))(X).sum())
    np.testing.assert_allclose(twice(2)(1.5), twice(None)(1.5), rtol=1e-4)


def test_a_callback_sees_the_values_of_the_forward_sweep_again() -> None:
    seen: list[float] = []

    def loss(x: Any) -> Any:
        def step(c: Any, _: Any) -> Any:
            jax.debug.callback(lambda c: seen.append(float(c)), c)
            return 2 * c, None

        return transform.scan(step, x, None, 3, checkpoint=1)[0]

    jax.block_until_ready(jax.grad(loss)(1.0))
    jax.effects_barrier()
    assert set(seen) == {1.0, 2.0, 4.0}


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
