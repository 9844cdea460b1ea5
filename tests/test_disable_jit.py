"""Under `jax.disable_jit`, bodies run in Python: they may decide on values, print, and be stepped through."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from statetransform import State, transform


@pytest.fixture
def n():
    return State(0, name="n")


@pytest.fixture
def u():
    return State(jnp.zeros(3), name="u")


@pytest.fixture
def body(n, u):
    def body(carry, x):
        if x > 1:
            n.value = n.value + 1
        u.value = u.value + x
        return carry + x, carry

    return body


def test_scan_decides_on_values(body, n, u):
    with jax.disable_jit():
        total, ys = transform.scan(body, 0.0, jnp.arange(4.0))
    assert total == 6 and n.value == 2
    np.testing.assert_array_equal(ys, [0, 0, 1, 3])
    np.testing.assert_array_equal(u.value, [6, 6, 6])


@pytest.mark.parametrize(
    ("loop", "calls"),
    [
        (lambda body: transform.for_loop(lambda x: body(0.0, x)[0], jnp.arange(2.0, 5.0)), 3),
        (lambda body: transform.map(lambda x: body(0.0, x)[0], jnp.arange(2.0, 4.0)), 2),
        (lambda body: transform.fori_loop(0, 3, lambda i, c: body(c, 2.0 + i)[0], 0.0), 3),
        (lambda body: transform.while_loop(lambda c: c < 3, lambda c: body(c, 2.0)[0], 0.0), 2),
        (lambda body: transform.cond(True, lambda: body(0.0, 2.0)[0], lambda: 0.0), 1),
        (lambda body: transform.switch(5, [lambda x: x, lambda x: body(x, 2.0)[0]], 1.0), 1),
        (lambda body: transform.jit(lambda: body(0.0, 2.0)[0])(), 1),
    ],
    ids=["for_loop", "map", "fori_loop", "while_loop", "cond", "switch", "jit"],
)
def test_every_staging_transform_runs_its_function_in_python(loop, calls, body, n):
    with jax.disable_jit():
        loop(body)
    assert n.value == calls


def test_a_compiled_function_runs_in_python_too(u):
    ran = []

    class Model:
        @transform.jit
        def step(self, x):
            ran.append(isinstance(x, jax.core.Tracer))
            u.value = u.value + x
            return u.value.sum()

    model = Model()
    model.step(1.0), model.step(1.0)
    with jax.disable_jit():
        assert model.step(1.0) == 9
    assert model.step(1.0) == 12
    assert ran == [True, False]


def test_a_condition_on_a_batched_value_is_staged_as_in_jax(u):
    loop = lambda x: transform.while_loop(lambda c: c < x, lambda c: c + 1 + u.value[0], 0.0)
    with jax.disable_jit():
        np.testing.assert_array_equal(jax.vmap(loop)(jnp.array([0.5, 2.5])), [1, 3])


def test_gradients(body, n):
    with jax.disable_jit():
        assert transform.grad(lambda x: transform.scan(body, x, jnp.arange(3.0))[0] ** 2)(1.0) == 8
    assert n.value == 1


def test_nothing_is_written_by_a_loop_that_raises(body, n, u):
    def broken(carry, x):
        body(carry, x)
        if x > 2:
            raise KeyError("here")
        return carry, None

    with jax.disable_jit(), pytest.raises(KeyError, match="here"):
        transform.scan(broken, 0.0, jnp.arange(4.0))
    assert n.value == 0 and u.value.sum() == 0


def test_who_asks_for_a_program_gets_one(u):
    with jax.disable_jit():
        compiled = transform.jit(lambda x: u.value * x).lower(2.0).compile()
    np.testing.assert_array_equal(compiled(2.0), [0, 0, 0])
