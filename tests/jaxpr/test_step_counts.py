"""FLOPs of checkpointed loops: each step counts as often as the schedule runs it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import statetransform as st
from statetransform import State, inspect, transform

# Only a budget sets the size of blocks; here some are counted.
from statetransform._memory.loops import loops
from statetransform._memory.programs.flops import jaxpr_flops
from statetransform.inspect._gradient import GradientStep
from statetransform.inspect._view import view_of

W = jnp.eye(200) * 0.9


def body(u: Any) -> Any:
    return jnp.tanh(W @ u)


def loss(n: int, scan: Any = jax.lax.scan, **options: Any) -> Any:
    return lambda u: scan(lambda u, _: (body(u), None), u, length=n, **options)[0].sum()


def flops(f: Any) -> Any:
    return GradientStep.of(view_of(f, (jnp.ones(200),), {}), is_compiled=False)


@pytest.mark.parametrize(("n", "k"), [(1, 1), (2, 0), (7, 1), (30, 3), (30, 28), (1000, 20)])
def test_recomputed_steps_are_those_of_the_schedule(n: int, k: int) -> None:
    step = jaxpr_flops(jax.make_jaxpr(body)(jnp.ones(200)))
    plain, few = flops(loss(n)), flops(loss(n, loops.scan, checkpoint=k))
    again = few.counted - few.needed
    # A leg computes where it ends: a few operations, counted with each of its steps.
    assert again == pytest.approx(st.schedule(n, k).recomputations * step, rel=0.1, abs=step / 4)
    assert few.needed == pytest.approx(plain.counted, rel=0.05)


@pytest.mark.parametrize("block", [3, 10, 30])
def test_recorded_steps_are_not_taken_again(block: int) -> None:
    step = jaxpr_flops(jax.make_jaxpr(body)(jnp.ones(200)))
    found = flops(loss(30, loops.scan, checkpoint=2, block=block))
    again = found.counted - found.needed
    blocks = 30 // block
    expected = 30 - block + block * (st.schedule(blocks, min(2, max(blocks - 2, 0))).evaluations - 2 * blocks)
    assert again == pytest.approx(expected * step, rel=0.1)


def test_a_length_that_is_not_known_makes_no_claim() -> None:
    f = lambda u: transform.while_loop(lambda u: u.sum() > 1, body, u, checkpoint=5).sum()
    assert "or once if that is not known" in inspect.cost(f, jnp.ones(200)).origins["flops"]


def test_compare_shows_the_recomputation_of_loops() -> None:
    u = State(jnp.ones(200), name="u")

    def run(checkpoint: Any) -> Any:
        def f(x: Any) -> Any:
            u.value = jnp.ones(200) * x
            transform.fori_loop(0, 200, lambda i, _: setattr(u, "value", body(u.value)), None, checkpoint=checkpoint)
            return u.value.sum()

        return f

    table = inspect.compare({str(k): run(k) for k in (None, 5, 20)}, 1.0)
    none, five, twenty = [table[str(k)].recompute_ratio for k in (None, 5, 20)]
    assert none == 1.0 and 1.3 < twenty < five
