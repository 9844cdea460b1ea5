"""Loops in a function share its budget with the rest."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from statetransform import policies, transform
from statetransform._planner.barriers import keeps_barriers
from statetransform._planner.joint import Pattern
from statetransform._planner.measure import Planner


def planner_of(f: Any, *avals: Any) -> tuple[Planner, Pattern]:
    """For the gradient by the first argument."""
    closed = jax.make_jaxpr(f)(*avals)
    return Planner(closed), Pattern((True, *[False] * (len(avals) - 1)), (True,))


def long_loop(x: jax.Array, xs: jax.Array) -> jax.Array:
    """With as much outside of the loop as the loop itself needs for a part of its steps."""
    wide = jnp.tanh(jnp.outer(x, x))
    y, _ = jax.lax.scan(lambda h, x: (jnp.sin(h * x), None), x + wide.sum(1), xs)
    return (y * jnp.cos(wide).sum(0)).sum()


AVALS = jax.ShapeDtypeStruct((64,), jnp.float32), jax.ShapeDtypeStruct((200, 64), jnp.float32)


@pytest.mark.parametrize("share", [0.9, 0.7, 0.5])
def test_a_loop_has_what_the_rest_leaves(share: float) -> None:
    planner, pattern = planner_of(long_loop, *AVALS)
    budget = int(share * planner.versions(pattern).first.solver.plain.bytes)
    offer = planner.plan(pattern, budget)
    assert offer is not None
    assert 0.9 * budget <= offer[1].bytes <= budget


def test_what_a_loop_sums_up_in_its_carry_takes_no_bytes_besides() -> None:
    """The gradient of a matrix that each step multiplies with a vector: a sum of outer products, in its own buffer."""

    def f(w: jax.Array, x: jax.Array) -> jax.Array:
        return (jax.lax.fori_loop(0, 40, lambda _, x: 0.9 * x + 0.1 * jnp.tanh(w @ x), x) ** 2).sum()

    planner, pattern = planner_of(f, *[jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((128, 128), (128,))])
    version = planner.versions(pattern).first
    planned, compiled = version.solver.plain.bytes, planner.plain_bytes(pattern)
    assert compiled is not None
    assert 0.8 * compiled <= planned <= 1.1 * compiled
    assert planner.least(pattern)[1].bytes < 0.2 * compiled


def stacked(x: jax.Array, w: jax.Array) -> jax.Array:
    """A loop with a product in each step, over what is made of an argument: its gradient is stacked, too."""
    step = lambda h, x: (jnp.cos(jnp.sin(jnp.tanh(h @ w + x))), None)
    y, _ = jax.lax.scan(step, jnp.ones(x.shape[1:]), jnp.sin(x))
    return (y**2).sum()


STACKED = jax.ShapeDtypeStruct((30, 16, 32), jnp.float32), jax.ShapeDtypeStruct((32, 32), jnp.float32)


def test_a_loop_may_keep_its_products_and_nothing_else() -> None:
    planner, pattern = planner_of(stacked, *STACKED)
    first = planner.versions(pattern).first
    offer = planner.plan(pattern, int(0.85 * first.solver.plain.bytes))
    assert offer is not None
    assert "products" in offer[0].recipe
    assert offer[1].cost < 1.2 * first.joint.graph.cost


@pytest.mark.skipif(not keeps_barriers(), reason="the compiler removes what keeps a recomputation apart")
def test_steps_that_keep_all_products_are_candidates_as_people_write_them() -> None:
    def block(x: Any, p: Any) -> tuple[Any, None]:
        q, k, v = (y.reshape(*x.shape[:2], 4, -1) for y in jnp.split(x @ p[0], 3, -1))
        weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k))
        x = x + jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(x.shape)
        return x + jax.nn.gelu(x @ p[1]) @ p[2], None

    def loss_of(step: Any) -> Any:
        return lambda ws, x: (jax.lax.scan(step, x, ws)[0] ** 2).mean()

    shapes = (8, 32, 96), (8, 32, 128), (8, 128, 32), (8, 64, 32)
    *ps, x = (0.2 * jax.random.normal(jax.random.key(i), shape) for i, shape in enumerate(shapes))
    args = ps, x
    by_hand = loss_of(jax.checkpoint(block, policy=jax.checkpoint_policies.dots_saveable))
    bytes_of = lambda loss: jax.jit(jax.grad(loss)).lower(*args).compile().memory_analysis().temp_size_in_bytes
    budget = policies.fit(bytes_of(by_hand))
    assert bytes_of(transform.checkpoint(loss_of(block), policy=budget)) <= budget.bytes
    assert budget.choices[-1].flops_over_plain <= 1.05  # the products are not computed again


@pytest.mark.skipif(not keeps_barriers(), reason="the compiler removes what keeps a recomputation apart")
def test_what_people_write_in_loops_is_compiled_to_the_same_bytes() -> None:
    def loss_of(around: Any) -> Any:
        row = around(lambda x, w: jnp.tanh(jnp.tanh(jnp.tanh(x @ w) @ w) @ w).sum())
        return lambda w, xs: jax.lax.map(lambda x: row(x, w), xs, batch_size=32).mean()

    args = 0.1 * jnp.sin(jnp.arange(4096.0)).reshape(64, 64), jnp.ones((192, 8, 64))
    bytes_of = lambda loss: (
        jax.jit(jax.value_and_grad(loss)).lower(*args).compile().memory_analysis().temp_size_in_bytes
    )
    budget = policies.fit(bytes_of(loss_of(jax.checkpoint)))
    assert bytes_of(transform.checkpoint(loss_of(lambda f: f), policy=budget)) <= budget.bytes


def work_within(share: float, loss: Any, *args: Any) -> float:
    """The operations of a gradient step within a share of the plain bytes, over the plain ones."""
    compiled = lambda f: jax.jit(jax.value_and_grad(f)).lower(*args).compile()
    size = lambda program: program.memory_analysis().temp_size_in_bytes
    plain = compiled(loss)
    budget = policies.fit(int(share * size(plain)))
    within = compiled(transform.checkpoint(loss, policy=budget))
    assert size(within) <= budget.bytes
    same = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6)
    jax.tree.map(same, within(*args), plain(*args))
    return budget.choices[-1].flops_over_plain


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("share", [0.5, 0.35] if keeps_barriers() else [0.5])
def test_a_loop_reads_the_data_of_a_batch_from_where_it_is(share: float, reverse: bool) -> None:
    weights = jax.random.normal(jax.random.key(0), (2, 24, 24)) * 0.2
    data = jax.random.normal(jax.random.key(1), (8, 60, 24))  # `vmap` moves the steps to the front

    def loss(weights: Any, data: Any) -> Any:
        def step(v: Any, x: Any) -> Any:
            v = jnp.tanh(0.9 * v + x @ weights[0] + jnp.sin(v) @ weights[1])
            return v, v

        run = lambda xs: jax.lax.scan(step, jnp.zeros(24), xs, reverse=reverse)[1]
        return (jax.vmap(run)(data) ** 2).mean()

    assert work_within(share, loss, weights, data) < 1.5


@pytest.mark.parametrize("share", [0.65, 0.4] if keeps_barriers() else [0.65])
def test_recurrent_layers_of_a_batch_after_each_other(share: float) -> None:
    draw = lambda i, *shape: jax.random.normal(jax.random.key(i), shape) * 0.2
    layers = [(draw(i, 32, 32), draw(i + 2, 32, 32), draw(i + 4, 32, 32)) for i in range(2)]
    data = jax.random.normal(jax.random.key(9), (8, 60, 32))

    def loss(layers: Any, x: Any) -> Any:
        for w, u, dense in layers:

            def step(h: Any, x: Any, w: Any = w, u: Any = u) -> Any:
                h = jnp.tanh(x @ w + h @ u)
                return h, h

            runs = jax.vmap(lambda xs, step=step: jax.lax.scan(step, jnp.zeros(32), xs)[1])(x)
            x = jax.nn.relu(runs @ dense) + runs  # made in the forward pass, read by the next loop, and kept
        return (x**2).mean()

    assert work_within(share, loss, layers, data) < 2.0
