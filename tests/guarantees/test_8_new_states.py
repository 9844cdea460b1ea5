"""Guarantee 8: a state created during the call and still reachable after it holds its real value afterwards."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import pytest

from statetransform import State, transform

WRAPS = [transform.jit, transform.checkpoint, transform.named_call, lambda f: transform.jit(transform.checkpoint(f))]


@pytest.mark.parametrize("wrap", WRAPS)
def test_a_returned_state_is_a_new_one_at_each_call(wrap: Any) -> None:
    make = wrap(lambda x: {"s": State(x * 2.0, name="made")})
    first, second = make(1.0)["s"], make(2.0)["s"]
    assert (first.value, second.value) == (2.0, 4.0)
    assert first is not second
    assert first.name == second.name == "made"


@pytest.mark.parametrize("wrap", WRAPS)
def test_a_state_that_is_stored_on_first_use_is_found_by_the_next_call(wrap: Any) -> None:
    kept: list[State] = []

    def lazy(x: Any) -> Any:
        if not kept:
            kept.append(State(x * 0.0, name="lazy"))
        kept[0].value = kept[0].value + x
        return kept[0].value

    f = wrap(lazy)
    assert [float(f(1.0)) for _ in range(4)] == [1.0, 2.0, 3.0, 4.0]
    assert kept[0].value == 4.0


@pytest.mark.parametrize("value", [True, None, (1, "a")], ids=repr)
@pytest.mark.parametrize("wrap", [*WRAPS, transform.vmap, lambda f: transform.jit(transform.vmap(f))])
def test_a_static_state_keeps_its_value(wrap: Any, value: Any) -> None:
    kept: list[list[State]] = []

    def make(n: Any) -> None:
        made = [State(n * 2.0), State("before", static=True), State(n * 3.0), State(value, static=True)]
        made[1].value = value
        kept.append(made)

    f = wrap(make)
    for n in (jnp.ones(2), jnp.full(2, 5.0)):
        f(n)
        double, written, triple, static = kept[-1]
        assert (double.value.tolist(), triple.value.tolist()) == ((n * 2).tolist(), (n * 3).tolist())
        assert [(type(x), x) for x in (written.value, static.value)] == [(type(value), value)] * 2


def test_a_static_state_in_the_output_is_a_new_one_at_each_call() -> None:
    make = transform.jit(lambda n: (State("tanh", static=True), State(n)))
    made = [make(n) for n in (2.0, 3.0)]
    assert [(kind.value, float(n.value)) for kind, n in made] == [("tanh", 2.0), ("tanh", 3.0)]
    assert made[0][0] is not made[1][0]


class Node:
    def __init__(self, x: Any) -> None:
        self.me, self.u = self, State(x)


@pytest.mark.parametrize("hold", [State, lambda x: Node(x).u], ids=["alone", "in an object"])
def test_a_temporary_state_costs_nothing_and_does_not_prevent_caching(hold: Any) -> None:
    runs = []

    def f(x: Any) -> Any:
        runs.append(1)
        s = hold(x)
        s.value = s.value * 2.0
        return s.value

    g = transform.checkpoint(f)
    assert [float(g(1.0)), float(g(3.0)), float(transform.grad(g)(2.0))] == [2.0, 6.0, 2.0]
    assert len(runs) == 1
    assert float(transform.grad(f)(1.0)) == 2.0


def test_grad_and_vmap_hand_new_states_out() -> None:
    kept: list[State] = []

    def f(x: Any) -> Any:
        kept.append(State(x * 2.0))
        return x * x

    assert transform.grad(f)(3.0) == 6.0
    assert kept[0].value == 6.0
    transform.vmap(f)(jnp.arange(3.0))
    assert kept[1].value.tolist() == [0.0, 2.0, 4.0]
