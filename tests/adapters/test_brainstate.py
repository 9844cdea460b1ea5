"""`brainstate.State`: its transforms inside ours and around them, its layers and its random numbers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import statetransform as st
from statetransform import transform

bs = pytest.importorskip("brainstate")

N = jnp.array([0.3, 0.5, 0.7])
X = jnp.array(1.5)


class Net:
    """A plain object with cells of brainstate and, beside them, one of ours."""

    def __init__(self, n: Any = N) -> None:
        self.w, self.h = bs.ParamState(n), bs.ShortTermState(jnp.zeros(()))
        self.own = st.State(jnp.zeros(()), name="own")
        self.scale = 1.0

    def step(self, x: Any) -> Any:
        self.h.value = self.h.value + jnp.sum(jnp.sin(self.w.value * x)) * self.scale
        self.own.value = self.own.value + x
        return self.h.value


def pure(w: Any, h: Any, x: Any) -> Any:
    return h + jnp.sum(jnp.sin(w * x))


@pytest.fixture
def net() -> Net:
    return Net()


def test_lanes_by_the_kinds_of_cells(net: Net) -> None:
    xs = jnp.linspace(0.9, 1.1, 5)
    net.h.value, net.own.value = jnp.zeros(3), jnp.zeros(3)
    transform.vmap(net.step, state_axes={bs.ShortTermState: 0, st.State: None, net.own: 0})(xs[:3])
    np.testing.assert_allclose(net.h.value, jax.vmap(lambda x: pure(N, 0.0, x))(xs[:3]), rtol=1e-5)
    with pytest.raises(st.StateAxisError):
        transform.vmap(lambda x: setattr(net.w, "value", net.w.value * x))(xs)


def test_a_write_in_a_raw_transform_is_refused(net: Net) -> None:
    with pytest.raises(st.StateTraceError, match="raw JAX transform"):
        transform.jit(lambda x: jax.jit(net.step)(x))(X)
    np.testing.assert_allclose(net.h.value, 0)


class Theirs(Net):
    """With cells of brainstate only: its transforms know no others."""

    def step(self, x: Any) -> Any:
        self.h.value = self.h.value + jnp.sum(jnp.sin(self.w.value * x)) * self.scale
        return self.h.value


def test_their_gradient_inside_ours_and_around() -> None:
    net = Theirs()
    expected = jax.grad(pure)(N, jnp.zeros(()), X)
    inside = transform.jit(lambda x: bs.transform.grad(lambda: net.step(x), net.w)())
    around = lambda x: bs.transform.grad(lambda: transform.checkpoint(net.step)(x), net.w)()
    for gradient in (inside, around):
        for _ in range(2):
            np.testing.assert_allclose(gradient(X), expected, rtol=1e-5)
    np.testing.assert_allclose(net.h.value, 4 * pure(N, 0.0, X), rtol=1e-5)


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
