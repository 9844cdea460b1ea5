"""Branches: each may write states of its own; what both leave has one type."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import pytest

import statetransform as st
from statetransform import State, transform


@pytest.mark.parametrize("index", [0, 1, 2, -5, 9])
@pytest.mark.parametrize("is_traced", [False, True])
def test_switch_takes_one_branch_and_clamps_its_index(index: int, is_traced: bool) -> None:
    a, b, only_read = State(jnp.float32(1), name="a"), State(jnp.float32(2), name="b"), State(jnp.float32(1))

    def first(x: Any) -> Any:
        a.value = x
        return a.value

    def second(x: Any) -> Any:
        b.value, a.value = b.value + x, a.value * 2
        return b.value

    f = lambda i, x: transform.switch(i, [first, second, lambda x: a.value + b.value * only_read.value], x)
    out = (transform.jit(f) if is_traced else f)(index, 10.0)
    chosen = min(max(index, 0), 2)
    assert (out, a.value, b.value) == [(10.0, 10.0, 2.0), (12.0, 2.0, 12.0), (3.0, 1.0, 2.0)][chosen]


def test_branches_may_write_different_states_under_every_transform(wrap: Any) -> None:
    a, b = State(jnp.float32(1), name="a"), State({"x": jnp.ones(2)}, name="b")

    def yes(x: Any) -> Any:
        a.value = a.value * x
        return a.value

    def no(x: Any) -> Any:
        b.value = {"x": b.value["x"] * x}
        return b.value["x"].sum()

    f = wrap(lambda p, x: transform.cond(p, yes, no, x))
    assert (f(True, 3.0), f(False, 4.0), f(True, 2.0)) == (3.0, 8.0, 6.0)
    assert (a.value, b.value["x"].tolist()) == (6.0, [4.0, 4.0])
    slope = transform.grad(f, argnums=1, states=a)
    assert slope(True, 2.0) == (2.0, 6.0)
    assert slope(False, 2.0) == (0.0, 8.0)


def test_cond_takes_operands_by_position_and_keyword() -> None:
    s = State(jnp.float32(1))
    f = lambda x: s.value * x
    assert transform.cond(True, f, f, 2.0) == 2.0
    assert transform.cond(pred=False, true_fun=f, false_fun=lambda x: -x, operand=3.0) == -3.0
    assert transform.cond(True, lambda: s.value, lambda: 0.0 * s.value) == 1.0
    with pytest.raises(TypeError, match=r"[Pp]red"):
        transform.cond(jnp.ones(2), f, f, 2.0)


def test_branches_that_return_different_objects_are_refused(wrap: Any) -> None:
    a, b = State(jnp.float32(1), name="a"), State(jnp.float32(2), name="b")
    assert wrap(lambda p: transform.cond(p, lambda: a, lambda: a))(False) is a
    with pytest.raises(st.StateStructureError, match=r"(?s)cond.*true_fun: State 'a' \(.*false_fun: State 'b' \("):
        wrap(lambda p: transform.cond(p, lambda: a, lambda: b))(False)
    with pytest.raises(st.StateStructureError, match=r"(?s)switch.*branch 1: State 'b'"):
        wrap(lambda i: transform.switch(i, [lambda s, t: [s, t], lambda s, t: [t, s]], a, b))(1)
    with pytest.raises(TypeError, match=r"(?s)true_fun: \[<by reference>\].*false_fun: float32"):
        wrap(lambda p: transform.cond(p, lambda: [a], lambda: 0.0))(False)
