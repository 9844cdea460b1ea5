"""What the derivative rule of a loop differentiates, and what it leaves alone."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statetransform import MemoryBudget, State, policies, transform


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


def without_slope(x: jax.Array) -> jax.Array:
    """Zero, with an infinite slope."""
    return jnp.sqrt(x - x)


STEPS: dict[str, Any] = {
    "in the step": lambda c: (0.9 * c[0], without_slope(c[0])),
    "in a branch": lambda c: jax.lax.cond(c[0] > 0.7, lambda c: (0.9 * c[0], without_slope(c[0])), lambda c: c, c),
    "in a loop": lambda c: jax.lax.fori_loop(0, 2, lambda _, c: (0.9 * c[0], without_slope(c[0])), c),
    "where it decides": lambda c: (jnp.where(c[1] > 0.5, c[0], 0.9 * c[0]), without_slope(c[0])),
    "used by itself": lambda c: (0.9 * c[0], without_slope(c[0]) + c[1]),
}


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_what_has_no_cotangent_is_not_differentiated(step: Any) -> None:
    """Zero times an infinite slope would be not a number, where JAX's own loop leaves it out."""

    def by(scan: Any, **options: Any) -> jax.Array:
        run = lambda x: scan(lambda c, _: (step(c), None), (x, x), length=6, **options)[0][0]
        return jax.grad(run)(1.0)

    expected = by(jax.lax.scan)
    assert jnp.isfinite(expected)
    for checkpoint in (1, 2, "sqrt", MemoryBudget(53), MemoryBudget(67)):
        assert jnp.allclose(by(transform.scan, checkpoint=checkpoint), expected)


def twice_by_while(c: Any) -> Any:
    """The step "in a loop", whose condition reads what has no cotangent."""
    is_on = lambda state: state[0][1] + state[1] < 2
    return jax.lax.while_loop(is_on, lambda state: (STEPS["in the step"](state[0]), state[1] + 1), (c, 0))[0]


@pytest.mark.parametrize("name", [*STEPS, "in a loop of unknown length"])
def test_a_treated_loop_leaves_out_what_has_no_cotangent(name: str) -> None:
    step = STEPS.get(name, twice_by_while)
    loop = lambda x: jax.lax.while_loop(lambda c: c[1] < 6, lambda c: (step(c[0]), c[1] + 1), ((x, x), 0))[0][0]
    plain = STEPS.get(name, STEPS["in a loop"])
    expected = jax.grad(lambda x: jax.lax.scan(lambda c, _: (plain(c), None), (x, x), length=6)[0][0])(1.0)
    for policy in (policies.loops(2), policies.loops(MemoryBudget(1041))):
        assert jnp.allclose(jax.grad(transform.checkpoint(loop, policy=policy))(1.0), expected)


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("unknown", [False, True])
def test_what_a_loop_does_not_hand_on_has_no_cotangent_before_it(unknown: bool, batched: bool) -> None:
    """An infinite slope before the loop, in a leaf of the carry, a constant and an input that no result comes from."""

    def by(x: Any, loop: Any) -> jax.Array:
        none = without_slope(x)
        step = lambda c, y: ((0.9 * c[0], c[1] + y * none), c[1])
        return jnp.sum(loop(step, (x, none), jnp.full(6, none)))

    def plain(step: Any, init: Any, xs: Any) -> Any:
        return jax.lax.scan(step, init, xs)[0][0]

    def ours(step: Any, init: Any, xs: Any) -> Any:
        if not unknown:
            return transform.scan(step, init, xs, checkpoint=2)[0][0]
        advance = lambda c: (c[0] + 1, step(c[1], xs[c[0]])[0])
        return transform.while_loop(lambda c: c[0] < 6, advance, (0, init), checkpoint=2)[1][0]

    x = jnp.ones(3) if batched else 1.0
    lift = jax.vmap if batched else lambda f: f
    of = lambda loop: lift(jax.grad(lambda x: by(x, loop)))(x)
    assert jnp.all(jnp.isfinite(of(plain)))
    np.testing.assert_allclose(of(ours), of(plain))


@pytest.mark.parametrize("loop", ["fori_loop", "while_loop"])
def test_what_has_no_tangent_is_not_pushed_forward_by_a_loop_in_the_step(loop: str) -> None:
    def twice(c: Any) -> Any:
        one = lambda c: (0.9 * c[0] + c[1], without_slope(c[1]))
        if loop == "fori_loop":
            return jax.lax.fori_loop(0, 2, lambda _, c: one(c), c)
        return jax.lax.while_loop(lambda c: c[1] < 2, lambda c: (one(c[0]), c[1] + 1), (c, 0))[0]

    def of(x: Any, scan: Any) -> jax.Array:
        return scan(lambda c, _: (twice(c), None), (x, 1.0), None, 6)[0][0]

    ours = lambda x: of(x, lambda *args: transform.scan(*args, checkpoint=2))
    expected = jax.jvp(lambda x: of(x, jax.lax.scan), (1.0,), (1.0,))[1]
    assert jnp.isfinite(expected)
    assert jnp.allclose(jax.jvp(ours, (1.0,), (1.0,))[1], expected)


def test_an_output_without_cotangent_is_not_differentiated() -> None:
    def by(scan: Any, **options: Any) -> jax.Array:
        step = lambda c, x: ((0.9 * c[0], without_slope(c[0])), (c[0] * x, without_slope(c[1])))
        return jax.grad(lambda a: scan(step, (a, a), jnp.arange(6.0), **options)[1][0].sum())(1.0)

    for is_reversed in (False, True):
        expected = by(jax.lax.scan, reverse=is_reversed)
        assert jnp.isfinite(expected)
        assert jnp.allclose(by(transform.scan, checkpoint=2, reverse=is_reversed), expected)
