"""Guarantee 3: if the call raises, every state keeps the value that it had before the call."""

from __future__ import annotations

import threading
from typing import Any

import jax.numpy as jnp
import pytest

import statetransform as st
from statetransform import State, transform

from ..tables import ROWS, Row, stacks


class Boom(Exception):
    pass


def make(a: State, b: State, switch: dict[str, bool]) -> Any:
    def f(x: Any) -> Any:
        a.value = a.value + 1.0
        b.value = {"v": b.value["v"] * 2.0}
        if switch["on"]:
            raise Boom
        return x * 2.0

    return f


@pytest.mark.parametrize("is_compiled", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize(
    "rows",
    [(row,) for row in ROWS] + stacks(2)[::7],
    ids=lambda rows: "-".join(r.name for r in rows),
)
def test_a_body_that_raises_changes_nothing_and_the_next_call_works(rows: tuple[Row, ...], is_compiled: bool) -> None:
    a, b, switch = (
        State(jnp.float32(1), name="a"),
        State({"v": jnp.ones(2)}, name="b"),
        {"on": True},
    )
    f: Any = make(a, b, switch)
    for row in reversed(rows):
        f = row.ours(f)
    f = transform.jit(f) if is_compiled else f
    with pytest.raises(Boom):
        f(jnp.float32(1))
    assert a.value == 1.0
    assert b.value["v"].tolist() == [1.0, 1.0]
    switch["on"] = False
    f(jnp.float32(1))
    assert a.value > 1.0


def test_what_follows_in_an_outer_body_can_still_take_everything_back() -> None:
    n = State(jnp.int32(0), name="n")

    def inner(x: Any) -> Any:
        n.value += 1
        return x * x

    def outer(x: Any) -> Any:
        transform.grad(transform.checkpoint(inner))(x)
        assert n.value.shape == ()
        raise Boom

    for f in (
        transform.jit(outer),
        transform.checkpoint(outer),
        transform.grad(outer),
        transform.vmap(outer),
    ):
        with pytest.raises(Boom):
            f(jnp.ones(3) if f.__class__.__name__ == "Vectorized" else 1.0)
        assert n.value == 0


def test_an_inner_error_that_is_caught_takes_back_the_inner_writes_only() -> None:
    n = State(jnp.int32(0), name="n")

    @transform.checkpoint
    def fails(x: Any) -> Any:
        n.value += 10
        raise Boom

    @transform.jit
    def f(x: Any) -> Any:
        n.value += 1
        with pytest.raises(Boom):
            fails(x)
        return x

    f(1.0)
    assert n.value == 1


def test_a_container_that_is_changed_in_place_counts_as_written_and_is_taken_back() -> None:
    s = State({"a": jnp.float32(1)}, name="s")

    def f(x: Any) -> Any:
        s.value["a"] = x * 2.0
        if x is None:
            raise Boom
        return x

    transform.grad(f)(3.0)
    assert s.value["a"] == 6.0
    transform.jit(f)(4.0)
    assert s.value["a"] == 8.0

    def fails(x: Any) -> Any:
        s.value["a"] = x
        raise Boom

    for wrap in (transform.jit, transform.grad, transform.checkpoint):
        with pytest.raises(Boom):
            wrap(fails)(1.0)
        assert s.value["a"] == 8.0


def test_update_writes_nothing_when_one_structure_is_wrong() -> None:
    a, b = State(jnp.zeros(2), name="a"), State(jnp.zeros(3), name="b")
    with pytest.raises(st.StateStructureError, match="b"):
        st.update({"a": a, "b": b}, {"a": jnp.ones(2), "b": jnp.ones(4)})
    assert a.value.tolist() == [0.0, 0.0]
    st.update([a, b], [jnp.ones(2), jnp.ones(3)])
    assert b.value.tolist() == [1.0, 1.0, 1.0]


def test_a_state_never_holds_a_tracer() -> None:
    s = State(jnp.float32(1), name="s")
    seen = []

    def f(x: Any) -> Any:
        s.value = s.value * x
        other = threading.Thread(target=lambda: seen.append(s.value))  # which sees what the state holds, not the trace
        other.start()
        other.join()
        return s.value

    transform.jit(transform.grad(transform.checkpoint(f)))(2.0)
    assert seen == [1.0] * len(seen) != []
