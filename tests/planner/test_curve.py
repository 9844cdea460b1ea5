"""`policies.plan`: what less memory costs."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from statetransform import State, policies


def loss(x: Any, ws: Any) -> Any:
    for w in ws:
        x = jnp.tanh(x @ w)
    return (x**2).sum()


ARGS = jnp.ones((64, 16)), [jnp.full((16, 16), 0.1)] * 8


def test_the_curve_goes_from_the_plain_program_down() -> None:
    curve = policies.plan(loss, *ARGS)
    assert 3 <= len(curve) <= 20
    assert curve[0].flops_over_plain == 1.0
    sizes = [point.planned_bytes for point in curve]
    costs = [point.flops_over_plain for point in curve]
    assert sizes == sorted(sizes, reverse=True)
    assert costs == sorted(costs)
    assert (curve.argument_bytes, curve.output_bytes) == (4 * (64 * 16 + 8 * 16 * 16), 4)
    assert curve.gradient_bytes == curve.argument_bytes


def test_compiled_bytes_come_on_request() -> None:
    assert all(point.compiled_bytes is None for point in policies.plan(loss, *ARGS))
    curve = policies.plan(loss, *ARGS, compile=True)
    assert all(isinstance(point.compiled_bytes, int) for point in curve)
    assert isinstance(curve.plain_bytes, int)


def test_abstract_arguments_will_do() -> None:
    abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), ARGS)
    assert policies.plan(loss, *abstract).to_dicts() == policies.plan(loss, *ARGS).to_dicts()


def test_states_are_arguments() -> None:
    w = State(jnp.full((16, 16), 0.1), name="w")

    def step(x: Any) -> Any:
        for _ in range(8):
            x = jnp.tanh(x @ w.value)
        w.value = w.value + 1
        return (x**2).sum()

    curve = policies.plan(step, ARGS[0])
    assert curve[-1].planned_bytes < 0.7 * curve[0].planned_bytes
    assert float(w.value[0, 0]) == pytest.approx(0.1)


@pytest.mark.parametrize("steps", [3, 8])
def test_the_parts_of_a_gradient_are_added_as_they_come(steps: int) -> None:
    def loss(w: Any, x: Any) -> Any:
        for _ in range(steps):
            x = jnp.tanh(x @ w)
        return (x**2).sum()

    w = jnp.ones((64, 64))
    assert policies.plan(loss, w, jnp.ones((8, 64)))[0].planned_bytes < 2 * w.nbytes


@pytest.mark.usefixtures("matplotlib")
def test_it_prints_as_a_table_and_draws_itself() -> None:
    curve = policies.plan(loss, *ARGS)
    lines = str(curve).splitlines()
    assert lines[0] == "loss: what less memory costs in one gradient step"
    assert lines[1].split() == ["planned", "FLOPs"]
    assert len(lines) == 4 + len(curve)
    axes = curve.plot()
    assert axes.get_xlabel() == "bytes alive at most (MiB)"


def test_what_cannot_be_differentiated_is_refused() -> None:
    with pytest.raises(TypeError, match="no gradient to plan"):
        policies.plan(lambda n: n + 1, 3)


def test_the_curve_of_the_gradient_that_is_taken() -> None:
    w, x = State(jnp.ones((16, 16))), jnp.ones((64, 16))
    loss = lambda x: (jnp.tanh(jnp.tanh(x @ w.value) @ w.value) ** 2).sum()
    of_state = policies.plan(loss, x, states=w)
    assert of_state.gradient_bytes == w.value.nbytes
    assert policies.plan(loss, x, argnums=0).gradient_bytes == x.nbytes
    assert policies.plan(loss, x).gradient_bytes == w.value.nbytes + x.nbytes


def test_where_a_way_down_ends_there_is_a_plan() -> None:
    """A plan that cannot be brought a whole step further is one of the curve where it ends."""

    def experts(layers: Any, x: Any) -> Any:
        for gate, up, down in layers:
            chosen = jax.nn.softmax(x @ gate)
            each = jnp.einsum("enk,ekd->end", jax.nn.relu(jnp.einsum("nd,edk->enk", x, up)), down)
            x = x + jnp.einsum("ne,end->nd", chosen, each)
        return (x**2).mean()

    array = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
    curve = policies.plan(experts, [(array(32, 4), array(4, 32, 64), array(4, 64, 32))] * 3, array(256, 32))
    assert min(point.flops_over_plain for point in curve if point.planned_bytes < 670_000) < 1.25  # 1.38 without
