"""NumPy arrays in states: copied on the way in, and still NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import statetransform as st
from statetransform import Param, RandomState, State, transform


def assigned(value: Any) -> State:
    s = State(jnp.zeros(1), name="u")
    s.value = value
    return s


def updated(value: Any) -> State:
    s = State(jax.tree.map(np.zeros_like, value), name="u")
    st.update(s, value)
    return s


def written_in_a_gradient(value: Any) -> State:
    s = State(jnp.zeros(1), name="u")

    def f(x: Any) -> Any:
        s.value = value
        return x

    transform.grad(f)(1.0)
    return s


GIVEN: dict[str, Callable[[Any], State]] = {
    "created": State,
    "a kind": Param,
    "assigned": assigned,
    "updated": updated,
    "written in a gradient": written_in_a_gradient,
    "discarded": lambda value: transform.discard_writes(lambda: State(value))(),
}


@pytest.mark.parametrize("give", GIVEN)
@pytest.mark.parametrize("is_tree", [False, True], ids=["array", "pytree"])
def test_changing_a_given_array_in_place_changes_no_state(give: str, is_tree: bool) -> None:
    mine = np.arange(3.0)
    s = GIVEN[give]({"a": [mine, jnp.ones(2)]} if is_tree else mine)
    mine[0] = 100.0
    held = s.value["a"][0] if is_tree else s.value
    assert type(held) is np.ndarray
    assert held.dtype == np.float64
    assert held.tolist() == [0.0, 1.0, 2.0]


def test_an_array_written_by_ellipsis_is_copied_and_stays_one() -> None:
    mine = np.arange(3.0)
    s = State(np.zeros(3), name="u")
    s[...] = mine
    mine[0] = 100.0
    assert type(s.value) is np.ndarray
    assert s.value.tolist() == [0.0, 1.0, 2.0]
    s[...] = np.float32([7])
    assert (type(s.value), s.value.dtype, s.value.tolist()) == (np.ndarray, np.float64, [7.0] * 3)
    s[0] = 1.0
    assert s.value.tolist() == [1.0, 7.0, 7.0]
    s.value = jnp.zeros(3)
    s[...] = mine
    mine[0] = 200.0
    assert s.value.tolist() == [100.0, 1.0, 2.0]


def test_the_array_of_a_raw_key_is_copied() -> None:
    key = np.array([0, 7], np.uint32)
    rng = RandomState(key)
    key[1] = 0
    assert rng.key.tolist() == [0, 7]


def test_values_are_a_snapshot() -> None:
    s = State({"a": np.zeros(2)}, name="u")
    before = st.values({"s": s})
    s.value["a"] += 1
    assert before["s"]["a"].tolist() == [0.0, 0.0]
    st.update({"s": s}, before)
    before["s"]["a"][0] = 5.0
    assert s.value["a"].tolist() == [0.0, 0.0]


def add_in_place(s: State) -> Callable[[Any], Any]:
    def f(x: Any) -> Any:
        s.value += 1
        return (s.value * x).sum()

    return f


@pytest.mark.parametrize("derive", [lambda f: f, transform.grad, transform.jit], ids=["eager", "grad", "jit"])
def test_addition_in_place_is_a_write(derive: Any) -> None:
    s = State(np.zeros(2, np.float32), name="u")
    for i in (1.0, 2.0):
        derive(add_in_place(s))(1.0)
        assert np.asarray(s.value).tolist() == [i, i]


def test_a_change_in_place_is_discarded_and_taken_back() -> None:
    s = State(np.zeros(2, np.float32), name="u")
    transform.discard_writes(add_in_place(s))(1.0)
    assert s.value.tolist() == [0.0, 0.0]

    def fails(x: Any) -> Any:
        s.value += 1
        raise ValueError

    with pytest.raises(ValueError):
        transform.grad(fails)(1.0)
    assert s.value.tolist() == [0.0, 0.0]


def test_values_that_the_caller_threads_are_not_changed_in_place() -> None:
    s = State(np.zeros(2, np.float32), name="u")
    pure = transform.functionalize(add_in_place(s))
    values = {s: np.full(2, 4.0, np.float32)}
    _, new = pure.apply(values, 1.0)
    assert (values[s].tolist(), new[s].tolist(), s.value.tolist()) == ([4.0, 4.0], [5.0, 5.0], [0.0, 0.0])
