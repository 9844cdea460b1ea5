"""`nnx.State`: values that go in and come out as in any pytree, and are shared with nobody."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import statetransform as st
from statetransform import transform

from .modules import HIJAX, REF, Net, X, arrays, nnx, same


def loss(params: Any) -> Any:
    return jnp.sum((X @ params["linear"]["kernel"][...] + params["linear"]["bias"][...]) ** 2)


GRADIENTS = {
    "grad": transform.grad,
    "jit of grad": lambda f: transform.jit(transform.grad(f)),
    "grad of jit": lambda f: transform.grad(transform.jit(f)),
    "grad of checkpoint": lambda f: transform.grad(transform.checkpoint(f)),
    "jit of grad of checkpoint": lambda f: transform.jit(transform.grad(transform.checkpoint(f))),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_with_respect_to_an_argument_are_a_state_of_the_same_variables(name: str) -> None:
    params, twin = nnx.state(Net(), nnx.Param), nnx.state(Net(), nnx.Param)
    gradient = GRADIENTS[name](loss)
    for _ in range(2):
        found = gradient(params)
        assert type(found) is nnx.State and type(found["linear"]["kernel"]) is nnx.Param
        same(found, jax.grad(loss)(twin))


@pytest.mark.parametrize("name", ["jit", "checkpoint", "grad"])
def test_what_the_function_writes_stays_with_it(name: str) -> None:
    params = nnx.state(Net(), nnx.Param)
    before = arrays(params)

    def body(params: Any) -> Any:
        kernel = params["linear"]["kernel"]
        kernel[...] = kernel[...] * 2
        return jnp.sum(kernel[...])

    for _ in range(3):
        getattr(transform, name)(body)(params)
        same(params, before)


@pytest.mark.parametrize("name", ["jit", "checkpoint"])
def test_what_comes_out_is_nobody_elses(name: str) -> None:
    model = Net()
    for fun in (lambda m: nnx.state(m, nnx.Param), lambda m: {"p": nnx.state(m, nnx.Param)}["p"]):
        found = getattr(transform, name)(fun)(model)
        found["linear"]["kernel"][...] = jnp.zeros((3, 5))
        assert jnp.any(model.linear.kernel[...] != 0)
    given = nnx.state(model, nnx.Param)
    found = getattr(transform, name)(lambda params: params)(given)
    found["linear"]["kernel"][...] = jnp.zeros((3, 5))
    assert jnp.any(given["linear"]["kernel"][...] != 0)


def test_a_module_that_is_merged_within_gives_what_the_hand_threaded_one_gives() -> None:
    def body(definition: Any, params: Any, rest: Any, x: Any) -> Any:
        model = nnx.merge(definition, params, rest)
        value = model(x)
        return value, nnx.state(model, nnx.Not(nnx.Param))

    ours, theirs = (nnx.split(Net(), nnx.Param, ...) for _ in range(2))
    definition = ours[0]
    fun = lambda *args: body(definition, *args)
    for wrap in (transform.jit, transform.checkpoint, lambda f: transform.jit(transform.checkpoint(f))):
        step = wrap(fun)
        for _ in range(2):
            value, rest = step(*ours[1:], X)
            expected, expected_rest = jax.jit(fun)(*theirs[1:], X)
            np.testing.assert_allclose(value, expected, rtol=1e-4)
            same(rest, expected_rest)
    both = jnp.stack([X, 2 * X])
    lanes = transform.vmap(lambda *args: fun(*args)[0], in_axes=(None, None, 0))(*ours[1:], both)
    expected = jax.vmap(lambda *args: fun(*args)[0], in_axes=(None, None, 0))(*theirs[1:], both)
    np.testing.assert_allclose(lanes, expected, rtol=1e-4)
    same(ours[1:], theirs[1:])


def test_a_state_is_the_carry_of_a_loop() -> None:
    params = nnx.state(Net(), nnx.Param)
    body = lambda p, x: (jax.tree.map(lambda a: a * x, p), jnp.sum(p["linear"]["kernel"][...]))
    xs = jnp.arange(1.0, 4.0)
    found, expected = transform.scan(body, params, xs), jax.lax.scan(body, params, xs)
    assert type(found[0]) is nnx.State
    same(found, expected)
    same(transform.jit(lambda p: transform.scan(body, p, xs, checkpoint=1))(params), expected)
    picked = transform.cond(jnp.array(True), lambda p: p, lambda p: jax.tree.map(jnp.zeros_like, p), params)
    same(picked, params)


def test_a_state_that_is_closed_over_is_read_afresh_and_written() -> None:
    params = nnx.state(Net(), nnx.Param)

    @transform.jit
    def double() -> Any:
        kernel = params["linear"]["kernel"]
        kernel[...] = kernel[...] * 2
        return jnp.sum(kernel[...])

    before = params["linear"]["kernel"][...]
    for i in range(1, 4):
        np.testing.assert_allclose(double(), jnp.sum(before) * 2**i, rtol=1e-5)
    params["linear"]["kernel"][...] = before
    np.testing.assert_allclose(double(), jnp.sum(before) * 2, rtol=1e-5)


def test_a_transform_inside_lifts_the_argument_of_the_one_around() -> None:
    def body(params: Any) -> Any:
        inner = transform.checkpoint(lambda: jnp.sum(jnp.sin(params["linear"]["kernel"][...])))
        value = inner()
        params["linear"]["kernel"][...] = params["linear"]["kernel"][...] * 2
        return value + inner()

    params = nnx.state(Net(), nnx.Param)
    kernel = params["linear"]["kernel"][...]
    expected = jnp.sum(jnp.sin(kernel)) + jnp.sum(jnp.sin(2 * kernel))
    np.testing.assert_allclose(transform.jit(body)(params), expected, rtol=1e-4)
    found = transform.jit(transform.grad(body))(params)
    np.testing.assert_allclose(found["linear"]["kernel"][...], jnp.cos(kernel) + 2 * jnp.cos(2 * kernel), rtol=1e-4)


has_options = pytest.mark.skipif(not hasattr(nnx, "var_defaults"), reason="this flax has no such variables")


@has_options
def test_a_variable_of_a_high_type_keeps_its_structure_inside() -> None:
    variable = nnx.Variable({"a": jnp.zeros(2)}, **HIJAX)

    def grow() -> None:
        variable.set_value({"a": jnp.ones(2), "b": jnp.ones(2)})

    for wrap in (transform.jit, transform.checkpoint):
        with pytest.raises(st.StateTraceError, match="another structure"):
            wrap(grow)()
    same(variable.get_value(), {"a": jnp.zeros(2)})
    handle = st.states([variable])["0"]
    with pytest.raises(ValueError, match="keeps the structure"):
        handle.value = {"b": 1.0}
    grow()
    same(transform.jit(lambda: variable.get_value())(), {"a": jnp.ones(2), "b": jnp.ones(2)})
    same(handle.value, {"a": jnp.ones(2), "b": jnp.ones(2)})


@has_options
def test_a_layer_with_a_ref_of_outside_in_it_writes_that_ref() -> None:
    outer = nnx.Variable(jnp.zeros(3), **REF)

    @transform.jit
    def write(x: Any) -> None:
        graph, state = nnx.split([outer])
        nnx.merge(graph, state)[0].set_value(x)

    write(jnp.ones(3))
    same(outer[...], jnp.ones(3))
