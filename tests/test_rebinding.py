"""What a function reads is looked up at each call: what was rebound, has grown or changed places is followed."""

from __future__ import annotations

import functools
import types
from typing import Any

import jax.numpy as jnp
import pytest

from statetransform import State


class Cell:
    def __init__(self, value: float) -> None:
        self.s = State(jnp.float32(value), name="s")

    def read(self) -> Any:
        return self.s.value

    def read_global(self) -> Any:
        return global_cell.s.value


class Shared:
    s = State(jnp.float32(1), name="shared")

    def read(self) -> Any:
        return self.s.value


global_cell = Cell(1.0)


global_module = types.ModuleType("global_module")


def test_a_rebound_attribute_of_a_module_is_followed(traced: Any) -> None:
    global_module.s = State(jnp.float32(1))
    f = traced(lambda x: global_module.s.value * x)
    assert f(2.0) == 2.0
    global_module.s = State(jnp.float32(5))
    assert f(2.0) == 10.0


def test_a_rebound_class_attribute_is_followed(traced: Any) -> None:
    Shared.s = State(jnp.float32(1))
    shared = Shared()
    f, g = traced(lambda x: Shared.s.value * x), traced(lambda x: shared.read() * x)
    assert f(2.0) == g(2.0) == 2.0
    Shared.s = State(jnp.float32(5))
    assert f(2.0) == 10.0
    assert g(2.0) == 10.0
    shared.s = State(jnp.float32(7))  # the instance's attribute hides that of the class
    assert g(2.0) == 14.0


def test_a_rebound_global_that_a_method_reads_is_followed(traced: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "global_cell", Cell(1.0))
    reader = Cell(0.0)
    f = traced(lambda x: reader.read_global() * x)
    assert f(2.0) == 2.0
    monkeypatch.setitem(globals(), "global_cell", Cell(5.0))
    assert f(2.0) == 10.0


@pytest.mark.parametrize(
    "hold",
    [types.SimpleNamespace, dict, lambda s: Cell.__new__(Cell)],
    ids=["namespace", "dict", "object"],
)
def test_a_rebound_field_of_a_holder_is_followed(traced: Any, hold: Any) -> None:
    first, second = State(jnp.float32(1)), State(jnp.float32(5))
    holder = hold(s=first) if hold in (types.SimpleNamespace, dict) else hold(first)
    get = (lambda: holder["s"]) if hold is dict else (lambda: holder.s)
    put = (lambda s: holder.update(s=s)) if hold is dict else (lambda s: setattr(holder, "s", s))
    put(first)
    f = traced(lambda x: get().value * x)
    assert f(2.0) == 2.0
    put(second)
    assert f(2.0) == 10.0


@pytest.mark.parametrize("n", [0, 1, 3])
def test_a_list_that_grows_or_shrinks_is_noticed(traced: Any, n: int) -> None:
    items = [State(jnp.float32(1)) for _ in range(n)]
    always = State(jnp.float32(0))
    f = traced(lambda x: always.value + x * sum(item.value for item in items))
    assert f(2.0) == 2.0 * n
    items.append(State(jnp.float32(10)))
    assert f(2.0) == 2.0 * (n + 10)
    items.clear()
    assert f(2.0) == 0.0


def test_a_dict_with_other_keys_of_the_same_number_is_noticed(traced: Any) -> None:
    items = {"a": State(jnp.float32(1)), "b": State(jnp.float32(2))}
    f = traced(lambda x: x * sum(item.value for item in items.values()))
    assert f(1.0) == 3.0
    del items["b"]
    items["c"] = State(jnp.float32(20))
    assert f(1.0) == 21.0


def test_an_alias_of_a_state_is_followed_when_it_is_rebound(traced: Any) -> None:
    s, other = State(jnp.float32(1)), State(jnp.float32(10))
    names = {"a": s, "b": s}
    f = traced(lambda x: names["a"].value * x + names["b"].value)
    assert f(1.0) == 2.0
    names["b"] = other
    assert f(1.0) == 11.0
    names["a"] = other
    assert f(1.0) == 20.0
    names["b"] = s
    assert f(1.0) == 11.0


@pytest.mark.parametrize("kind", ["state", "object"])
def test_a_pointer_into_a_list_of_buffers_is_followed(traced: Any, kind: str) -> None:
    cells = [Cell(1.0), Cell(10.0)]
    model = types.SimpleNamespace(buffers=cells if kind == "object" else [c.s for c in cells])
    model.first, model.second = model.buffers
    model.current = model.buffers[0]
    get = lambda: model.current.s if kind == "object" else model.current

    def step(x: Any) -> Any:
        get().value = get().value + 1.0
        return get().value * x

    f = traced(step)
    for i in range(1, 4):
        for j in range(2):
            model.current = model.buffers[j]
            assert f(1.0) == 1.0 + 9.0 * j + i
    assert [float(cell.s.value) for cell in cells] == [4.0, 13.0]


def test_two_states_that_change_places_are_followed(traced: Any) -> None:
    pair = [State(jnp.float32(1), name="one"), State(jnp.float32(10), name="ten")]

    def f(x: Any) -> Any:
        pair[0].value = pair[0].value + 1.0
        return pair[0].value - pair[1].value * x

    g = traced(f)
    assert g(1.0) == -8.0
    pair.reverse()
    assert g(1.0) == 9.0
    assert [s.value for s in pair] == [11.0, 2.0]


def test_a_partial_and_a_callable_object_are_followed(traced: Any) -> None:
    cell = Cell(1.0)
    f = traced(functools.partial(lambda cell, x: cell.s.value * x, cell))
    assert f(2.0) == 2.0
    cell.s = State(jnp.float32(5))
    assert f(2.0) == 10.0
    cell.s.value = jnp.float32(6)
    assert f(2.0) == 12.0
