"""A `jax.new_ref` made inside a function: works where it works in JAX, else is refused with the line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import statetransform as st
from statetransform import Param, policies, transform

X = jnp.linspace(0.1, 1, 1000)


def plain(x: Any, w: Any = 2.0) -> Any:
    return (jnp.cos(jnp.sin(x) * w) ** 2).sum()


def by_reference(x: Any, w: Any = 2.0) -> Any:
    ref = jax.new_ref(jnp.zeros_like(x))
    ref[...] = jnp.sin(x) * w
    return (jnp.cos(ref[...]) ** 2).sum()


def step(carry: Any, _: Any = None) -> tuple[Any, None]:
    ref = jax.new_ref(carry)
    ref[...] = jnp.sin(ref[...])
    return ref[...], None


@pytest.mark.parametrize("around", [lambda f: f, transform.jit], ids=["eager", "jit"])
def test_a_budget_that_the_plain_gradient_meets_is_the_plain_program(around: Callable[..., Any]) -> None:
    w = Param(2.0, name="w")
    f = transform.checkpoint(lambda x: by_reference(x, w.value), policy=st.MemoryBudget("1MiB"))
    np.testing.assert_allclose(around(f)(X), plain(X), rtol=1e-5)
    np.testing.assert_allclose(around(transform.grad(f))(X), jax.grad(plain)(X), rtol=1e-4, atol=1e-5)
    found = around(transform.grad(f, states=w))(X)
    np.testing.assert_allclose(found, jax.grad(plain, 1)(X, 2.0), rtol=1e-5)


@pytest.mark.parametrize("around", [lambda f: f, transform.grad, transform.jit])
def test_a_budget_below_it_is_refused_at_the_line(around: Callable[..., Any]) -> None:
    f = transform.checkpoint(by_reference, policy=policies.fit(1000))
    with pytest.raises(TypeError, match=r"`jax.new_ref` at \w+.py:\d+ \(by_reference\) makes"):
        around(f)(X)


def test_the_curve_of_a_plan_is_refused_likewise() -> None:
    with pytest.raises(TypeError, match=r"plan: `jax.new_ref` at"):
        policies.plan(by_reference, X)


LOOPS = {
    "scan": lambda x: transform.scan(step, x, length=9, checkpoint=3)[0],
    "scan by log": lambda x: transform.scan(step, x, length=9, checkpoint="log")[0],
    "scan in a budget": lambda x: transform.scan(step, x, length=9, checkpoint=st.MemoryBudget(30000))[0],
    "for_loop": lambda x: transform.for_loop(lambda x: step(x)[0], jnp.ones((9, 3)), checkpoint=3),
    "fori_loop": lambda x: transform.fori_loop(0, 9, lambda _, x: step(x)[0], x, checkpoint=3),
    "while_loop": lambda x: transform.while_loop(lambda x: x.sum() > 1, lambda x: step(x)[0], x, checkpoint=3),
}


@pytest.mark.parametrize("around", [lambda f: f, transform.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("loop", LOOPS)
def test_a_loop_with_few_carries_is_refused_at_the_line(loop: str, around: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match=rf"{loop.split()[0]}: `jax.new_ref` at \w+.py:\d+ \(step\)"):
        around(LOOPS[loop])(X)


def test_a_plain_loop_and_a_budget_that_it_meets_work() -> None:
    expected = jax.grad(lambda x: jax.lax.scan(step, x, length=9)[0].sum())(X)
    for checkpoint in (None, st.MemoryBudget("1MiB")):
        run = lambda x, checkpoint=checkpoint: transform.scan(step, x, length=9, checkpoint=checkpoint)[0].sum()
        np.testing.assert_allclose(transform.grad(run)(X), expected, rtol=1e-5)


def test_a_policy_that_asks_for_the_place_passes_over_the_reference() -> None:
    f = transform.checkpoint(by_reference, policy=policies.save_from("test_references_made_inside.py"))
    np.testing.assert_allclose(f(X), plain(X), rtol=1e-5)
    with pytest.raises(Exception) as theirs:  # of one class in one release, of another in the next
        jax.grad(jax.checkpoint(by_reference))(X)
    with pytest.raises(theirs.type):
        transform.grad(f)(X)
