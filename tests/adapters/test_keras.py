"""keras on JAX: its variables are states after one line."""

from __future__ import annotations

import importlib.util
import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import statetransform as st
from statetransform import transform

if importlib.util.find_spec("keras") is None:
    pytest.skip("keras is not installed", allow_module_level=True)
os.environ["KERAS_BACKEND"] = "jax"
import keras

if keras.backend.backend() != "jax":
    pytest.skip("keras runs on another backend", allow_module_level=True)
st.register_state_type(keras.Variable, attribute="_value")

X = jnp.linspace(-1, 1, 12).reshape(4, 3)


def make() -> Any:
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(5, "tanh"), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.build((None, 3))
    return model


def values(model: Any) -> list[Any]:
    return [np.asarray(variable.value) for variable in model.variables]


@pytest.mark.parametrize("name", ["jit", "checkpoint"])
def test_a_model_is_called_and_keeps_its_statistics(name: str) -> None:
    ours, theirs = make(), make()
    step = getattr(transform, name)(lambda x: ours(x, training=True))
    for _ in range(3):
        np.testing.assert_allclose(step(X), theirs(X, training=True), rtol=1e-4, atol=1e-5)
    for a, b in zip(values(ours), values(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_gradients_are_those_of_the_stateless_call() -> None:
    model = make()
    trainable = list(model.trainable_variables)

    def by_hand(given: Any) -> Any:
        rest = [variable.value for variable in model.non_trainable_variables]
        return jnp.sum(model.stateless_call(given, rest, X, training=True)[0] ** 2)

    expected = jax.grad(by_hand)([variable.value for variable in trainable])
    found = transform.jit(transform.grad(lambda: jnp.sum(model(X, training=True) ** 2), states=trainable))()
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)
