"""What a call that fails has put in the place of a state, or where there was none, is taken back."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import pytest

from statetransform import State, StateTraceError, transform


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
        with pytest.raises(StateTraceError, match=r"State 'v' .* is created inside a function that may run any number"):
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
        ([State(1.0)], 0, r"c\[0\]"),
        ({"a": State(1.0)}, "a", r"c\['a'\]"),
        (collections.deque([State(1.0)]), 0, r"c\[0\]"),
    ],
    ids=["list", "dict", "deque"],
)
def test_a_traced_value_in_the_place_of_a_state_in_a_container_is_refused(
    container: Any, key: Any, shown: str, is_argument: bool, wrap: Any
) -> None:
    model, s = Model(), container[key]
    model.c = container  # type: ignore[attr-defined]

    def replace(m: Any, x: Any) -> Any:
        m.c[key] = m.c[key].value + x
        return x

    x = jnp.float32(1)
    with pytest.raises(StateTraceError, match=rf"{shown}.* was a State .*\n.*`self\.{shown}\.value = \.\.\.`"):
        wrap(replace)(model, x) if is_argument else wrap(lambda x: replace(model, x))(x)
    assert container[key] is s and len(container) == 1


def test_a_list_outside_may_collect_what_is_traced() -> None:
    seen: list[Any] = []
    transform.jit(lambda x: (seen.append(x), x)[1])(1.0)
    assert len(seen) == 1
    seen.clear()
