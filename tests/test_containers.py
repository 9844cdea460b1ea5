"""Containers in states: changes in place count as writes, nothing is shared by accident; local states."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from statetransform import State, transform

from .tables import ONCE, ONCE_IN_LOOPS

STAGED = ("jit", "checkpoint", "named_call")
NOT_LOOPS = [name for name in ONCE if name not in ONCE_IN_LOOPS]


@pytest.mark.parametrize("name", NOT_LOOPS)
def test_a_list_that_grows_in_place_has_grown_afterwards(name: str) -> None:
    s = State([jnp.float32(1)])

    def f(x: Any) -> Any:
        s.value.append(x * 1.0)
        return x

    g = ONCE[name](f)
    g(2.0), g(3.0)
    assert [float(v) for v in s.value] == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("name", ONCE)
def test_a_nested_container_that_is_changed_in_place_is_written(name: str) -> None:
    s = State({"a": {"b": jnp.float32(1)}, "c": jnp.ones(2)}, name="s")

    def f(x: Any) -> Any:
        s.value["a"]["b"] = s.value["a"]["b"] * 3.0
        return x

    g = ONCE[name](f)
    for expected in (3.0, 9.0, 27.0):
        g(2.0)
        assert s.value["a"]["b"] == expected
        assert s.value["c"].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("name", [*ONCE, "vmap", "eval_shape", "make_jaxpr"])
def test_changes_in_place_are_taken_back_when_the_body_raises(name: str) -> None:
    s = State({"a": {"b": jnp.float32(1)}}, name="s")

    def f(x: Any) -> Any:
        s.value["a"]["b"] = x
        s.value["new"] = x
        raise KeyError("mine")

    wraps = {
        **ONCE,
        "vmap": lambda f: lambda x: transform.vmap(f)(jnp.stack([x, x])),
        "eval_shape": lambda f: lambda x: transform.eval_shape(f, x),
        "make_jaxpr": transform.make_jaxpr,
    }
    with pytest.raises(KeyError, match="mine"):
        wraps[name](f)(jnp.float32(5))
    assert s.value == {"a": {"b": 1.0}}


@pytest.mark.parametrize("name", STAGED)
def test_an_output_shares_no_container_with_a_state(name: str) -> None:
    s = State({"a": jnp.float32(1)})
    out = ONCE[name](lambda x: s.value)(1.0)
    out["a"], out["b"] = 5.0, 6.0
    assert s.value == {"a": 1.0}

    def write(x: Any) -> Any:
        s.value = {"a": x}
        return s.value

    out = ONCE[name](write)(2.0)
    out["b"] = 6.0
    assert s.value == {"a": 2.0}


@pytest.mark.parametrize("name", NOT_LOOPS)
def test_a_container_that_is_changed_after_it_was_written_ends_as_without_the_transform(name: str) -> None:
    s = State({"a": jnp.float32(0)})

    def f(x: Any) -> Any:
        held = {"a": x * 1.0}
        s.value = held
        held["a"] = x * 10.0
        return x

    f(1.0)
    plain = float(s.value["a"])
    s.value = {"a": jnp.float32(0)}
    ONCE[name](f)(1.0)
    assert s.value["a"] == plain


@pytest.mark.parametrize("name", STAGED)
def test_a_numpy_array_that_is_changed_outside_is_seen(name: str) -> None:
    s = State(np.ones(3, np.float32))
    f = ONCE[name](lambda x: s.value.sum() * x)
    assert f(1.0) == 3.0
    s.value[0] = 10.0
    assert f(1.0) == 12.0


def test_none_and_empty_containers_become_arrays_and_go_back() -> None:
    s = State(None)
    for name in STAGED:
        f = ONCE[name](lambda x: x * 2.0 if s.value is None else x + len(s.value))
        for value, expected in [(None, 6.0), ({}, 3.0), ({"a": jnp.ones(2)}, 4.0), (None, 6.0), ({}, 3.0)]:
            s.value = value
            assert f(3.0) == expected


@pytest.mark.parametrize("name", STAGED)
def test_a_local_state_goes_through_every_transform(name: str) -> None:
    def f(x: Any) -> Any:
        s = State(x * 1.0, name="local")

        def double(state: State) -> None:
            state.value = state.value * 2.0

        transform.checkpoint(double)(s)
        transform.jit(double)(s)
        transform.for_loop(lambda: double(s), length=2)
        transform.cond(True, lambda: double(s), lambda: None)
        return transform.grad(lambda y: s.value * y)(1.0) + transform.grad(lambda: s.value**2, states=s)()

    g = ONCE[name](f)
    assert [g(1.0), g(2.0), g(1.0)] == [96.0, 192.0, 96.0]


def test_an_integer_that_is_too_large_is_refused_as_by_jax() -> None:
    s = State(2**40)
    with pytest.raises(OverflowError):
        transform.jit(lambda x: s.value + x)(1)
    assert s.value == 2**40
