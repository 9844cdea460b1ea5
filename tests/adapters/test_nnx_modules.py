"""Modules of flax.nnx: layers against `nnx.jit`, and attributes that a function sets."""

from __future__ import annotations

import copy
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import statetransform as st
from statetransform import transform

from .modules import Net, X, nnx, same

XS = jnp.linspace(0, 1, 24).reshape(2, 4, 3)

LAYERS = {
    "Linear": lambda: nnx.Sequential(nnx.Linear(3, 4, rngs=nnx.Rngs(0)), nnx.relu, nnx.Linear(4, 2, rngs=nnx.Rngs(1))),
    "BatchNorm": lambda: nnx.BatchNorm(3, rngs=nnx.Rngs(0)),
    "Dropout": lambda: nnx.Dropout(0.5, rngs=nnx.Rngs(0)),
    "GRU": lambda: nnx.RNN(nnx.GRUCell(3, 5, rngs=nnx.Rngs(0))),
    "Attention": lambda: nnx.MultiHeadAttention(
        num_heads=1, in_features=3, qkv_features=4, decode=False, dropout_rate=0.3, deterministic=False,
        rngs=nnx.Rngs(0),
    ),
    "LoRA": lambda: nnx.LoRA(3, 2, 4, rngs=nnx.Rngs(0)),
}  # fmt: skip
WRAPS = {
    "eager": lambda f: f,
    "jit": transform.jit,
    "checkpoint": transform.checkpoint,
    "both": lambda f: transform.jit(transform.checkpoint(f)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_and_their_gradients_are_what_they_are_under_nnx(name: str) -> None:
    fun = lambda m: jnp.sum(m(XS) ** 2)
    theirs = LAYERS[name]()
    reference = nnx.jit(fun)
    expected = [reference(theirs) for _ in range(2)]
    for wrap in WRAPS.values():
        ours = LAYERS[name]()
        step = wrap(fun)
        np.testing.assert_allclose([step(ours) for _ in range(2)], expected, rtol=1e-4)
        same(ours, theirs)
    step = transform.value_and_grad(transform.checkpoint(lambda: fun(ours)), states=nnx.state(ours, nnx.Param))
    if not jax.tree.leaves(nnx.state(ours, nnx.Param)):
        with pytest.raises(ValueError, match="no state in it"):
            step()
        return
    for found, by_nnx in zip(step(), nnx.value_and_grad(fun)(theirs), strict=True):
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(by_nnx), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)
    same(ours, theirs)


def test_a_cache_for_decoding_goes_on() -> None:
    make = lambda: nnx.MultiHeadAttention(num_heads=1, in_features=3, qkv_features=4, decode=True, rngs=nnx.Rngs(0))
    ours, theirs = make(), make()
    ours.init_cache((2, 5, 3))
    theirs.init_cache((2, 5, 3))
    our_step, their_step = transform.jit(lambda m, x: m(x)), nnx.jit(lambda m, x: m(x))
    for i in range(3):
        x = jnp.full((2, 1, 3), 0.1 * i)
        np.testing.assert_allclose(our_step(ours, x), their_step(theirs, x), rtol=1e-4)
    same(ours, theirs)


class Sets(nnx.Module):
    def __init__(self) -> None:
        self.w, self.n, self.h = nnx.Param(jnp.ones(3)), 0, nnx.data(jnp.zeros(3))

    def count(self, x: Any) -> Any:
        self.n = self.n + 1
        return jnp.sum(self.w[...] * x) * self.n

    def keep(self, x: Any) -> Any:
        self.h = self.h + x
        return jnp.sum(self.w[...] * self.h)


@pytest.mark.parametrize("name", ["jit", "checkpoint", "grad", "vmap", "value_and_grad"])
def test_a_traced_value_in_an_attribute_is_refused_by_name(name: str) -> None:
    model = Sets()
    with pytest.raises(st.StateTraceError, match=r"'h' of an instance of Sets .*\n.*nnx.Variable"):
        getattr(transform, name)(lambda x: model.keep(x))(jnp.ones(3))
    np.testing.assert_allclose(model.h, 0)


@pytest.mark.parametrize("name", ["jit", "checkpoint"])
def test_a_plain_value_in_an_attribute_is_set_at_each_call_with_a_warning(name: str) -> None:
    passed, closed_over = Sets(), Sets()
    by_argument = getattr(transform, name)(lambda m, x: m.count(x))
    by_closure = getattr(transform, name)(lambda x: closed_over.count(x))
    for step in (lambda x: by_argument(passed, x), by_closure):
        with pytest.warns(st.RetraceWarning, match=r"\.n` changes"):
            np.testing.assert_allclose([step(jnp.ones(3)) for _ in range(5)], [3, 6, 9, 12, 15])
    assert passed.n == closed_over.n == 5


def test_a_module_made_within_sets_what_it_likes() -> None:
    def body(x: Any) -> Any:
        model = Sets()
        model.keep(x)
        return model.keep(x) + transform.checkpoint(lambda x: Sets().keep(x))(x)

    for name in ("jit", "checkpoint", "grad"):
        getattr(transform, name)(body)(jnp.ones(3))
    np.testing.assert_allclose(transform.jit(body)(jnp.ones(3)), 9)


@pytest.mark.filterwarnings("ignore:.*is retraced at every call")
def test_a_variable_that_is_made_anew_comes_out() -> None:
    class Sower(nnx.Module):
        def __init__(self) -> None:
            self.w = nnx.Param(jnp.ones(3))

        def __call__(self, x: Any) -> Any:
            self.seen = nnx.Variable(x)
            return jnp.sum(self.w[...] * x)

    model = Sower()
    step = transform.jit(lambda m, x: m(x))
    for i in range(3):
        step(model, jnp.full(3, float(i)))
        np.testing.assert_allclose(model.seen[...], i)


def test_a_deep_copy_goes_on_by_itself() -> None:
    model = Net()
    transform.jit(lambda m, x: m(x))(model, X)
    other = copy.deepcopy(model)
    same(model, other)
    np.testing.assert_allclose(model(X), other(X), rtol=1e-5)
    assert int(other.calls[...]) == 2


def test_a_training_step_by_nnx_within_ours_is_not_traced_again_and_again() -> None:
    runs = []
    model = nnx.Linear(2, 1, rngs=nnx.Rngs(0))

    @transform.jit
    def step(m: Any, x: Any) -> Any:
        runs.append(1)
        value, gradient = nnx.value_and_grad(lambda m, x: jnp.mean(m(x) ** 2))(m, x)
        nnx.update(m, jax.tree.map(lambda p, g: p - 0.1 * g, nnx.state(m, nnx.Param), gradient))
        return value

    values = [float(step(model, jnp.ones((3, 2)))) for _ in range(4)]
    assert len(runs) <= 2  # nnx brings the attributes of a module into another order, once
    assert sorted(values, reverse=True) == values


def test_a_variable_that_is_made_halfway_has_no_value() -> None:
    transform.jit(lambda: nnx.Variable(jnp.zeros(2))[...])()
    half = object.__new__(nnx.Variable)
    object.__setattr__(half, "_var_metadata", {})
    for name in ("_raw_value", "shape"):
        with pytest.raises(AttributeError):
            getattr(half, name)


@pytest.mark.skipif(not hasattr(nnx, "set_graph_mode"), reason="this flax has no tree mode")
@pytest.mark.parametrize("is_shared", [False, True])
def test_tree_mode_changes_nothing_for_modules_also_shared_ones(is_shared: bool) -> None:
    class Net(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.a = nnx.Linear(3, 3, rngs=rngs)
            self.b = self.a if is_shared else nnx.Linear(3, 3, rngs=rngs)
            self.norm, self.dropout = nnx.BatchNorm(3, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            return (self.dropout(self.norm(jnp.tanh(self.b(self.a(x))))) ** 2).sum()

    x = jnp.arange(12.0).reshape(4, 3)

    def run() -> list[Any]:
        net = Net(nnx.Rngs(0))
        params = st.states(net, nnx.Param)
        step = transform.jit(lambda net, x: transform.value_and_grad(lambda x: net(x), states=params)(x))
        return [step(net, x), step(net, x), transform.checkpoint(lambda x: net(x))(x), st.values(net)]

    def leaves(found: list[Any]) -> list[Any]:
        is_key = lambda leaf: jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        return [jax.random.key_data(leaf) if is_key(leaf) else leaf for leaf in jax.tree.leaves(found)]

    expected = leaves(run())
    with nnx.set_graph_mode(False):
        found = leaves(run())
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)
