"""`state_dict` and `load_state_dict` with the cells of other frameworks."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import statetransform as st
from statetransform import transform

optax = pytest.importorskip("optax")


def of_nnx(seed: int) -> tuple[Any, Callable[[], Any]]:
    nnx = pytest.importorskip("flax.nnx")

    class Net(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.linear = nnx.Linear(3, 3, rngs=rngs, param_dtype=jnp.bfloat16)
            self.norm = nnx.BatchNorm(3, rngs=rngs)
            self.dropout = nnx.Dropout(0.5, rngs=rngs)

    net = Net(nnx.Rngs(seed))
    optimizer = nnx.Optimizer(net, optax.adam(1e-2), wrt=nnx.Param)

    def loss() -> Any:
        return (net.dropout(net.norm(net.linear(jnp.ones((4, 3))))) ** 2).sum()

    def step() -> Any:
        value, gradient = transform.value_and_grad(loss, states=nnx.state(net, nnx.Param))()
        optimizer.update(net, gradient)
        return value

    return {"net": net, "optimizer": optimizer}, step


def of_brainstate(seed: int) -> tuple[Any, Callable[[], Any]]:
    brainstate = pytest.importorskip("brainstate")

    class Net(brainstate.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = brainstate.ParamState(jnp.full((3,), float(seed)))
            self.rng = brainstate.random.RandomState(seed)

    net = Net()

    def step() -> Any:
        net.w.value = net.w.value + net.rng.normal(size=(3,))
        return net.w.value.sum()

    return net, step


def of_jax(seed: int) -> tuple[Any, Callable[[], Any]]:
    ref = jax.new_ref(jnp.full(3, float(seed)))

    def step() -> Any:
        ref[...] = ref[...] * 2 + 1
        return ref[...].sum()

    return [ref], step


class Plain:
    def __init__(self, u: Any) -> None:
        self.u = u


def of_attributes(seed: int) -> tuple[Any, Callable[[], Any]]:
    plain = Plain(jnp.full(3, float(seed)))
    st.attr(plain, "u")

    def step() -> Any:
        plain.u = plain.u * 2 + 1
        return plain.u.sum()

    return plain, step


@pytest.mark.parametrize("make", [of_nnx, of_brainstate, of_jax, of_attributes])
def test_a_run_goes_on_in_another_model_where_it_was_saved(make: Any) -> None:
    model, step = make(0)
    step = transform.jit(step)
    step()
    file = io.BytesIO()
    np.savez(file, **st.state_dict(model))
    expected = [np.asarray(step()).tolist() for _ in range(3)]
    fresh, step = make(1)
    step = transform.jit(step)
    step()
    file.seek(0)
    assert st.load_state_dict(fresh, np.load(file)) == ([], [])
    assert [np.asarray(step()).tolist() for _ in range(3)] == expected


def test_a_kind_of_another_framework_selects_what_is_saved() -> None:
    nnx = pytest.importorskip("flax.nnx")
    model, _ = of_nnx(0)
    assert set(st.state_dict(model["net"], nnx.Param)) == {"linear.kernel", "linear.bias", "norm.scale", "norm.bias"}
    assert set(st.state_dict(model["net"], nnx.BatchStat)) == {"norm.mean", "norm.var"}
