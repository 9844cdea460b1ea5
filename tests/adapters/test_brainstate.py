"""Layers and random numbers of brainstate; the guarantees are in `test_guarantees.py`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import statetransform as st
from statetransform import transform

bs = pytest.importorskip("brainstate")


def test_random_numbers_of_brainstate_go_on() -> None:
    bs.random.seed(0)
    expected = [bs.random.rand(3) for _ in range(3)]
    bs.random.seed(0)
    runs = []

    @transform.jit
    def draw() -> Any:
        runs.append(None)
        return bs.random.rand(3)

    np.testing.assert_allclose([draw() for _ in range(3)], expected, rtol=1e-6)
    assert len(runs) == 1  # brainstate's own state is found, though no path of the user's leads to it
    bs.random.seed(0)
    np.testing.assert_allclose(draw(), expected[0], rtol=1e-6)


def test_layers_of_brainstate_train_as_with_its_own_transforms() -> None:
    x = jnp.linspace(-1, 1, 12).reshape(4, 3)
    bs.random.seed(0)
    ours, theirs = bs.nn.Linear(3, 2), None
    bs.random.seed(0)
    theirs = bs.nn.Linear(3, 2)

    @transform.jit
    def our_step(model: Any) -> Any:
        params = st.states(model, bs.ParamState)
        value, gradient = transform.value_and_grad(lambda: jnp.mean(model(x) ** 2), states=params)()
        st.update(params, jax.tree.map(lambda p, g: p - 0.1 * g, st.values(params), gradient))
        return value

    @bs.transform.jit
    def their_step() -> Any:
        gradient, value = bs.transform.grad(
            lambda: jnp.mean(theirs(x) ** 2), theirs.states(bs.ParamState), return_value=True
        )()
        for key, state in theirs.states(bs.ParamState).items():
            state.value = jax.tree.map(lambda p, g: p - 0.1 * g, state.value, gradient[key])
        return value

    for _ in range(4):
        np.testing.assert_allclose(our_step(ours), their_step(), rtol=1e-5)
