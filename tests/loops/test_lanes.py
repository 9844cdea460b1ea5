"""A budget of a loop is for the device: all lanes of `vmap` count. Where they come too late, a warning says so."""

from __future__ import annotations

import contextlib
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import statetransform as st
from statetransform import policies, transform

LANES, SIZE, N = 16, 250, 64
CARRY = 4 * SIZE
XS = jnp.linspace(0.1, 1.0, LANES * SIZE).reshape(LANES, SIZE)

Budget = st.MemoryBudget | None


def by_scan(budget: Budget) -> Any:
    step = lambda c, _: (1.1 * jnp.sin(c), None)
    return lambda x: transform.scan(step, x, None, N, checkpoint=budget)[0].sum()


def by_while(budget: Budget) -> Any:
    if budget is None:
        return by_scan(None)
    step = lambda s: (s[0] + 1, 1.1 * jnp.sin(s[1]))
    return lambda x: transform.while_loop(lambda s: s[0] < N, step, (0, x), checkpoint=budget)[1].sum()


KNOWN = {
    "vmap of grad": lambda f: jax.vmap(jax.grad(f)),
    "grad of vmap": lambda f: jax.grad(lambda xs: jax.vmap(f)(xs).sum()),
    "with states": lambda f: transform.jit(transform.vmap(transform.grad(f))),
    "two axes": lambda f: lambda xs: jax.vmap(jax.vmap(jax.grad(f)))(xs.reshape(4, 4, SIZE)).reshape(xs.shape),
}
LATER = {
    "vmap of jit": lambda f: jax.vmap(jax.jit(jax.grad(f))),
    "grad of vmap of jit": lambda f: jax.grad(lambda xs: jax.vmap(jax.jit(f))(xs).sum()),
    "vmap of checkpoint": lambda f: jax.vmap(jax.grad(transform.checkpoint(f, policy=policies.everything_saveable))),
}


@contextlib.contextmanager
def silent() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.mark.optimized
@pytest.mark.parametrize("loop", [by_scan, by_while])
@pytest.mark.parametrize("how", KNOWN)
def test_lanes_that_are_known_count(how: str, loop: Any) -> None:
    budget = st.MemoryBudget(20 * LANES * CARRY + len(how))  # of no other test
    gradient = KNOWN[how]
    with silent():
        compiled = jax.jit(gradient(loop(budget))).lower(XS).compile()
    assert budget.choices[-1].lanes == LANES and f"for {LANES} lanes of `vmap`" in str(budget.choices[-1])
    assert 0 < budget.choices[-1].carries <= 20
    assert compiled.memory_analysis().temp_size_in_bytes <= 1.03 * budget.bytes
    np.testing.assert_allclose(compiled(XS), gradient(loop(None))(XS), rtol=1e-5)


def test_what_all_lanes_share_counts_once_if_the_loop_is_of_that_alone() -> None:
    budget = st.MemoryBudget(20 * CARRY)
    jax.vmap(lambda x, r: r * by_scan(budget)(x), (None, 0))(XS[0], XS[:, 0])
    assert budget.choices[-1].lanes == 1


@pytest.mark.parametrize(("loop", "carries"), [(by_scan, 20), (by_scan, 2 * N), (by_while, 20)])
@pytest.mark.parametrize("how", LATER)
def test_lanes_that_come_later_are_told(how: str, carries: int, loop: Any) -> None:
    budget = st.MemoryBudget(carries * CARRY + len(how))
    gradient = LATER[how]
    with pytest.warns(policies.PolicyWarning, match=rf"got {LANES} lanes of `vmap` later.*`jit` and `checkpoint`"):
        found = gradient(loop(budget))(XS)
    assert budget.choices[-1].lanes == 1 and "for each of the lanes that came later" in str(budget.choices[-1])
    np.testing.assert_allclose(found, gradient(loop(None))(XS), rtol=1e-5)


def test_lanes_that_come_later_than_others_are_told() -> None:
    budget = st.MemoryBudget(20 * 4 * CARRY)
    inner = jax.jit(jax.vmap(jax.grad(by_scan(budget))))
    with pytest.warns(policies.PolicyWarning, match="got 5 lanes"):
        jax.vmap(inner)(jnp.ones((5, 4, SIZE)))
    assert budget.choices[-1].lanes == 4


def test_loops_of_others_are_planned_before_their_lanes_are_known() -> None:
    budget = st.MemoryBudget(20 * CARRY + 7)
    f = lambda x: jax.lax.scan(lambda c, _: (1.1 * jnp.sin(c), None), x, None, N)[0].sum()
    treated = transform.checkpoint(f, policy=policies.loops(budget))
    with pytest.warns(policies.PolicyWarning, match="the scan at test_lanes.py"):
        found = transform.vmap(transform.grad(treated))(XS)
    np.testing.assert_allclose(found, jax.vmap(jax.grad(f))(XS), rtol=1e-5)


def test_without_a_gradient_nothing_is_told() -> None:
    with silent():
        jax.vmap(jax.jit(by_scan(st.MemoryBudget(20 * CARRY))))(XS)


def test_a_least_says_of_how_many_lanes_it_is() -> None:
    with pytest.raises(st.BudgetError, match=f"each of them of {LANES} lanes of `vmap`"):
        jax.vmap(jax.grad(by_scan(st.MemoryBudget(20 * CARRY // 2))))(XS)


AROUND = {
    "nothing": lambda f: f,
    "jit": jax.jit,
    "checkpoint": jax.checkpoint,
    "vmap": lambda f: lambda b, w: jax.vmap(f, (0, None))(b[None], w)[0],
}


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("checkpoint", [1, st.MemoryBudget(500)], ids=["carries", "budget"])
@pytest.mark.parametrize("axis", [0, 1])
def test_stacked_outputs_keep_their_lanes_in_the_gradient_of_a_batch(axis: int, checkpoint: Any, around: str) -> None:
    """JAX takes the axis of lanes from the function of a `custom_jvp`, and the values from its rule."""
    n = 4  # as many steps as lanes: else the wrong axis is an error

    def loss(scan: Any, wrap: Any) -> Any:
        def one(c: Any, w: Any) -> Any:
            ys = scan(lambda c, x: (jnp.tanh(c) * x, c.sum()), c, w)[1]
            return (ys * jnp.arange(float(n))).sum()

        return lambda b, w: jax.vmap(wrap(one), (axis, None))(b, w).sum()

    b, w = jnp.linspace(0.1, 1.0, 16).reshape(4, 4), jnp.linspace(0.2, 1.0, n)
    ours = loss(lambda *args: transform.scan(*args, checkpoint=checkpoint), AROUND[around])
    plain = loss(jax.lax.scan, lambda f: f)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", policies.PolicyWarning)
        found = jax.value_and_grad(ours, (0, 1))(b, w)
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(jax.value_and_grad(plain, (0, 1))(b, w)), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5)


@pytest.mark.parametrize("around", AROUND)
def test_outputs_of_a_planned_function_keep_their_lanes_in_the_gradient_of_a_batch(around: str) -> None:
    def loss(fun: Any) -> Any:
        return lambda b, w: (jax.vmap(fun, (0, None))(b, w) * jnp.arange(20.0)[None]).sum()

    def stacked(c: Any, w: Any) -> Any:
        return jax.lax.scan(lambda c, x: (jnp.tanh(c) * x + c, c.sum()), c, w)[1]

    b, w = jnp.linspace(0.1, 1.0, 600).reshape(20, 30), jnp.linspace(0.2, 1.0, 20)
    is_known = around in ("nothing", "vmap")  # the others stage the function before it gets its lanes
    budget = st.MemoryBudget(2500 * (20 if is_known else 1), compile=False)
    planned = AROUND[around](transform.checkpoint(stacked, policy=budget))
    with contextlib.nullcontext() if is_known else pytest.warns(policies.PolicyWarning, match="got 20 lanes"):
        found = jax.value_and_grad(loss(planned), (0, 1))(b, w)
    expected = jax.value_and_grad(loss(stacked), (0, 1))(b, w)
    assert not budget.choices[-1].is_plain
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4)
