"""What cannot work is refused where it is written, in words that say what to write; states under `shard_map`."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import checkify
from jax.sharding import PartitionSpec as P

import statetransform as st
from statetransform import Param, State, inspect, policies, transform

X = jnp.float32(2.0)


def generator(x: Any) -> Iterator[Any]:
    yield x


async def coroutine(x: Any) -> Any:
    return x


async def stream(x: Any) -> AsyncIterator[Any]:
    yield x


DECORATORS = {
    name: getattr(transform, name)
    for name in (
        "checkpoint",
        "grad",
        "value_and_grad",
        "jacfwd",
        "jacrev",
        "hessian",
        "vmap",
        "named_call",
        "checkify",
    )
} | {"custom_vjp": transform.custom_vjp, "custom_jvp": transform.custom_jvp}


@pytest.mark.parametrize("name", DECORATORS)
@pytest.mark.parametrize(
    "fun",
    [generator, coroutine, stream, functools.partial(generator, 1)],
    ids=["generator", "coroutine", "stream", "partial"],
)
def test_functions_that_do_not_run_when_called_are_refused(name: str, fun: Any) -> None:
    with pytest.raises(TypeError, match=rf"{name}: .* gives an? (asynchronous )?(generator|coroutine)"):
        DECORATORS[name](fun)


def test_a_property_under_checkpoint_is_refused() -> None:
    with pytest.raises(TypeError, match="a property is not a function"):
        transform.checkpoint(property(lambda self: 1.0))


def test_a_static_name_that_is_no_argument_is_refused() -> None:
    with pytest.raises(ValueError, match=r"`static_argnames` has 'ordr', which is no argument of .*; .* x, order"):
        transform.checkpoint(lambda x, order: x, static_argnames="ordr")
    assert transform.checkpoint(lambda x, **options: x, static_argnames="order")(X, order=3) == 2.0


@pytest.mark.parametrize("name", ["grad", "value_and_grad", "jacfwd", "jacrev", "hessian"])
def test_the_gradient_for_a_state_of_integers_names_it(name: str) -> None:
    n = State({"a": jnp.int32(3), "b": X}, name="n")
    with pytest.raises(TypeError, match=rf"{name}: State 'n' \(created at .*\) holds .*int32"):
        getattr(transform, name)(lambda: n.value["b"] * 1.0, states=n)()
    assert transform.grad(lambda: n.value["b"] * 1.0, states=n, allow_int=True)()["b"] == 1.0


@pytest.mark.parametrize("factory", ["save_only_these_names", "save_any_names_but_these"])
def test_a_list_in_the_place_of_names_is_explained(factory: str) -> None:
    with pytest.raises(TypeError, match=rf"policies\.{factory}: a name is text.*Write {factory}\('a'\)"):
        getattr(policies, factory)(["a"])


def test_a_function_in_the_place_of_candidates_is_explained() -> None:
    with pytest.raises(TypeError, match="compare takes functions and policies by name"):
        inspect.compare(jnp.sin, X)  # type: ignore[arg-type]


def mesh(n: int) -> Any:
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
        step, mesh=mesh(2), in_specs=(P("i"),), out_specs=P("i"), state_specs={lambda s: s.name == "u": P("i")}
    )


@pytest.mark.parametrize("key", ["state", "predicate", "method"])
@pytest.mark.parametrize("wrap", [lambda f: f, transform.jit], ids=["eager", "jit"])
def test_a_partitioned_state_is_seen_in_parts_and_written_whole(wrap: Any, key: str) -> None:
    grid = Grid()
    specs = {"state": {grid.u: P("i")}, "predicate": {lambda s: s.name == "u": P("i")}}.get(key)
    options = {"mesh": mesh(2), "in_specs": P("i"), "out_specs": P("i"), "state_specs": specs}
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

    g = transform.shard_map(f, mesh=mesh(2), in_specs=P("i"), out_specs=P("i"))
    with pytest.raises(st.StateAxisError, match=r"(?s)State 'total' .* differs along the mesh axis 'i'.*psum"):
        g(jnp.ones(8))
    assert total.value == 0.0


@pytest.mark.parametrize("specs", [P("i"), 0, {State: "i"}, {State: 0}, [State]])
def test_specs_of_states_that_are_no_mapping_to_specs_are_a_type_error(specs: Any) -> None:
    with pytest.raises(TypeError, match="`state_specs`"):
        transform.shard_map(lambda x: x, mesh=mesh(1), in_specs=P(), out_specs=P(), state_specs=specs)


@pytest.mark.parametrize("wrap", ["shard_map", "checkify"])
def test_a_decision_on_a_traced_value_stays_the_error_that_it_is(wrap: str) -> None:
    f = lambda x: x if x.sum() > 0 else -x
    mapped = functools.partial(transform.shard_map, mesh=mesh(1), in_specs=P(), out_specs=P())
    with pytest.raises(jax.errors.TracerBoolConversionError):
        {"shard_map": mapped, "checkify": transform.checkify}[wrap](f)(jnp.ones(2))


def test_checkify_closes_over_its_arguments_as_in_jax() -> None:
    n = State(jnp.int32(0), name="n")

    def f(x: Any, mode: str) -> Any:
        n.value = n.value + 1
        checkify.check(jnp.asarray(x) > 0, "not positive")
        return x * n.value if mode == "fast" and x < 10 else x

    for i in range(1, 3):
        error, out = transform.checkify(f)(2.0, "fast")
        assert (error.get(), float(out), int(n.value)) == (None, 2.0 * i, i)
    assert "not positive" in transform.checkify(f)(-1.0, "slow")[0].get()
    assert transform.grad(lambda x: transform.checkify(jax.nn.relu)(x)[1])(2.0) == 1.0


class Like:
    shape, dtype = (3,), jnp.dtype("float32")


def test_what_has_a_shape_and_a_dtype_stands_for_an_array() -> None:
    w = State(X)
    assert transform.eval_shape(lambda x: w.value * x, Like()).shape == (3,)
    jaxpr, shape = transform.make_jaxpr(lambda x: w.value * x, return_shape=True)(Like())
    assert shape.shape == (3,) and len(jaxpr.jaxpr.invars) == 2
