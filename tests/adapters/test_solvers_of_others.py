"""`policies.loops` on other people's solvers, unedited: their gradients are those of central differences."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from statetransform import policies, transform

START = np.array([1.0, 2.0])


@pytest.fixture(autouse=True)
def double_precision() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def descent(jaxopt: Any) -> Callable[[Any], Any]:
    def f(a: Any) -> Any:
        loss = lambda w: jnp.sum((w - a) ** 4 + w**2)
        return jaxopt.GradientDescent(loss, maxiter=50, implicit_diff=False, unroll=False).run(START).params.sum()

    return f


def root(optimistix: Any) -> Callable[[Any], Any]:
    residual = lambda y, a: jnp.array([y[0] ** 2 - a, y[1] - jnp.sin(y[0])])
    return lambda a: optimistix.root_find(residual, optimistix.Newton(1e-10, 1e-10), jnp.ones(2), a).value.sum()


def differential_equation(diffrax: Any) -> Callable[[Any], Any]:
    term, solver = diffrax.ODETerm(lambda t, y, a: jnp.sin(y) - a * y), diffrax.Tsit5()

    def f(a: Any) -> Any:
        def body(c: Any) -> Any:
            t, y, state = c
            y, _, _, state, _ = solver.step(term, t, t + 0.1, y, a, state, made_jump=False)
            return t + 0.1, y, state

        y = jnp.asarray(START)
        start = jnp.asarray(0.0), y, solver.init(term, 0.0, 0.1, y, a)
        return jax.lax.while_loop(lambda c: c[0] < 2.0, body, start)[1].sum()

    return f


# The module, what is made with it, and whether JAX alone cannot differentiate that.
SOLVERS = {
    "gradient descent": ("jaxopt", descent, True),
    "a root with a rule of its own": ("optimistix", root, False),
    "a differential equation": ("diffrax", differential_equation, True),
}


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.filterwarnings("ignore")  # theirs
def test_the_gradient_is_that_of_central_differences(name: str) -> None:
    module, make, is_new = SOLVERS[name]
    f = make(pytest.importorskip(module, exc_type=ImportError))
    if is_new:
        with pytest.raises(ValueError, match="Reverse-mode differentiation does not work") as info:
            transform.grad(f)(0.5)
        assert any("policies.loops(20)" in note for note in info.value.__notes__)
    found = transform.jit(transform.grad(transform.checkpoint(f, policy=policies.loops(20))))(0.5)
    run, h = jax.jit(f), 1e-5
    np.testing.assert_allclose(found, (run(0.5 + h) - run(0.5 - h)) / (2 * h), rtol=1e-3)


@pytest.mark.optimized
def test_a_budget_opens_the_loops_of_a_solver_that_bounds_its_steps() -> None:
    diffrax = pytest.importorskip("diffrax")

    def loss(y: Any, rate: Any) -> Any:
        term, adjoint = diffrax.ODETerm(lambda t, y, rate: jnp.sin(rate * y) - y), diffrax.DirectAdjoint()
        solved = diffrax.diffeqsolve(term, diffrax.Tsit5(), 0.0, 1.0, 0.1, y, rate, max_steps=16, adjoint=adjoint)
        return (solved.ys**2).sum()

    args = jnp.linspace(0, 1, 64, dtype=jnp.float32), jnp.float32(2.0)
    compiled = lambda f: transform.jit(transform.grad(f, argnums=1)).lower(*args).compile()
    size = lambda program: program.memory_analysis().temp_size_in_bytes
    plain = compiled(loss)
    budget = policies.fit(size(plain) // 2)
    within = compiled(transform.checkpoint(loss, policy=budget))
    assert size(within) <= budget.bytes and not budget.choices[-1].is_plain
    np.testing.assert_allclose(within(*args), plain(*args), rtol=1e-5)
