"""Compiled functions over foreign cells with their way in written down: no handle is asked, and all is still seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import statetransform as st
from statetransform import transform

from .cells import ROWS, Kind, Registered

KINDS = pytest.mark.parametrize("kind", [name for name in ("nnx", "brainstate", "Registered", "ref") if name in ROWS])


def settle(jitted: Any, run: Callable[[], Any]) -> None:
    """Calls until the way in is written down."""
    for _ in range(100):
        run()
        if jitted._store.programs[0].way_in is not None:
            return
    raise AssertionError("no way in was written down")


class Model:
    def __init__(self, of: Kind, n: int) -> None:
        self.of, self.cells = of, [of.make(jnp.float32(i)) for i in range(n)]

    @transform.jit
    def add(self, x: Any, *, times: Any = 1) -> Any:
        for i, cell in enumerate(self.cells):
            self.of.put(cell, self.of.get(cell) + x * times * i)
        return x

    def values(self) -> list[float]:
        return [float(self.of.get(cell)) for cell in self.cells]


@KINDS
@pytest.mark.parametrize("n", [1, 2, 12])
def test_values_go_in_and_come_out(kind: str, n: int) -> None:
    model, x = Model(ROWS[kind], n), jnp.float32(1)
    expected = np.arange(n, dtype=float)
    for i in range(40):
        model.add(x, times=jnp.float32(2))
        expected += 2 * np.arange(n)
        if i == 30:  # what the framework's own code writes
            model.of.put(model.cells[-1], jnp.float32(7))
            expected[-1] = 7
        assert model.values() == expected.tolist()
    assert Model.add._store.programs[0].way_in is not None


@KINDS
def test_a_replaced_cell_is_seen_and_one_cell_in_two_places_is_one(kind: str) -> None:
    model, x = Model(ROWS[kind], 5), jnp.float32(1)
    settle(Model.add, lambda: model.add(x))
    old = model.cells[2]
    before = float(model.of.get(old))
    model.cells[2] = model.of.make(jnp.float32(10))
    model.cells[3] = model.cells[4]
    model.of.put(model.cells[4], jnp.float32(0))
    model.add(x)
    assert float(model.of.get(old)) == before
    assert model.values()[2:] == [12, 7, 7]


@KINDS
def test_cells_that_are_made_for_each_call_are_lifted(kind: str) -> None:
    x = jnp.float32(1)
    for i in range(30):
        model = Model(ROWS[kind], 3)
        model.add(x)
        assert model.values() == [0, 2, 4], i


@pytest.mark.parametrize("kind", ["brainstate", "Registered"])
def test_within_a_raw_transform_of_jax_nothing_is_left_behind(kind: str) -> None:
    if kind not in ROWS:
        pytest.skip(f"{kind} is not installed")
    model, x = Model(ROWS[kind], 3), jnp.float32(1)
    settle(Model.add, lambda: model.add(x))
    before = model.values()
    with pytest.raises(st.StateTraceError):
        jax.jit(model.add)(x)
    assert model.values() == before


@pytest.mark.parametrize(
    ("read", "change"),
    [
        (lambda v: v[...] * 2, lambda v: v.set_metadata(on_get_value=lambda variable, value: value + 10)),
        (lambda v: v[...] * v.scale, lambda v: v.set_metadata(scale=3)),
        (lambda v: v[...] * v.scale, lambda v: v.set_metadata(scale=True)),
        (lambda v: v.shown(), lambda v: setattr(type(v), "shown", lambda self: self[...] * 3)),
    ],
    ids=["a hook", "metadata", "their type", "a method of its class"],
)
def test_a_change_of_a_variable_is_seen(read: Any, change: Any) -> None:
    nnx = pytest.importorskip("flax.nnx")

    class Doubled(nnx.Variable):
        def shown(self) -> Any:
            return self[...] * 2

    v = Doubled(jnp.float32(1), scale=2)
    jitted = transform.jit(lambda: read(v))
    settle(jitted, jitted)
    for step in (change, lambda v: v.set_value(jnp.float32(5))):
        step(v)
        assert jitted() == read(v)


def test_transforms_of_brainstate_hear_of_reads_and_writes() -> None:
    brainstate = pytest.importorskip("brainstate")
    model, x = Model(ROWS["brainstate"], 3), jnp.float32(1)
    settle(Model.add, lambda: model.add(x))
    theirs = brainstate.transform.jit(lambda x: model.add(x))
    for _ in range(3):
        before = model.values()
        theirs(x)
        assert model.values() == [before[0], before[1] + 1, before[2] + 2]


def test_a_state_of_brainstate_says_that_it_was_written() -> None:
    brainstate = pytest.importorskip("brainstate")
    state = brainstate.State(jnp.float32(0))
    add = transform.jit(lambda: setattr(state, "value", state.value + 1))
    settle(add, add)
    vars(state)["_been_writen"] = False
    add()
    assert vars(state)["_been_writen"] is True


def test_a_handle_that_is_held_and_the_cell_that_is_given_may_be_one() -> None:
    """A handle is told from a cell by handles only: the program for two of them does not serve one."""
    held, other = Registered(jnp.float32(1)), Registered(jnp.float32(2))
    (handle,) = st.states([held]).values()
    squared = transform.jit(lambda cell: transform.grad(lambda: handle.value**2 * cell.n, states=handle)())
    for _ in range(12):
        assert squared(other) == 4.0
    assert squared(held) == 3.0


class Slotted:
    """A cell that cannot be held weakly keeps its handle in the place of its value."""

    __slots__ = ("__dict__",)

    def __init__(self, v: Any) -> None:
        self.v = v


class Pair:
    def __init__(self) -> None:
        self.a, self.b = jnp.float32(1), jnp.float32(2)


def test_cells_of_every_shape_settle() -> None:
    st.register_state_type(Slotted, attribute="v")
    slotted, pair = Slotted(jnp.float32(2)), Pair()
    both = st.attr(pair, "a"), st.attr(pair, "b")

    @transform.jit
    def step(x: Any) -> Any:
        slotted.v = slotted.v + 1
        both[0].value = both[0].value + both[1].value
        return x * slotted.v

    assert [float(step(3.0)) for _ in range(8)] == [3.0 * (3 + i) for i in range(8)]
    assert pair.a == 17.0
