"""Transforms of flax.nnx inside ours and ours inside them, to depth three, against nnx alone."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import statetransform as st
from statetransform import transform

from .modules import arrays, nnx

X = jnp.linspace(-1, 1, 6).reshape(2, 3)


class Net(nnx.Module):
    def __init__(self) -> None:
        rngs = nnx.Rngs(0)
        self.linear = nnx.Linear(3, 3, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.sum = nnx.Variable(jnp.zeros(()))

    def __call__(self, x: Any) -> Any:
        y = jnp.tanh(self.dropout(self.linear(x)))
        self.sum[...] = self.sum[...] + jnp.sum(y)
        return y


call = lambda m, x: m(x)

#: What takes `f(module, x) -> like x` to another such function.
THEIRS = {
    "nnx.jit": nnx.jit,
    "nnx.remat": nnx.remat,
    "nnx.grad": lambda f: lambda m, x: nnx.grad(lambda x, m: jnp.sum(f(m, x)))(x, m),
    "nnx.value_and_grad": lambda f: lambda m, x: nnx.value_and_grad(lambda m, x: jnp.sum(f(m, x)))(m, x)[0] * x,
    "nnx.scan": lambda f: (
        lambda m, x: nnx.scan(
            lambda m, x, _: f(m, x), in_axes=(nnx.StateAxes({...: nnx.Carry}), nnx.Carry, 0), out_axes=nnx.Carry
        )(m, x, jnp.arange(2))
    ),
    "nnx.cond": lambda f: lambda m, x: nnx.cond(jnp.array(True), f, lambda m, x: x, m, x),
}
OURS = {
    "jit": transform.jit,
    "checkpoint": transform.checkpoint,
    "scan": lambda f: lambda m, x: transform.scan(lambda x, _: (f(m, x), None), x, None, length=2)[0],
    "grad": lambda f: lambda m, x: transform.grad(lambda x: jnp.sum(f(m, x)))(x),
}
#: The same by nnx, to compare with.
BY_NNX = {
    "jit": THEIRS["nnx.jit"],
    "checkpoint": THEIRS["nnx.remat"],
    "scan": THEIRS["nnx.scan"],
    "grad": THEIRS["nnx.grad"],
}


def agree(found: Any, expected: Any, ours: Any, theirs: Any) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    for a, b in zip(arrays(ours), arrays(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    assert not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(nnx.state(ours)))


CHAINS = [
    *[(ours, theirs) for ours in OURS for theirs in THEIRS],
    *[(theirs, ours) for ours in OURS for theirs in ("nnx.jit", "nnx.remat", "nnx.grad", "nnx.scan")],
    ("jit", "nnx.jit", "checkpoint"),
    ("jit", "nnx.grad", "scan"),
    ("grad", "nnx.remat", "jit"),
    ("scan", "nnx.jit", "grad"),
    ("checkpoint", "nnx.scan", "checkpoint"),
    ("nnx.jit", "checkpoint", "nnx.grad"),
    ("nnx.grad", "scan", "nnx.jit"),
]


@pytest.mark.parametrize("chain", CHAINS, ids=" of ".join)
def test_theirs_and_ours_within_each_other(chain: tuple[str, ...]) -> None:
    model, twin, step, reference = Net(), Net(), call, call
    for name in reversed(chain):
        step, reference = (OURS | THEIRS)[name](step), (BY_NNX | THEIRS)[name](reference)
    for _ in range(2):
        agree(step(model, X), reference(twin, X), model, twin)
    model(X)  # it can be used eagerly afterwards


def test_a_call_that_raises_within_theirs_changes_nothing() -> None:
    model = Net()
    before = arrays(model)

    def fails(m: Any, x: Any) -> Any:
        m(x)
        raise ZeroDivisionError

    for wrap in (transform.jit, transform.checkpoint):
        with pytest.raises(ZeroDivisionError):
            wrap(THEIRS["nnx.jit"](fails))(model, X)
        for a, b in zip(arrays(model), before, strict=True):
            np.testing.assert_allclose(a, b)
    agree(transform.jit(call)(model, X), nnx.jit(call)(twin := Net(), X), model, twin)


def test_a_state_of_ours_that_is_written_within_theirs_is_refused_by_name() -> None:
    own, model = st.State(jnp.zeros(()), name="own"), Net()

    def body(m: Any, x: Any) -> Any:
        own.value = jnp.sum(x)
        return m(x)

    with pytest.raises(st.StateTraceError, match="'own'"):
        transform.jit(nnx.jit(body))(model, X)
    assert own.value == 0


def _step(module: Any, x: Any) -> Any:
    """A step of training by ours, on the states of a module that may be nnx's own copy."""
    params = st.states(module, nnx.Param)
    by_handles = transform.grad(lambda: jnp.sum(module(x) ** 2), states=params)()
    by_variables = transform.grad(lambda: jnp.sum(module(x) ** 2), states=module.linear.kernel)()
    st.update(params, jax.tree.map(lambda p, g: p - 0.1 * g, st.values(params), by_handles))
    return module(x) + jnp.sum(by_variables)


def _step_by_nnx(module: Any, x: Any) -> Any:
    slopes = [nnx.grad(lambda m: jnp.sum(m(x) ** 2))(module) for _ in range(2)]
    params = nnx.state(module, nnx.Param)
    nnx.update(module, jax.tree.map(lambda p, g: p - 0.1 * g, params, slopes[0]))
    return module(x) + jnp.sum(slopes[1]["linear"]["kernel"][...])


@pytest.mark.parametrize(
    ("outer", "theirs"),
    [*[("jit", name) for name in THEIRS], ("checkpoint", "nnx.grad"), ("scan", "nnx.jit"), ("grad", "nnx.remat")],
)
def test_states_can_be_chosen_in_theirs_within_ours(outer: str, theirs: str) -> None:
    ours, expected = Net(), Net()
    found = OURS[outer](THEIRS[theirs](_step))(ours, X)
    agree(found, BY_NNX[outer](THEIRS[theirs](_step_by_nnx))(expected, X), ours, expected)


def test_lanes_of_a_kind_in_theirs_within_ours() -> None:
    ensemble = nnx.vmap(lambda key: nnx.Linear(3, 2, rngs=nnx.Rngs(params=key)))(jax.random.split(jax.random.key(0), 4))
    lanes = lambda m: transform.vmap(lambda x: m(x), in_axes=None, axis_size=4, state_axes={nnx.Param: 0})(X)
    found = transform.jit(lambda: nnx.jit(lanes)(ensemble))()
    np.testing.assert_allclose(found, nnx.vmap(call, in_axes=(0, None))(ensemble, X), rtol=1e-5)


def test_a_handle_takes_no_tracer_of_another_trace() -> None:
    net = Net()
    kernel = st.states(net)["linear.kernel"]

    def write(x: Any) -> None:
        kernel.value = kernel.value * x

    def within(m: Any) -> None:
        handle = st.states(m)["linear.kernel"]
        jax.jit(lambda x: setattr(handle, "value", handle.value * x))(2.0)

    for wrong in (lambda: jax.jit(write)(2.0), transform.jit(lambda: nnx.jit(within)(net))):
        with pytest.raises(st.StateTraceError, match=r"'linear\.kernel'"):
            wrong()
    agree(net(X), Net()(X), net, net)
