"""Guarantee 3: if the call raises, every state keeps the value that it had before the call."""

from __future__ import annotations

import collections
import contextlib
import sys
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import pytest

import statetransform as st
from statetransform import State, StateTraceError, transform
from statetransform._frameworks.descriptor import CellDescriptor
from statetransform._states import frame

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
    "rows", [(row,) for row in ROWS] + stacks(2)[::21], ids=lambda rows: "-".join(r.name for r in rows)
)
def test_a_body_that_raises_changes_nothing_and_the_next_call_works(rows: tuple[Row, ...], is_compiled: bool) -> None:
    a, b, switch = (State(jnp.float32(1), name="a"), State({"v": jnp.ones(2)}, name="b"), {"on": True})
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
    assert a.value == 1.0 if any(row.drops for row in rows) else a.value > 1.0


def test_what_follows_in_an_outer_body_can_still_take_everything_back() -> None:
    n = State(jnp.int32(0), name="n")

    def inner(x: Any) -> Any:
        n.value += 1
        return x * x

    def outer(x: Any) -> Any:
        transform.grad(transform.checkpoint(inner))(x)
        assert n.value.shape == ()
        raise Boom

    for f in (transform.jit(outer), transform.checkpoint(outer), transform.grad(outer), transform.vmap(outer)):
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


class Model:
    def __init__(self) -> None:
        self.u = State(1.0, name="u")

    def make(self) -> None:
        if not hasattr(self, "v"):
            self.v = State(2.0, name="v")
        self.u.value = self.u.value + self.v.value


BIRTHLESS: dict[str, Callable[[Model], Any]] = {
    "for_loop": lambda m: transform.for_loop(m.make, length=2),
    "scan": lambda m: transform.scan(lambda c, _: (m.make(), (c, None))[1], 0, length=2),
    "while_loop": lambda m: transform.while_loop(lambda i: i < 2, lambda i: (m.make(), i + 1)[1], 0),
    "cond": lambda m: transform.cond(True, m.make, lambda: None),
    "switch": lambda m: transform.switch(0, [m.make, lambda: None]),
    "for_loop in jit": lambda m: transform.jit(lambda: transform.for_loop(m.make, length=2))(),
    "for_loop in grad": lambda m: transform.grad(lambda x: (transform.for_loop(m.make, length=2), x)[1])(1.0),
}


@pytest.mark.parametrize("name", BIRTHLESS)
def test_a_refused_state_is_not_left_on_the_model(name: str) -> None:
    model = Model()
    for _ in range(2):
        said = rf"State 'v' .* is created inside a function that may run any number(.|\n)*before the {name.split()[0]}"
        with pytest.raises(StateTraceError, match=said):
            BIRTHLESS[name](model)
        assert not hasattr(model, "v")
    model.make()
    assert (model.u.value, model.v.value) == (3.0, 2.0)
    BIRTHLESS[name](model)


@pytest.mark.parametrize("wrap", [transform.jit, transform.checkpoint])
def test_a_state_made_by_a_call_that_raises_is_not_left_either(wrap: Any) -> None:
    model = Model()
    old = model.w = State(5.0)

    def fails(m: Model) -> None:
        m.make()
        m.w = State(6.0)
        raise KeyError("no")

    with pytest.raises(KeyError):
        wrap(fails)(model)
    assert not hasattr(model, "v") and model.w is old and old.value == 5.0


@pytest.mark.parametrize("wrap", [transform.jit, transform.checkpoint])
@pytest.mark.parametrize("is_argument", [True, False], ids=["argument", "closure"])
@pytest.mark.parametrize(
    ("container", "key", "shown"),
    [
        (lambda s: [s], 0, r"c\[0\]"),
        (lambda s: {"a": s}, "a", r"c\['a'\]"),
        (lambda s: collections.deque([s]), 0, r"c\[0\]"),
    ],
    ids=["list", "dict", "deque"],
)
def test_a_traced_value_in_the_place_of_a_state_in_a_container_is_refused(
    container: Any, key: Any, shown: str, is_argument: bool, wrap: Any
) -> None:
    model, s = Model(), State(1.0)
    model.c = container(s)  # type: ignore[attr-defined]

    def replace(m: Any, x: Any) -> Any:
        m.c[key] = m.c[key].value + x
        return x

    x = jnp.float32(1)
    with pytest.raises(StateTraceError, match=rf"{shown}.* was a State .*\n.*`self\.{shown}\.value = \.\.\.`"):
        wrap(replace)(model, x) if is_argument else wrap(lambda x: replace(model, x))(x)
    assert s.value == 1.0


@contextlib.contextmanager
def interrupted_at(place: int, *functions: Any) -> Any:
    """Ctrl-C at the n-th line that these functions run; gives a list, which is empty if there are fewer."""
    codes, count, reached = {function.__code__ for function in functions}, [0], []

    def trace(running: Any, event: str, _: Any) -> Any:
        if running.f_code not in codes:
            return None
        if event == "line":
            count[0] += 1
            if count[0] == place:
                reached.append(running.f_lineno)
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield reached
    finally:
        sys.settrace(before)


@pytest.mark.parametrize(
    "wrap", [transform.jit, transform.checkpoint, transform.grad], ids=["jit", "checkpoint", "grad"]
)
@pytest.mark.parametrize("has_cells", [False, True], ids=["states", "cells of others"])
def test_an_interrupt_while_values_are_stored_changes_all_states_or_none(wrap: Any, has_cells: bool) -> None:
    class Point:
        def __init__(self) -> None:
            self.x = self.y = jnp.float32(0)

    states = [State(jnp.float32(0), name=f"s{i}") for i in range(3)]
    if has_cells:
        point = Point()
        states[1:1] = [st.attr(point, "x"), st.attr(point, "y")]

    def body(x: Any) -> Any:
        for state in states:
            state.value = state.value + x
        return x

    f = wrap(body)
    f(1.0)
    place, expected = 0, 1.0
    while True:
        place += 1
        places = frame.leave, frame._commit, CellDescriptor.commit, CellDescriptor.store
        with contextlib.suppress(KeyboardInterrupt), interrupted_at(place, *places) as reached:
            f(1.0)
        values = {float(state.value) for state in states}
        assert values in ({expected}, {expected + 1.0})
        expected = values.pop()
        if not reached:
            break
    assert place > 1 and expected > 1.0


def test_an_error_while_a_frame_is_entered_leaves_no_frame_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    def note(_: Any) -> None:
        raise KeyboardInterrupt

    s = State(jnp.float32(1))
    f = transform.grad(lambda x: x * s.value)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(frame, "on_entering", [note])
        f(1.0)
    assert frame.stack.frame is None and not frame.active
    s.value = jnp.float32(2)
    assert f(1.0) == 2.0
