"""Shardings over several devices: states keep theirs, and `shard_map` sees the pieces."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import statetransform as st
from statetransform import Param, State, transform

from .tables import ONCE

N = 8


@pytest.fixture
def mesh() -> jax.sharding.Mesh:
    return jax.make_mesh((N,), ("i",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices("cpu"))


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


@pytest.mark.parametrize("name", ONCE)
def test_a_state_keeps_its_sharding(name: str, u: State, split: Any) -> None:
    expected = np.sin(u.value) + 0.5
    ONCE[name](grow(u))(jnp.float32(0.5))
    assert u.value.sharding.is_equivalent_to(split, 1)
    assert len(u.value.addressable_shards) == N and u.value.addressable_shards[0].data.shape == (2,)
    np.testing.assert_allclose(u.value, expected, rtol=1e-5)


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


@pytest.mark.parametrize("around", [lambda f: f, lambda f: transform.jit(f)], ids=["outermost", "in jit"])
def test_shardings_for_other_arguments_than_those_given_are_refused(u: State, split: Any, around: Any) -> None:
    x, f, g = jnp.arange(16.0), lambda a, b=1.0: a * b, lambda a, n, b: a * n + b
    for fun, args, options in (
        *[(f, (x, x), {"in_shardings": given}) for given in ((split,), (split,) * 3, [split], (), (None,) * 3)],
        (f, (x,), {"in_shardings": (split, split)}),
        (f, (x, x), {"in_shardings": {"a": split}}),
        (lambda *several: several[0], (x, x), {"in_shardings": (split,)}),
        *[(g, (x, 2, x), {"in_shardings": (split,) * n, **static})
          for n in (1, 3) for static in ({"static_argnums": 1}, {"static_argnames": "n"})],
    ):  # fmt: skip
        with pytest.raises((ValueError, AssertionError)):
            jax.jit(fun, **options)(*args)
        with pytest.raises(ValueError, match=r"jit: `in_shardings` (has|must be)"):
            around(lambda x, fun=fun, args=args, options=options: transform.jit(fun, **options)(*args))(x)
    for given in (split, [split, split], (split, None), (None, split)):
        np.testing.assert_array_equal(transform.jit(f, in_shardings=given)(x, x), x * x)
    two = transform.jit(g, in_shardings=(split, split), static_argnums=1)
    np.testing.assert_array_equal(two(x, 2, x), 3 * x)


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
    with pytest.raises(
        ValueError, match=r"value of State 'u' .* is partitioned as P\('i',?\), .*`state_specs={state: P"
    ):
        f(x)
    told = transform.shard_map(lambda x: x * u.value, mesh=mesh, out_specs=P("i"), state_specs={u: P("i")}, **options)
    np.testing.assert_array_equal(told(x), np.arange(16.0))


@pytest.mark.parametrize("is_spec", [False, True], ids=["sharding", "specification"])
@pytest.mark.parametrize("axis_type", ["Auto", "Explicit"])
def test_a_state_gets_the_sharding_that_jit_is_told(axis_type: str, is_spec: bool) -> None:
    mesh = jax.make_mesh((8,), ("i",), axis_types=(getattr(jax.sharding.AxisType, axis_type),))
    over = jax.sharding.NamedSharding(mesh, P("i"))
    u, count = Param(jnp.arange(8.0), name="u"), State(0, name="count")

    @transform.jit(state_shardings={Param: P("i") if is_spec else over})
    def step(x: Any) -> Any:
        u.value = u.value + x
        count.value = count.value + 1
        return x

    for n in range(1, 5):
        with jax.set_mesh(mesh):
            step(1.0)
        np.testing.assert_array_equal(u.value, np.arange(8.0) + n)
        assert u.value.sharding.is_equivalent_to(over, 1) and count.value == n


def test_a_state_that_is_made_inside_gets_the_sharding_that_jit_is_told(split: jax.sharding.NamedSharding) -> None:
    make = transform.jit(lambda x: (Param(x + 1), State(x)), state_shardings={Param: split})
    for _ in range(3):
        param, _ = make(jnp.arange(16.0))
        np.testing.assert_array_equal(param.value, np.arange(16.0) + 1)
        assert param.value.sharding.is_equivalent_to(split, 1)


def test_what_is_no_sharding_of_states_is_refused() -> None:
    with pytest.raises(TypeError, match="`state_shardings` is a mapping"):
        transform.jit(lambda x: x, state_shardings=0)
    with pytest.raises(TypeError, match=r"needs a `jax\.sharding\.Sharding` or a `jax\.P`, not 0"):
        transform.jit(lambda x: x, state_shardings={State: 0})


@pytest.mark.parametrize(("spec", "size"), [(P("i"), 9), (P(None, "i"), 8), (P("j"), 8)], ids=str)
def test_a_sharding_that_the_value_of_a_state_cannot_have_is_refused_by_name(spec: Any, size: int) -> None:
    mesh, u = mesh_of(8), State(jnp.arange(float(size)), name="u")
    said = (
        r": `state_{}s` gives State 'u' \(created at .*\) the sharding .*but its value is float32\[{}\]\. Name axes of"
    )
    with jax.set_mesh(mesh), pytest.raises(ValueError, match="jit" + said.format("sharding", size)):
        transform.jit(lambda: setattr(u, "value", u.value + 1), state_shardings={u: spec})()
    mapped = transform.shard_map(
        lambda x: x * u.value.sum(), mesh=mesh, in_specs=P("i"), out_specs=P("i"), state_specs={u: spec}
    )
    with pytest.raises(ValueError, match="shard_map" + said.format("spec", size)):
        mapped(jnp.ones(8))


def mesh_of(n: int) -> Any:
    return jax.make_mesh((n,), ("i",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:n])


class Grid:
    def __init__(self) -> None:
        self.u = State(jnp.arange(8.0), name="u")
        self.w = Param(jnp.float32(2), name="w")
        self.total = State(jnp.float32(0), name="total")

    def step(self, x: Any) -> Any:
        assert self.u.value.shape == (4,) and self.w.value.shape == ()
        self.u.value = self.u.value * self.w.value + x
        self.total.value = self.total.value + jax.lax.psum(self.u.value.sum(), "i")
        return self.u.value * 1.0

    mapped = transform.shard_map(
        step, mesh=mesh_of(2), in_specs=(P("i"),), out_specs=P("i"), state_specs={lambda s: s.name == "u": P("i")}
    )


@pytest.mark.parametrize("key", ["state", "predicate", "method"])
@pytest.mark.parametrize("wrap", [lambda f: f, transform.jit], ids=["eager", "jit"])
def test_a_partitioned_state_is_seen_in_parts_and_written_whole(wrap: Any, key: str) -> None:
    grid = Grid()
    specs = {"state": {grid.u: P("i")}, "predicate": {lambda s: s.name == "u": P("i")}}.get(key)
    options = {"mesh": mesh_of(2), "in_specs": P("i"), "out_specs": P("i"), "state_specs": specs}
    f = wrap(grid.mapped if key == "method" else transform.shard_map(grid.step, **options))
    u, total = jnp.arange(8.0), jnp.float32(0)
    for _ in range(2):
        u = u * 2 + 1
        total = total + u.sum()
        assert f(jnp.ones(8)).tolist() == u.tolist() == grid.u.value.tolist()
        assert grid.total.value == total
    if key == "state":
        by_u, by_w = transform.grad(lambda x: f(x).sum(), states=(grid.u, grid.w))(jnp.ones(8))
        assert by_u.tolist() == [2.0] * 8 and by_w == u.sum()


def test_a_write_that_differs_between_devices_names_the_state() -> None:
    total = State(jnp.float32(0), name="total")

    def f(x: Any) -> Any:
        total.value = x.sum()
        return x

    g = transform.shard_map(f, mesh=mesh_of(2), in_specs=P("i"), out_specs=P("i"))
    with pytest.raises(st.StateAxisError, match=r"(?s)State 'total' .* differs along the mesh axis 'i'.*psum"):
        g(jnp.ones(8))
    assert total.value == 0.0


def test_a_new_state_that_differs_between_devices_is_named() -> None:
    holder = SimpleNamespace()

    def f(x: Any, value: Any) -> Any:
        holder.made = State(value, name="made")
        return x

    options = {"mesh": mesh_of(2), "in_specs": (P("i"), P()), "out_specs": P("i")}
    with pytest.raises(st.StateAxisError, match=r"(?s)'made' \(created at .* differs along the mesh axis 'i'.*Return"):
        transform.shard_map(lambda x, _: f(x, x), **options)(jnp.ones(8), 0.0)
    transform.shard_map(f, **options)(jnp.ones(8), jnp.arange(3.0))
    assert holder.made.value.tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize("specs", [P("i"), 0, {State: "i"}, {State: 0}, [State]])
def test_specs_of_states_that_are_no_mapping_to_specs_are_a_type_error(specs: Any) -> None:
    with pytest.raises(TypeError, match="`state_specs`"):
        transform.shard_map(lambda x: x, mesh=mesh_of(1), in_specs=P(), out_specs=P(), state_specs=specs)


def test_a_read_in_a_raw_loop_within_shard_map(mesh: Any) -> None:
    w, v = State(jnp.float32(2)), State(jnp.float32(3))

    def f(x: Any) -> Any:
        return jax.lax.scan(lambda c, _: (c + v.value, None), w.value * x, None, length=3)[0]

    mapped = transform.shard_map(f, mesh=mesh, in_specs=P(), out_specs=P())
    assert [float(mapped(jnp.float32(1))) for _ in range(2)] == [11.0, 11.0]


@pytest.mark.parametrize("specs", [None, {State: P("i")}])
def test_a_static_state_is_read_and_written_by_shard_map(specs: Any) -> None:
    u, mode = State(jnp.zeros(2), name="u"), State("first", static=True, name="mode")

    def f(x: Any) -> Any:
        u.value = u.value + (x if mode.value == "first" else 10 * x)
        mode.value = "later"
        return x

    mapped = transform.shard_map(f, mesh=mesh_of(2), in_specs=P(), out_specs=P(), state_specs=specs)
    for total in (1.0, 11.0, 21.0):
        mapped(1.0)
        assert (u.value.tolist(), mode.value) == ([total] * 2, "later")


def _loops_and_branches(s: State, x: Any) -> dict[str, Callable[[], Any]]:
    def add(*args: Any) -> Any:
        s.value = s.value + x
        return args[0] + 1 if args else None

    return {
        "for_loop": lambda: transform.for_loop(add, length=3),
        "for_loop, checkpoint": lambda: transform.for_loop(add, length=3, checkpoint=2),
        "fori_loop": lambda: transform.fori_loop(0, 3, lambda i, c: add(c), 0),
        "while_loop": lambda: transform.while_loop(lambda i: i < 3, add, 0),
        "cond": lambda: transform.cond(True, add, lambda: None),
        "carry": lambda: transform.scan(lambda c, _: (c + x, None), jnp.zeros(x.shape), length=3),
        "output": lambda: transform.cond(True, lambda: jnp.zeros(x.shape), lambda: x),
    }


@pytest.mark.parametrize("how", ["it varies", "another sharding"])
@pytest.mark.parametrize("name", _loops_and_branches(State(0.0), 0.0))
def test_a_value_that_comes_to_vary_over_the_devices_or_gets_another_sharding_is_named(name: str, how: str) -> None:
    named = {"carry": "the carry", "output": "the branches"}.get(name, "State 's' .created at")
    explicit = jax.make_mesh((N,), ("i",), axis_types=(jax.sharding.AxisType.Explicit,), devices=jax.devices("cpu"))
    with jax.set_mesh(explicit):
        x = jax.device_put(jnp.ones(8), P("i"))
        if how == "it varies":
            s, said = State(jnp.zeros(()), name="s"), r"float32\[\]{V:i}.*pcast\(.*, \('i',\), to='varying'\)"
            whole = lambda x: (_loops_and_branches(s, x.sum())[name](), x)[1]
            run = lambda: transform.shard_map(whole, in_specs=P("i"), out_specs=P("i"))(x)
        else:
            s, said = State(jnp.zeros(8), name="s"), r"float32\[8@i\].*reshard\(x, "
            run = lambda: _loops_and_branches(s, x)[name]()
        with pytest.raises(TypeError, match=f"(?s){named}.*{said}"):
            run()
    assert not s.value.any()


@pytest.mark.parametrize("wrap", [lambda f: f, transform.jit], ids=["eager", "jit"])
def test_lanes_are_spread_over_the_devices_of_an_explicit_mesh(wrap: Any) -> None:
    mesh = jax.make_mesh((N,), ("i",), axis_types=(jax.sharding.AxisType.Explicit,), devices=jax.devices("cpu"))
    with jax.set_mesh(mesh):
        x = jax.device_put(jnp.arange(float(N)), P("i"))
        u = State(2 * x, name="u")

        def f(x: Any) -> Any:
            u.value = u.value + x
            return x

        out = wrap(transform.vmap(f, state_axes={u: 0}))(x)
        assert jax.typeof(out) == jax.typeof(u.value) == jax.typeof(jax.vmap(lambda x: 2 * x)(x))
        assert u.value.tolist() == [3.0 * i for i in range(N)]
