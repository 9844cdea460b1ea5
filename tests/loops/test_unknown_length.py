"""Reverse mode through loops whose length is not known in advance."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import statetransform as st
from statetransform import transform

# Which carry gives way is decided on the device and shows in no report: it is compared with the optimum.
from statetransform._memory.loops import unknown_length
from statetransform._memory.loops.stack import Stack


def loop(x: Any, n: Any, checkpoint: Any, max_steps: int | None = None) -> Any:
    body = lambda c: (c[0] + 1, jnp.sin(c[1]) * 1.01 + 0.1 * x)
    return transform.while_loop(lambda c: c[0] < n, body, (0, x), max_steps=max_steps, checkpoint=checkpoint)[1]


def reference(x: Any, n: int) -> Any:
    return jax.lax.scan(lambda c, _: (jnp.sin(c) * 1.01 + 0.1 * x, None), x, None, n)[0]


def masked(x: Any, n: Any) -> Any:
    """The same for a number of steps that differs from lane to lane."""
    step = lambda c, i: (jnp.where(i < n, jnp.sin(c) * 1.01 + 0.1 * x, c), None)
    return jax.lax.scan(step, x, jnp.arange(12))[0]


@pytest.mark.parametrize(("k", "max_steps"), [(0, None), (4, None), (1, 40), ("step", 40)])
def test_gradients_for_every_length_from_one_program(k: Any, max_steps: int | None) -> None:
    gradient = jax.jit(jax.value_and_grad(lambda x, n: loop(x, n, k, max_steps)))
    for n in (0, 1, 2, 3, 9, 33):
        np.testing.assert_allclose(gradient(0.3, n), jax.value_and_grad(reference)(0.3, n), rtol=1e-5)


def test_forward_mode_and_forward_over_reverse_without_a_bound() -> None:
    f, r = (lambda x: loop(x, 7, 2)), (lambda x: reference(x, 7))
    np.testing.assert_allclose(jax.jvp(f, (0.3,), (1.0,)), jax.jvp(r, (0.3,), (1.0,)), rtol=1e-5)
    np.testing.assert_allclose(jax.jit(jax.hessian(f))(0.3), jax.hessian(r)(0.3), rtol=1e-4)


def test_reverse_over_reverse_with_a_bound() -> None:
    f, r = (lambda x: loop(x, 7, 2, 10)), (lambda x: reference(x, 7))
    np.testing.assert_allclose(jax.jit(jax.jacrev(jax.jacrev(f)))(0.3), jax.grad(jax.grad(r))(0.3), rtol=1e-4)


@pytest.mark.parametrize("k", [0, 2, 30])
def test_lanes_within_lanes_and_higher_derivatives_of_them(k: int) -> None:
    x, n = jnp.linspace(0.1, 0.6, 6).reshape(2, 3), jnp.array([[0, 3, 7], [1, 12, 2]])
    lanes = lambda f: jax.jit(jax.vmap(jax.vmap(f)))(x, n)
    f = lambda x, n: loop(x, n, k)
    np.testing.assert_allclose(lanes(f), lanes(masked), rtol=1e-5)
    expected = lanes(jax.grad(masked))
    np.testing.assert_allclose(lanes(jax.grad(f)), expected, rtol=1e-5)
    of_all = lambda x: jax.vmap(jax.vmap(f))(x, n).sum()
    np.testing.assert_allclose(jax.grad(of_all)(x), expected, rtol=1e-5)
    if k == 2:
        np.testing.assert_allclose(lanes(jax.hessian(f)), lanes(jax.hessian(masked)), rtol=1e-3, atol=1e-5)


def test_a_lane_that_is_done_does_not_see_what_the_others_run_into() -> None:
    """A step that gives infinities on a carry that has left the loop does not reach that lane's gradient."""
    body = lambda c: (c[0] + 1, jnp.sqrt(c[1] - 1.0))
    f = lambda x, n: transform.while_loop(lambda c: c[0] < n, body, (0, x), checkpoint=2)[1]
    x, n = jnp.array([1.0, 900.0]), jnp.array([0, 3])
    found = jax.vmap(jax.grad(f))(x, n)
    np.testing.assert_allclose(found, [1.0, jax.grad(f)(900.0, 3)], rtol=1e-6)


@pytest.mark.parametrize(
    "twice",
    [
        lambda f: jax.grad(jax.grad(f)),
        lambda f: jax.jit(jax.jacrev(jax.grad(f))),
        lambda f: jax.grad(lambda x: jax.jvp(f, (x,), (1.0,))[1]),
        lambda f: lambda x: jax.vmap(jax.grad(lambda x: jax.grad(f)(x) ** 2))(jnp.array([x])),
    ],
    ids=["grad_grad", "jit_jacrev_grad", "grad_jvp", "vmap"],
)
def test_reverse_over_a_derivative_without_a_bound_says_what_to_write(twice: Any) -> None:
    with pytest.raises(ValueError) as info:
        twice(lambda x: transform.while_loop(lambda x: x.sum() < 2, lambda x: x * (x + 1.5), x, checkpoint=2).sum())(
            0.3
        )
    assert "while_loop: reverse mode over another derivative" in str(info.value)
    assert "`max_steps=1000`" in str(info.value)


def test_a_bound_ends_the_loop() -> None:
    for checkpoint in (None, 3):
        np.testing.assert_allclose(loop(0.3, 100, checkpoint, 5), reference(0.3, 5), rtol=1e-6)
    np.testing.assert_allclose(jax.grad(loop)(0.3, 100, 3, 5), jax.grad(reference)(0.3, 5), rtol=1e-5)
    assert transform.while_loop(lambda x: True, lambda x: x + 1, 0, max_steps=0) == 0


@pytest.mark.parametrize(("bound", "error"), [(-1, ValueError), (True, TypeError), (2.5, TypeError), ("7", TypeError)])
def test_a_bound_is_a_number_of_steps(bound: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=f"while_loop: `max_steps` must be (a number of steps|0 or more), not {bound!r}"):
        loop(0.3, 5, 3, bound)


def test_what_needs_the_length_is_refused() -> None:
    for name in ("step", "sqrt"):
        with pytest.raises(ValueError, match=f"checkpoint='{name}' needs a number of steps that is known.*max_steps"):
            loop(0.3, 5, name)
    np.testing.assert_allclose(jax.grad(loop)(0.3, 5, "sqrt", 30), jax.grad(reference)(0.3, 5), rtol=1e-5)


def placements(k: int, n: int) -> list[list[int]]:
    """The stored positions before each step, from the program's own rule."""
    place = jax.jit(unknown_length.placer(k))
    found = [list(range(i)) for i in range(1, min(n, k + 1) + 1)]  # as long as there is room, every carry is stored
    at = jnp.arange(k + 2, dtype=jnp.int32)
    stack, until = Stack([], at, at, jnp.int32(k)), k + 1
    for i in range(k + 1, n + 1):
        if i > k + 1:
            found.append([int(p) for p in stack.at[: k + 1]])
        if i >= until:
            stack, _ = place(stack, jnp.int32(i))
            until = i + max(i // (unknown_length.SHARE * (k + 1)), 1)
    return found


@functools.cache
def taken_again(n: int, k: int) -> int:
    """Steps that the schedule takes before the last one."""
    return st.schedule(n, k).evaluations - 1 - n


def evaluations(positions: list[int], n: int, k: int) -> int:
    """Of one gradient, when the forward sweep has left these carries."""
    ends = [*positions[1:], n]
    again = [taken_again(end - at, k - j) for j, (at, end) in enumerate(zip(positions, ends, strict=True))]
    return n + sum(again) + n


@pytest.mark.parametrize("k", [5, 10, 20, 32])
def test_evaluations_are_within_a_tenth_of_those_for_a_known_length(k: int) -> None:
    """Property: for every length, at most 1.10 times the evaluations of the schedule that knows it."""
    for n, positions in enumerate(placements(k, 700), start=1):
        assert evaluations(positions, n, k) <= 1.1 * st.schedule(n, k).evaluations, n


@pytest.mark.parametrize(("k", "n"), [(5, 5), (5, 61), (10, 253), (3, 200)])
def test_steps_run_as_often_as_the_placement_says(k: int, n: int) -> None:
    count = [0]

    def body(c: Any) -> Any:
        jax.debug.callback(lambda i: count.__setitem__(0, count[0] + 1), c[0])
        return c[0] + 1, c[1] * 1.01

    f = lambda x: transform.while_loop(lambda c: c[0] < n, body, (0, x), checkpoint=k)[1]
    jax.block_until_ready(jax.jit(jax.grad(f))(1.0))
    jax.effects_barrier()
    assert count[0] == evaluations(placements(k, n)[-1], n, k)
    assert count[0] <= 1.25 * st.schedule(n, k).evaluations


@pytest.mark.optimized
def test_memory_does_not_grow_with_the_length() -> None:
    size, k = 64, 8
    w = jax.random.normal(jax.random.key(0), (size, size)) / size**0.5

    def loss(x: Any, n: Any) -> Any:
        x = transform.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, jnp.tanh(w @ c[1])), (0, x), checkpoint=k)[1]
        return (x**2).sum()

    memory = jax.jit(jax.grad(loss)).lower(jnp.ones((size, size)), 300).compile().memory_analysis()
    assert memory.temp_size_in_bytes <= (k + 7) * 4 * size**2


@pytest.mark.parametrize("options", [{"checkpoint": 2}, {"max_steps": 5}, {"checkpoint": 2, "max_steps": 5}])
@pytest.mark.parametrize("cond", [lambda c: c, lambda c: c > jnp.zeros(2), lambda c: (c > 0,), lambda c: None])
def test_a_condition_that_is_no_boolean_scalar_is_refused_as_in_jax(cond: Any, options: Any) -> None:
    with pytest.raises(TypeError) as theirs:
        jax.lax.while_loop(cond, lambda c: c - 1, 1.0)
    with pytest.raises(TypeError) as ours:
        transform.while_loop(cond, lambda c: c - 1, 1.0, **options)
    assert str(ours.value) == str(theirs.value)
