"""`flax.nnx.Variable`: modules closed over and passed, and nnx's transforms inside ours."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import statetransform as st
from statetransform import transform

from .modules import Net, X, nnx, same


@pytest.mark.parametrize("name", ["jit", "checkpoint", "named_call"])
def test_a_module_closed_over_or_passed_gives_what_nnx_jit_gives(name: str) -> None:
    wrap = getattr(transform, name)
    ours, passed, theirs = Net(), Net(), Net()
    by_closure, by_argument = wrap(lambda x: ours(x)), wrap(lambda m, x: m(x))
    reference = nnx.jit(lambda m, x: m(x))
    for _ in range(3):
        expected = reference(theirs, X)
        np.testing.assert_allclose(by_closure(X), expected, rtol=1e-4)
        np.testing.assert_allclose(by_argument(passed, X), expected, rtol=1e-4)
    same(ours, theirs)
    same(passed, theirs)


@pytest.mark.parametrize("around", [lambda f: f, transform.jit, transform.checkpoint])
def test_gradients_are_those_of_nnx(around: Any) -> None:
    ours, theirs = Net(), Net()
    expected = nnx.grad(lambda m: m(X))(theirs)
    found = transform.grad(around(lambda: ours(X)), states=st.states(ours, nnx.Param))()
    assert set(found) == {"linear.kernel", "linear.bias", "norm.scale", "norm.bias"}
    np.testing.assert_allclose(found["linear.kernel"], expected["linear"]["kernel"][...], rtol=1e-4, atol=1e-5)
    same(ours, theirs)


def test_train_and_eval_and_a_replaced_layer_are_seen() -> None:
    model = Net()
    step = transform.jit(lambda m, x: m(x))
    step(model, X)
    model.eval()
    twin = nnx.clone(model)
    np.testing.assert_allclose(step(model, X), twin(X), rtol=1e-4)
    model.linear = nnx.Linear(3, 5, rngs=nnx.Rngs(7))
    twin = nnx.clone(model)
    np.testing.assert_allclose(step(model, X), twin(X), rtol=1e-4)


def test_handles_write_variables() -> None:
    model = Net()
    states = st.states(model, nnx.BatchStat)
    assert set(states) == {"norm.mean", "norm.var"}
    states["norm.mean"].value = jnp.ones(5)
    np.testing.assert_allclose(model.norm.mean[...], 1)


def test_modules_of_one_structure_share_a_trace() -> None:
    runs = []

    @transform.jit
    def step(m: Any, x: Any) -> Any:
        runs.append(None)
        return m(x)

    models = [Net() for _ in range(3)]
    for _ in range(3):
        for model in models:
            step(model, X)
    assert len(runs) == 1
    same(models[0], models[2])


def test_an_optimizer_steps_as_under_nnx_jit() -> None:
    optax = pytest.importorskip("optax")

    def step(model: Any, optimizer: Any, x: Any) -> Any:
        loss, gradient = nnx.value_and_grad(lambda m: m(x))(model)
        optimizer.update(model, gradient)
        return loss

    make = lambda: (model := Net(), nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param))
    ours, theirs = make(), make()
    our_step, their_step = transform.jit(step), nnx.jit(step)
    for _ in range(3):
        np.testing.assert_allclose(our_step(*ours, X), their_step(*theirs, X), rtol=1e-3)
    same(ours[0], theirs[0])
    same(ours[1], theirs[1])


def test_recurrent_layers_can_be_used_eagerly_afterwards() -> None:
    xs = jnp.linspace(0, 1, 24).reshape(2, 4, 3)
    make = lambda: nnx.RNN(nnx.LSTMCell(3, 5, rngs=nnx.Rngs(0)))
    ours, theirs = make(), make()
    expected = nnx.jit(lambda m: jnp.sum(m(xs)))(theirs)
    np.testing.assert_allclose(transform.jit(lambda m: jnp.sum(m(xs)))(ours), expected, rtol=1e-4)
    np.testing.assert_allclose(jnp.sum(ours(xs)), expected, rtol=1e-4)
    found = transform.grad(transform.jit(lambda: jnp.sum(ours(xs))), states=st.states(ours, nnx.Param))()
    expected = nnx.grad(lambda m: jnp.sum(m(xs)))(theirs)
    np.testing.assert_allclose(found["cell.hi.kernel"], expected["cell"]["hi"]["kernel"][...], rtol=1e-3, atol=1e-5)


def test_lanes_of_a_kind_of_variables() -> None:
    class Scale(nnx.Module):
        def __init__(self) -> None:
            self.w = nnx.Param(jnp.arange(3.0))
            self.n = nnx.Variable(jnp.zeros(()))

    model = Scale()
    out = transform.vmap(lambda x: model.w[...] * x, state_axes={nnx.Param: 0})(jnp.ones(3))
    np.testing.assert_allclose(out, jnp.arange(3.0))
    with pytest.raises(st.StateAxisError, match="n"):
        transform.vmap(lambda x: model.n.set_value(x))(jnp.ones(3))


def test_a_module_made_inside_holds_its_values() -> None:
    for wrap in (transform.jit, lambda f: f):
        model = wrap(lambda: Net())()
        np.testing.assert_allclose(model(X), Net()(X), rtol=1e-4)
        assert not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(nnx.state(model)))


def test_copies_and_no_tracers() -> None:
    import copy

    model = Net()
    with jax.checking_leaks():
        transform.grad(transform.jit(transform.checkpoint(lambda m, x: m(x))), argnums=1)(model, X)
    other = copy.deepcopy(model)
    same(model, other)
    np.testing.assert_allclose(model(X), other(X), rtol=1e-5)
    assert int(other.calls[...]) == 2


def test_a_write_in_a_raw_transform_is_refused() -> None:
    model = Net()
    before = nnx.clone(model)
    with pytest.raises((st.StateTraceError, nnx.TraceContextError if hasattr(nnx, "TraceContextError") else Exception)):
        transform.jit(lambda: jax.lax.scan(lambda c, x: (c, model(X)), None, jnp.arange(2.0)))()
    same(model, before)


def test_loops_of_ours_over_a_module() -> None:
    ours, theirs = Net(), Net()
    _, out = transform.scan(lambda c, x: (c, ours(x)), None, jnp.stack([X, 2 * X]))
    np.testing.assert_allclose(out, [theirs(X), theirs(2 * X)], rtol=1e-4)
    same(ours, theirs)


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
