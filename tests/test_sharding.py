"""Shardings over eight devices: states keep theirs, and `shard_map` sees the pieces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from statetransform import Param, State, transform

N = 8


@pytest.fixture
def mesh() -> jax.sharding.Mesh:
    if len(jax.devices()) < N:
        pytest.skip("needs eight devices")
    return jax.sharding.Mesh(np.array(jax.devices()[:N]), ("i",))


@pytest.fixture
def split(mesh: jax.sharding.Mesh) -> jax.sharding.NamedSharding:
    return jax.sharding.NamedSharding(mesh, jax.P("i"))


@pytest.fixture
def u(split: jax.sharding.NamedSharding) -> State:
    return State(jax.device_put(jnp.arange(16.0), split), name="u")


def grow(u: State) -> Callable[[Any], Any]:
    def step(x: Any) -> Any:
        u.value = jnp.sin(u.value) + x
        return x + u.value.mean()

    return step


@pytest.mark.parametrize(
    ("ours", "by_hand"),
    [
        (lambda f, x: f(x), lambda f, u, x: f(u, x)),
        (lambda f, x: transform.jit(f)(x), lambda f, u, x: jax.jit(f)(u, x)),
        (lambda f, x: transform.checkpoint(f)(x), lambda f, u, x: jax.checkpoint(f)(u, x)),
        (lambda f, x: transform.jit(transform.grad(f))(x), None),
        (
            lambda f, x: transform.scan(lambda c, _: (f(c), None), x, None, 3)[0],
            lambda f, u, x: jax.lax.scan(lambda c, _: (f(*c), None), (u, x), None, 3)[0],
        ),
        (
            lambda f, x: transform.jit(lambda x: transform.fori_loop(0, 3, lambda i, c: f(c), x))(x),
            lambda f, u, x: jax.jit(lambda c: jax.lax.fori_loop(0, 3, lambda i, c: f(*c), c))((u, x)),
        ),
        (
            lambda f, x: transform.jit(lambda x: transform.cond(x > 0, f, lambda x: x, x))(x),
            lambda f, u, x: jax.jit(lambda u, x: jax.lax.cond(x > 0, f, lambda u, x: (u, x), u, x))(u, x),
        ),
    ],
    ids=["plain", "jit", "checkpoint", "jit_grad", "scan", "fori_loop", "cond"],
)
def test_a_state_keeps_its_sharding(ours: Any, by_hand: Any, u: State, split: Any) -> None:
    start = u.value
    ours(grow(u), jnp.float32(0.5))
    assert u.value.sharding.is_equivalent_to(split, 1)
    assert len(u.value.addressable_shards) == N and u.value.addressable_shards[0].data.shape == (2,)
    pure = lambda u, x: ((v := jnp.sin(u) + x), x + v.mean())
    expected = pure(start, 0.5)[0] if by_hand is None else by_hand(pure, start, jnp.float32(0.5))[0]
    np.testing.assert_allclose(u.value, expected, rtol=1e-6)


def test_shardings_of_arguments_and_output_do_not_count_the_states(u: State, split: Any, mesh: Any) -> None:
    whole = jax.sharding.NamedSharding(mesh, jax.P())

    @transform.jit(in_shardings=(split, whole), out_shardings=split)
    def step(x: Any, y: Any) -> Any:
        u.value = u.value + x
        return x * y

    out = step(jnp.arange(16.0), jnp.float32(2))
    assert out.sharding.is_equivalent_to(split, 1) and u.value.sharding.is_equivalent_to(split, 1)
    np.testing.assert_array_equal(out, 2 * np.arange(16.0))
    np.testing.assert_array_equal(u.value, 2 * np.arange(16.0))


def test_shard_map_reads_and_writes(u: State, mesh: Any, split: Any) -> None:
    scale, total = State(2.0, name="scale"), State(jnp.float32(0), name="total")

    def piece(x: Any) -> Any:
        total.value = total.value + jax.lax.psum(x.sum(), "i")
        return x * scale.value

    mapped = transform.shard_map(piece, mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P("i"))
    by_hand = jax.shard_map(
        lambda x: (x * 2.0, jax.lax.psum(x.sum(), "i")), mesh=mesh, in_specs=jax.P("i"), out_specs=(jax.P("i"), jax.P())
    )
    expected, added = by_hand(u.value)
    for calls in (1, 2):
        out = transform.jit(mapped)(u.value) if calls == 2 else mapped(u.value)
        np.testing.assert_array_equal(out, expected)
        assert total.value == calls * added
    assert out.sharding.is_equivalent_to(split, 1)


@pytest.mark.parametrize("axis_type", ["Auto", "Explicit"])
@pytest.mark.parametrize("around", [lambda f: f, transform.jit, lambda f: transform.jit(transform.checkpoint(f))])
def test_a_state_that_all_devices_share_is_read_and_written_by_shard_map_again_and_again(
    around: Any, axis_type: str
) -> None:
    mesh = jax.make_mesh((N,), ("i",), axis_types=(getattr(jax.sharding.AxisType, axis_type),))
    x = jax.device_put(jnp.arange(16.0), jax.sharding.NamedSharding(mesh, P("i")))
    total, scale, runs = State(jnp.float32(0), name="total"), State({"by": 2.0}, name="scale"), []

    @transform.jit
    def inner(x: Any) -> Any:
        runs.append(1)
        total.value = total.value + jax.lax.psum(x.sum(), "i")
        return x * scale.value["by"]

    step = around(transform.shard_map(lambda x: inner(x), mesh=mesh, in_specs=P("i"), out_specs=P("i")))
    for n in range(1, 4):
        out = step(x)
        np.testing.assert_array_equal(out, 2.0 * np.arange(16.0))
        assert total.value == n * 120.0
        assert out.sharding.is_equivalent_to(x.sharding, 1)
    assert len(runs) == 1  # also where the sharding of the state has become another, as in JAX
    with jax.set_mesh(mesh):  # JAX, too, asks for it in an eager gradient
        by_state = transform.grad(lambda x: (step(x) ** 2).sum(), states=scale)(x)
    assert by_state["by"] == 4.0 * (np.arange(16.0) ** 2).sum()


@pytest.mark.parametrize("options", [{"in_specs": P("i")}, {}], ids=["specs", "none"])
def test_a_state_in_parts_that_shard_map_is_not_told_of_is_named(options: Any) -> None:
    mesh = jax.make_mesh((N,), ("i",), axis_types=(jax.sharding.AxisType.Explicit,))
    parts = jax.sharding.NamedSharding(mesh, P("i"))
    u, x = State(jax.device_put(jnp.arange(16.0), parts), name="u"), jax.device_put(jnp.ones(16), parts)
    f = transform.shard_map(lambda x: x * u.value, mesh=mesh, out_specs=P("i"), **options)
    with pytest.raises(ValueError, match=r"value of State 'u' .* lies in parts, P\('i',?\), .*`state_specs={state: P"):
        f(x)
    told = transform.shard_map(lambda x: x * u.value, mesh=mesh, out_specs=P("i"), state_specs={u: P("i")}, **options)
    np.testing.assert_array_equal(told(x), np.arange(16.0))


def test_a_loop_with_few_carries_keeps_the_sharding_of_its_gradient(u: State, split: Any) -> None:
    start, found = u.value, []

    def loss(checkpoint: Any) -> Any:
        transform.fori_loop(0, 9, lambda i, c: grow(u)(c), 0.1, checkpoint=checkpoint)
        return (u.value**2).sum()

    for checkpoint in (None, 2):
        u.value = start
        found.append(transform.jit(transform.grad(lambda k=checkpoint: loss(k), states=u))())
        assert u.value.sharding.is_equivalent_to(split, 1)
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5)


@pytest.mark.parametrize("axis_type", ["Auto", "Explicit"])
def test_a_state_gets_the_sharding_that_jit_is_told(axis_type: str) -> None:
    mesh = jax.make_mesh((8,), ("i",), axis_types=(getattr(jax.sharding.AxisType, axis_type),))
    over = jax.sharding.NamedSharding(mesh, P("i"))
    u, count = Param(jnp.arange(8.0), name="u"), State(0, name="count")

    @transform.jit(state_shardings={Param: over})
    def step(x: Any) -> Any:
        u.value = u.value + x
        count.value = count.value + 1
        return x

    for n in range(1, 5):
        with jax.set_mesh(mesh):
            step(1.0)
        np.testing.assert_array_equal(u.value, np.arange(8.0) + n)
        assert u.value.sharding.is_equivalent_to(over, 1) and count.value == n


def test_what_is_no_sharding_of_states_is_refused() -> None:
    with pytest.raises(TypeError, match="`state_shardings` says for each state"):
        transform.jit(lambda x: x, state_shardings=0)
    with pytest.raises(TypeError, match=r"needs a `jax\.sharding\.Sharding`, not 0"):
        transform.jit(lambda x: x, state_shardings={State: 0})
