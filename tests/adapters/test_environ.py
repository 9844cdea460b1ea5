"""Settings of brainstate's environment are part of what a trace depends on, as attributes are."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from statetransform import inspect, transform

bs = pytest.importorskip("brainstate")


@pytest.mark.parametrize("name", ["jit", "checkpoint", "grad"])
@pytest.mark.parametrize("make", [float, jnp.float32], ids=["number", "array"])
def test_another_setting_is_seen_and_one_that_was_seen_is_not_traced_again(name: str, make: Any) -> None:
    runs = []

    def scaled(x: Any) -> Any:
        runs.append(1)
        return x * bs.environ.get("gain")

    call = getattr(transform, name)(scaled)
    gains = [make(gain) for gain in (2.0, 3.0, 2.0, 2.0)]
    for gain in gains:
        with bs.environ.context(gain=gain):
            np.testing.assert_allclose(call(jnp.float32(1.0)), gain)
    if name != "grad" and make is float:
        assert len(runs) == 2


def test_a_setting_that_is_missing_or_global_is_seen() -> None:
    call = transform.jit(lambda: jnp.float32(bs.environ.get("offset", default=1.0)))
    assert call() == 1.0
    bs.environ.set(offset=2.0)
    try:
        assert call() == 2.0
        with bs.environ.context(offset=3.0):
            assert call() == 3.0
        assert call() == 2.0
        assert "environ['offset']" in str(inspect.explain_retrace(call))
    finally:
        bs.environ.pop("offset")
    assert call() == 1.0


def test_a_transform_around_depends_on_what_one_inside_has_asked_for() -> None:
    inner = transform.checkpoint(lambda x: x * bs.environ.get("gain"))
    outer = transform.jit(lambda x: inner(x) + 1.0)
    for gain in (2.0, 3.0, 2.0):
        with bs.environ.context(gain=gain):
            inner(jnp.float32(1.0))
            assert outer(jnp.float32(1.0)) == gain + 1.0


def test_a_setting_that_the_function_makes_itself_splits_no_trace() -> None:
    runs = []

    def step(i: Any) -> Any:
        with bs.environ.context(i=i, t=i * 0.5):
            return transform.checkpoint(lambda: bs.environ.get("t") * 2.0)()

    @transform.jit
    def run(n: Any) -> Any:
        runs.append(1)
        return transform.for_loop(step, n)

    with jax.checking_leaks():
        for _ in range(3):
            np.testing.assert_allclose(run(jnp.arange(4.0)), jnp.arange(4.0))
    assert len(runs) == 1


def test_dropout_follows_the_phase() -> None:
    dropout = bs.nn.Dropout(0.5)
    call = transform.jit(lambda x: dropout(x))
    x = jnp.ones(64)
    for fit in (True, False, True, False):
        with bs.environ.context(fit=fit):
            assert bool((call(x) == x).all()) is not fit


def test_what_the_environment_says_of_jax_makes_no_trace() -> None:
    runs = []

    @transform.jit
    def f(x):
        runs.append(bs.environ.get("platform"))
        return x

    assert [float(f(1.0)) for _ in range(3)] == [1.0] * 3 and runs == [jax.default_backend()]
