"""Training steps as users of flax.nnx and brainstate write them: a budget, or our transforms, change no value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import statetransform as st
from statetransform import policies, transform

from .modules import Net, X, nnx, same

optax = pytest.importorskip("optax")
BATCHES = jnp.linspace(-1, 1, 48).reshape(4, 4, 3)
BUDGET = policies.fit("300 B", compile=False)  # less than the plain steps take


def loss(model: Any, x: Any) -> Any:
    return model(x)


def theirs(loss: Callable[..., Any]) -> Callable[..., Any]:
    @nnx.jit
    def step(model: Any, optimizer: Any, x: Any) -> Any:
        value, gradient = nnx.value_and_grad(loss)(model, x)
        optimizer.update(model, gradient)
        return value

    return step


def ours(loss: Callable[..., Any]) -> Callable[..., Any]:
    @transform.jit
    def step(model: Any, optimizer: Any, x: Any) -> Any:
        value, gradient = transform.value_and_grad(loss, states=nnx.state(model, nnx.Param))(model, x)
        optimizer.update(model, gradient)
        return value

    return step


STEPS = {
    "a budget within theirs": lambda: theirs(transform.checkpoint(loss, policy=BUDGET)),
    "ours": lambda: ours(loss),
    "a budget within ours": lambda: ours(transform.checkpoint(loss, policy=BUDGET)),
    "a remat of theirs within a budget": lambda: ours(transform.checkpoint(nnx.remat(loss), policy=BUDGET)),
}
OPTIMIZERS = {"sgd": lambda: optax.sgd(0.1), "several steps": lambda: optax.MultiSteps(optax.sgd(0.1), 2)}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", STEPS)
def test_a_step_trains_as_that_of_nnx(name: str, optimizer: str) -> None:
    held = []
    for step in (theirs(loss), STEPS[name]()):
        model = Net()
        its = nnx.Optimizer(model, OPTIMIZERS[optimizer](), wrt=nnx.Param)
        held.append((model, its, [step(model, its, x) for x in BATCHES]))
    for a, b in zip(*held, strict=True):
        same(a, b)
    assert "budget" not in name or not BUDGET.choices[-1].is_plain  # pyright: ignore


def test_training_and_evaluation_have_a_trace_each_and_a_replaced_layer_is_seen() -> None:
    model, twin, runs = Net(), Net(), []

    @transform.jit
    def out(x: Any) -> Any:
        runs.append(None)
        return model(x)

    for mode in ("train", "eval", "train", "eval"):
        getattr(model, mode)(), getattr(twin, mode)()
        np.testing.assert_allclose(out(X), twin(X), rtol=1e-4)
    assert len(runs) == 2
    model.linear = nnx.Linear(3, 5, rngs=nnx.Rngs(7))
    twin = nnx.clone(model)
    np.testing.assert_allclose(out(X), twin(X), rtol=1e-4)


def test_a_scan_of_nnx_over_layers_that_it_mapped_trains_the_same_within_a_budget() -> None:
    class Layer(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.linear, self.norm = nnx.Linear(3, 3, rngs=rngs), nnx.BatchNorm(3, rngs=rngs)
            self.dropout = nnx.Dropout(0.5, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            return x + self.dropout(jnp.tanh(self.norm(self.linear(x))))

    class Deep(nnx.Module):
        def __init__(self) -> None:
            self.layers = nnx.split_rngs(splits=4)(nnx.vmap(Layer, axis_size=4))(nnx.Rngs(0))

        def __call__(self, x: Any) -> Any:
            run = nnx.scan(nnx.remat(lambda layer, x: layer(x)), in_axes=(0, nnx.Carry), out_axes=nnx.Carry)
            return jnp.sum(run(self.layers, x) ** 2)

    reference, budget = Deep(), policies.fit("1 kB", compile=False)
    value, gradient = nnx.value_and_grad(loss)(reference, X)
    for f in (loss, transform.checkpoint(loss, policy=budget)):
        model = Deep()
        step = transform.jit(lambda m, x, f=f: transform.value_and_grad(f, states=nnx.state(m, nnx.Param))(m, x))
        found = step(model, X)
        np.testing.assert_allclose(found[0], value, rtol=1e-5)
        same(found[1], gradient)
        same(model, reference)
    assert not budget.choices[-1].is_plain  # pyright: ignore[reportAttributeAccessIssue]


def test_metrics_and_what_else_a_loss_returns_are_those_of_nnx() -> None:
    def loss(model: Any, x: Any) -> Any:
        logits = model.linear(x)
        return jnp.mean(logits**2), logits

    def run(jit: Any, gradient_of: Callable[[Any], Any]) -> Any:
        model, labels = Net(), jnp.arange(4)
        metrics = nnx.MultiMetric(loss=nnx.metrics.Average("loss"), accuracy=nnx.metrics.Accuracy())

        @jit
        def step(model: Any, metrics: Any, x: Any) -> Any:
            (value, logits), gradient = gradient_of(model)(model, x)
            metrics.update(loss=value, logits=logits, labels=labels)
            return gradient

        return [step(model, metrics, x) for x in BATCHES], metrics.compute()

    ours = run(transform.jit, lambda m: transform.value_and_grad(loss, states=nnx.state(m, nnx.Param), has_aux=True))
    same(ours, run(nnx.jit, lambda _: nnx.value_and_grad(loss, has_aux=True)))


def test_a_model_that_is_merged_inside_a_budget_under_raw_jax() -> None:
    graph, *held = nnx.split(Net(), nnx.Param, ...)
    merged = transform.checkpoint(lambda *held: nnx.merge(graph, *held)(X), policy=BUDGET)
    # The gradient of a bias before a batch norm is zero but for rounding errors.
    same(jax.jit(jax.grad(merged))(*held), nnx.grad(loss)(Net(), X), atol=1e-3)
    assert not BUDGET.choices[-1].is_plain  # pyright: ignore[reportAttributeAccessIssue]


def test_gradients_are_added_up_over_small_batches() -> None:
    model, twin = Net(), Net()
    params = st.states(model, nnx.Param)
    total = st.State(jax.tree.map(jnp.zeros_like, st.values(params)))

    def small(_: None, x: Any) -> Any:
        value, gradient = transform.value_and_grad(loss, states=params)(model, x)
        total.value = jax.tree.map(jnp.add, total.value, gradient)
        return None, value

    _, values = transform.jit(lambda xs: transform.scan(small, None, xs))(BATCHES)
    expected = [nnx.value_and_grad(loss)(twin, x) for x in BATCHES]
    np.testing.assert_allclose(values, [value for value, _ in expected], rtol=1e-4)
    kernels = sum(gradient["linear"]["kernel"][...] for _, gradient in expected)
    np.testing.assert_allclose(total.value["linear.kernel"], kernels, rtol=1e-3, atol=1e-4)
    same(model, twin)


def test_an_ensemble_that_nnx_made_is_mapped_by_either() -> None:
    class Member(nnx.Module):
        def __init__(self, key: Any) -> None:
            self.linear, self.norm = (nnx.Linear(3, 2, rngs=nnx.Rngs(key)), nnx.BatchNorm(2, rngs=nnx.Rngs(key)))

        def __call__(self, x: Any) -> Any:
            return self.norm(self.linear(x))

    make = lambda: nnx.vmap(Member)(jax.random.split(jax.random.key(0), 3))
    call = nnx.vmap(lambda member, x: member(x), in_axes=(0, None))
    reference, first, second = make(), make(), make()
    expected = call(reference, X)
    mapped = transform.vmap(lambda x: first(x), in_axes=None, axis_size=3, state_axes={nnx.Variable: 0})
    np.testing.assert_allclose(mapped(X), expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(transform.jit(call)(second, X), expected, rtol=1e-4, atol=1e-6)
    same(first, reference)
    same(second, reference)


def test_an_abstract_model_is_compiled_and_planned_for() -> None:
    """Made by `nnx.eval_shape`, as for a model that this machine cannot hold."""
    model, full = nnx.eval_shape(Net), Net()
    x = jax.ShapeDtypeStruct(X.shape, X.dtype)
    temporary = lambda lowered: lowered.compile().memory_analysis().temp_size_in_bytes
    by_argument = transform.jit(loss)
    assert temporary(by_argument.lower(model, x)) == temporary(by_argument.lower(full, x))
    for states in (nnx.state(model, nnx.Param), st.states(model, nnx.Param), model.linear.kernel):
        gradient = transform.jit(transform.grad(lambda x: model(x), states=states))
        assert jax.tree.leaves(gradient.eval_shape(x))[-1].shape in ((3, 5), (5,))
        assert len(policies.plan(lambda x: model(x), x, states=states)) > 1
    assert not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(nnx.state(model)))
    with pytest.raises(TypeError, match="ShapeDtypeStruct"):
        by_argument(model, X)


def test_an_abstract_model_that_is_made_inside_is_none_of_the_calls_states() -> None:
    def made(x: Any) -> Any:
        graph, state = nnx.split(nnx.eval_shape(lambda: nnx.Linear(3, 2, rngs=nnx.Rngs(0))))
        return nnx.merge(graph, jax.tree.map(lambda leaf: jnp.ones(leaf.shape), state))(x).sum()

    for wrap in (transform.jit, transform.checkpoint, transform.value_and_grad):
        np.testing.assert_allclose(jax.tree.leaves(wrap(made)(X))[0], made(X), rtol=1e-5)


@pytest.mark.optimized
def test_a_budget_opens_a_network_in_time_with_dropout() -> None:
    """brainstate checks the probability by a callback in each step."""
    bs = pytest.importorskip("brainstate")

    class Network(bs.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.recurrent, self.dropout = bs.nn.Linear(8, 8), bs.nn.Dropout(0.8)
            self.v = bs.HiddenState(jnp.zeros((16, 8)))

        def update(self, i: Any) -> None:
            self.v.value = jnp.tanh(0.9 * self.v.value + self.dropout(self.recurrent(self.v.value)) + i)

    model, inputs = Network(), jnp.linspace(0, 1, 100)

    def loss() -> Any:
        model.v.value = jnp.zeros((16, 8))
        bs.transform.for_loop(model.update, inputs)
        return jnp.mean(model.v.value**2)

    def gradient(f: Callable[[], Any]) -> Any:
        return transform.jit(transform.grad(f, states=model.states(bs.ParamState)))

    with bs.environ.context(fit=True):
        plain = gradient(loss)
        needed = plain.lower().compile().memory_analysis().temp_size_in_bytes
        budget = policies.fit(needed // 4)
        small = gradient(transform.checkpoint(loss, policy=budget))
        found = []
        for step in (plain, small):
            bs.random.seed(1)
            found.append(step())
    assert budget.choices[-1].planned_bytes <= needed // 4  # pyright: ignore
    for a, b in zip(*map(jax.tree.leaves, found), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_a_loop_of_brainstate_has_the_gradient_of_brainstate() -> None:
    bs = pytest.importorskip("brainstate")
    layer, v = bs.nn.Linear(3, 3), bs.HiddenState(jnp.zeros((4, 3)))
    params = layer.states(bs.ParamState)

    def update(x: Any) -> Any:
        v.value = jnp.tanh(0.9 * v.value + layer(x))
        return v.value

    def loss() -> Any:
        v.value = jnp.zeros((4, 3))
        return jnp.mean(bs.transform.for_loop(update, BATCHES) ** 2)

    expected = bs.transform.grad(loss, params)()
    same(transform.jit(transform.grad(loss, states=params))(), expected)
