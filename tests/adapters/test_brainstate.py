"""Maps, layers and random numbers of brainstate, alone, beside ours and within them.

What maps there stores values before it says that it runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import statetransform as st
from statetransform import StateTraceError, transform

bs = pytest.importorskip("brainstate")

N = jnp.array([0.3, 0.5, 0.7])
XS = jnp.arange(12.0).reshape(4, 3) / 12


class Net:
    def __init__(self) -> None:
        self.w, self.lanes, self.one = bs.ParamState(N), bs.ShortTermState(jnp.zeros((4, 3))), bs.State(jnp.zeros(()))

    def lane(self, x: Any) -> Any:
        self.lanes.value = self.lanes.value + self.w.value * x
        return self.lanes.value.sum()

    def step(self, x: Any) -> Any:
        self.one.value = self.one.value + (self.w.value * x).sum()
        return self.one.value


def by_state(net: Net) -> Any:
    return bs.transform.vmap(net.lane, in_states={0: net.lanes}, out_states={0: net.lanes})(XS)


def by_filter(net: Net) -> Any:
    lanes = {0: bs.util.filter.OfType(bs.ShortTermState)}
    return bs.transform.vmap2(net.lane, state_in_axes=lanes, state_out_axes=lanes)(XS)


def on_a_mesh(net: Net) -> Any:
    i = jax.sharding.PartitionSpec("i")
    mapped = bs.transform.shard_map(
        lambda x: x * net.w.value, mesh=jax.make_mesh((1,), ("i",)), in_specs=i, out_specs=i
    )
    return mapped(XS).sum(1)


def drawn(net: Net) -> Any:
    del net
    bs.random.seed(0)
    return bs.transform.vmap(lambda x: x.sum() + bs.random.normal())(XS)


#: What brainstate is asked for, and the states of a fresh `Net` afterwards.
MAPS: dict[str, tuple[Callable[[Net], Any], Any, Any]] = {
    "vmap": (by_state, N * XS, 0),
    "vmap2": (by_filter, N * XS, 0),
    "random": (drawn, 0, 0),
    "shard_map": (on_a_mesh, 0, 0),
    "checkify": (lambda net: bs.transform.checkify(net.step)(XS[0])[1], 0, (N * XS[0]).sum()),
}  # fmt: skip


@pytest.mark.parametrize("around", [lambda f: f, transform.jit], ids=["alone", "in ours"])
@pytest.mark.parametrize("name", MAPS)
def test_as_without_this_package(name: str, around: Any) -> None:
    run, lanes, one = MAPS[name]
    net = Net()
    transform.jit(lambda: net.one.value)()
    found = around(lambda: run(net))()
    if name == "random":
        assert np.unique(found).size == 4
        np.testing.assert_array_equal(found, drawn(net))
    else:
        np.testing.assert_allclose(found, (N * XS).sum(1) if name != "checkify" else one, rtol=1e-6)
    np.testing.assert_allclose(net.lanes.value, jnp.broadcast_to(lanes, (4, 3)), rtol=1e-6)
    np.testing.assert_allclose(net.one.value, one, rtol=1e-6)
    np.testing.assert_array_equal(net.w.value, N)


@pytest.mark.parametrize("around", [lambda f: f, transform.jit], ids=["alone", "in ours"])
@pytest.mark.parametrize("value", [1.0, None], ids=["a constant", "the argument"])
def test_a_write_in_a_raw_transform_is_still_refused(value: float | None, around: Any) -> None:
    net = Net()
    transform.jit(lambda: net.one.value)()

    def write(x: Any) -> Any:
        net.one.value = x if value is None else value
        return x

    kind = (StateTraceError, bs.TraceContextError) if hasattr(bs, "TraceContextError") else Exception
    with pytest.raises(kind, match=r"raw JAX transform"):
        around(lambda: jax.vmap(write)(jnp.ones(2)))()
    assert net.one.value == 0


def test_batch_elements_of_vmap_draw_their_own_numbers() -> None:
    bs.random.seed(0)
    draw = lambda x: x + bs.random.normal()
    f = transform.jit(transform.vmap(draw))
    assert np.unique([transform.vmap(draw)(jnp.zeros(3)), f(jnp.zeros(3)), f(jnp.zeros(3))]).size == 9
    assert np.unique(transform.vmap(draw, split_rngs=False)(jnp.zeros(3))).size == 1
    own = bs.random.RandomState(0)
    assert np.unique(transform.vmap(lambda x: x + own.normal(), state_axes={own: None})(jnp.zeros(3))).size == 1


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
