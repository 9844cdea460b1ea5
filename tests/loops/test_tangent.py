"""The derivative rule of a loop, part by part."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statetransform import MemoryBudget, State, transform
from statetransform._loops import sweep
from statetransform._loops.step import Selected, Step
from statetransform._loops.tangent import CheckpointedLoop, Tangent, forward_only

N = 7
SELECTED = Selected((True,), (True, False), (True,))


def step(consts: Any, carry: Any, x: Any) -> Any:
    (w,), (u, n) = consts, carry
    u = jnp.tanh(w * u + x[0])
    return [u, n + 1], [u.sum()]


def plain(consts: Any, init: Any, xs: Any) -> Any:
    return jax.lax.scan(lambda carry, x: step(consts, carry, x), init, xs)


def loop(block: int, again: bool = True) -> CheckpointedLoop:
    avals = tuple(map(jax.typeof, PRIMALS[1]))
    steps = Step(step, (jax.typeof(jnp.float32(0)),), False, 2, block, length=N, avals=avals)
    return CheckpointedLoop(
        plain,
        functools.partial(sweep.forward, steps),
        lambda selected: selected,
        functools.partial(sweep.backward, steps),
        (lambda consts, init, xs, _: sweep.nested(steps, consts, init, xs, N)) if again else None,
        "say how many",
    )


PRIMALS = [jnp.float32(0.8)], [jnp.linspace(0.1, 0.4, 3), jnp.int32(0)], [jnp.linspace(0, 1, N)]


def of_selected(w: Any, u: Any, x: Any) -> Any:
    (u, _), (y,) = plain([w], [u, jnp.int32(0)], [x])
    return [u, y]


def rule(block: int, again: bool = True) -> tuple[Tangent, list[Any], Any]:
    made = loop(block, again)
    carry, ys, saved = made.forward(SELECTED, *PRIMALS)
    residuals, tree = jax.tree.flatten((PRIMALS, saved))
    return Tangent(made, SELECTED, tree, len(carry), tuple(jax.typeof(y) for y in (*carry, *ys))), residuals, saved


ARGUMENTS = PRIMALS[0][0], PRIMALS[1][0], PRIMALS[2][0]
WAYS = pytest.mark.parametrize("block", [1, 3, N], ids=["vjp", "tape", "one_block"])


@WAYS
def test_the_tangent_is_that_of_the_plain_loop(block: int) -> None:
    tangent, residuals, _ = rule(block)
    found = tangent.forward(residuals, list(ARGUMENTS))
    expected = jax.jvp(of_selected, ARGUMENTS, ARGUMENTS)[1]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), found, expected)


@WAYS
def test_the_transpose_is_the_pullback_of_the_plain_loop(block: int) -> None:
    tangent, residuals, saved = rule(block)
    cts = [jnp.arange(3.0), jnp.linspace(1, 2, N)]
    _, pull = jax.vjp(of_selected, *ARGUMENTS)
    found = tangent.transpose(residuals, cts)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), found, list(pull(cts)))
    again = tangent.again(PRIMALS, saved, cts)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), again, found)


@WAYS
@pytest.mark.parametrize("missing", [0, 1])
def test_a_cotangent_that_is_none_is_zero(block: int, missing: int) -> None:
    tangent, residuals, _ = rule(block)
    zeros: list[Any] = [jnp.arange(3.0), jnp.linspace(1, 2, N)]
    nones = list(zeros)
    zeros[missing], nones[missing] = jnp.zeros_like(zeros[missing]), None
    jax.tree.map(
        np.testing.assert_array_equal, tangent.transpose(residuals, nones), tangent.transpose(residuals, zeros)
    )


def test_without_an_equivalent_loop_reverse_mode_over_the_sweep_says_the_cure() -> None:
    tangent, residuals, _ = rule(1, again=False)
    cts = [jnp.arange(3.0), jnp.linspace(1, 2, N)]
    total = lambda ct: sum(leaf.sum() for leaf in tangent.transpose(residuals, [ct, cts[1]]))
    expected = jax.jvp(
        lambda ct: sum(leaf.sum() for leaf in jax.vjp(of_selected, *ARGUMENTS)[1]([ct, cts[1]])), *[(cts[0],)] * 2
    )
    np.testing.assert_allclose(jax.jvp(total, (cts[0],), (cts[0],)), expected, rtol=1e-5)
    with pytest.raises(ValueError, match="say how many"):
        jax.grad(total)(cts[0])


def test_a_function_for_forward_mode_only_has_all_its_derivatives_in_it() -> None:
    f = forward_only(lambda x, n: [jnp.sin(x) * n, n + 1], "say how many")
    first = lambda x: f(x, 3)[0]
    second = lambda g: lambda x: jax.jvp(g, (x,), (1.0,))[1]
    np.testing.assert_allclose(first(0.3), 3 * jnp.sin(0.3), rtol=1e-6)
    np.testing.assert_allclose(second(first)(0.3), 3 * jnp.cos(0.3), rtol=1e-6)
    np.testing.assert_allclose(second(second(first))(0.3), -3 * jnp.sin(0.3), rtol=1e-6)
    np.testing.assert_allclose(
        jax.jit(jax.vmap(second(second(first))))(jnp.ones(2)), -3 * jnp.sin(jnp.ones(2)), rtol=1e-6
    )
    for refused in (first, second(first), second(second(first))):
        with pytest.raises(ValueError, match="say how many"):
            jax.grad(refused)(0.3)


def filtered(p: Any, **options: Any) -> Any:
    """What a filter does: the gain has a course of its own, whatever is measured."""
    step = jax.jit(lambda x, gain: (p * x + gain, jnp.sin(gain)))
    init = jnp.float32(0.1), jnp.float32(1)
    if options:
        return transform.scan(lambda c, _: (step(*c), None), init, None, 20, **options)[0][0]
    return transform.while_loop(lambda c: c[0] < 20, lambda c: (c[0] + 1, *step(*c[1:])), (0, *init), checkpoint=3)[1]


@pytest.mark.parametrize(
    "options", [{}, {"checkpoint": 3}, {"checkpoint": MemoryBudget(100)}], ids=["while_loop", "carries", "blocks"]
)
def test_what_no_tangent_comes_to_is_not_differentiated(options: dict[str, Any]) -> None:
    gradient = jax.grad(lambda p: filtered(p, **options))
    assert " cos " not in str(jax.make_jaxpr(gradient)(0.7))
    plain = lambda p: jax.lax.scan(lambda c, _: ((p * c[0] + c[1], jnp.sin(c[1])), None), (0.1, 1.0), None, 20)[0][0]
    np.testing.assert_allclose(gradient(0.7), jax.grad(plain)(0.7), rtol=1e-6)
    np.testing.assert_allclose(jax.jvp(gradient, (0.7,), (1.0,))[1], jax.hessian(plain)(0.7), rtol=1e-5)


def test_a_tangent_comes_to_a_carry_by_way_of_others() -> None:
    step = lambda c, _: ((c[0], c[0] * c[2], jnp.sin(c[1])), None)
    total = lambda loop: lambda p: loop(step, (p, 0.2, 0.3), None, 9)[0][2]
    few = lambda *args: transform.scan(*args, checkpoint=2)
    np.testing.assert_allclose(jax.grad(total(few))(0.9), jax.grad(total(jax.lax.scan))(0.9), rtol=1e-6)


@jax.custom_jvp
def rounded(x: Any) -> Any:
    return jnp.round(10 * x) / 10


rounded.defjvp(lambda primals, tangents: (rounded(*primals), tangents[0]))  # a tangent that the function itself has not
PARTS: list[Any] = [
    jnp.sin,
    jax.lax.stop_gradient,
    rounded,
    jax.jit(jnp.cos),
    jax.checkpoint(jnp.tanh),
    lambda x: (x > 0) * 1.0,
]
WIRES = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 5), st.sampled_from(range(len(PARTS)))), min_size=3, max_size=3
)


@settings(max_examples=15, deadline=None)
@given(WIRES, st.lists(st.booleans(), min_size=3, max_size=3), st.sampled_from([2, MemoryBudget(80)]))
def test_whatever_leads_to_what_the_gradient_is_that_of_the_plain_scan(wires: Any, moves: Any, few: Any) -> None:
    """Property: the gradient in some of the operands of a loop, whatever its step computes of what."""

    def step(carry: Any, x: Any) -> Any:
        values = [*carry, x]
        for i, k, part in wires:
            values.append(0.7 * PARTS[part](values[i % len(values)]) + 0.2 * values[k % len(values)])
        return tuple(values[-2:]), values[-3]

    operands = [jnp.float32(0.4), jnp.float32(-0.3), jnp.linspace(-1, 1, 7)]
    moving = [i for i, moves_on in enumerate(moves) if moves_on] or [2]

    def total(some: Any, loop: Any) -> Any:
        full = [some[moving.index(i)] if i in moving else x for i, x in enumerate(operands)]
        carry, ys = loop(step, tuple(full[:2]), full[2])
        return carry[0] + 2 * carry[1] + (ys * jnp.arange(7.0)).sum()

    some = [operands[i] for i in moving]
    ours = jax.grad(total)(some, lambda *args: transform.scan(*args, checkpoint=few))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), ours, jax.grad(total)(some, jax.lax.scan)
    )


@pytest.mark.parametrize("checkpoint", [3, 20, "step", None])
def test_states_in_host_memory(checkpoint: Any) -> None:
    """One that is only read, and one that is written; neither has a tangent."""
    space = jax.memory.Space
    u, w = (State(jax.device_put(jnp.ones(8), space.Host), name=name) for name in "uw")

    def loss(x: Any) -> Any:
        def step(c: Any, _: Any) -> Any:
            near = jax.lax.stop_gradient(jax.device_put(u.value, space.Device))
            u.value = jax.device_put(jnp.cos(near), space.Host)
            return c * x + near.sum() + jax.device_put(w.value, space.Device).sum(), None

        return transform.scan(step, 1.0, None, 20, checkpoint=checkpoint)[0]

    def reference(x: Any) -> Any:
        c, near = 1.0, jnp.ones(8)
        for _ in range(20):
            c, near = c * x + near.sum() + 8.0, jnp.cos(near)
        return c

    for wrap in (lambda f: f, transform.jit):
        u.value = jax.device_put(jnp.ones(8), space.Host)
        np.testing.assert_allclose(wrap(transform.grad(loss))(0.9), jax.grad(reference)(0.9), rtol=1e-5)
        assert u.value.sharding.memory_kind == "pinned_host"
