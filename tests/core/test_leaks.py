"""No traced value stays behind in an object of the user's: the place is named, and what was there is there again."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import pytest

from statetransform import State, StateTraceError, transform


class Model:
    """A state, and places where a value could be put."""

    def __init__(self) -> None:
        self.u = State(jnp.float32(2))
        self.last: Any = None
        self.items: list[Any] = [1, "a", [2]]
        self.many: list[Any] = list(range(40))
        self.table: dict[str, Any] = {"a": 1}
        self.queue: Any = collections.deque([1], maxlen=2)

    def seen(self) -> Any:
        """All that is to stay."""
        return self.u.value, self.last, [*self.items], [*self.many], dict(self.table), [*self.queue]


LEAKS: dict[str, tuple[str, Callable[[Any, Any], Any]]] = {
    "set": ("last", lambda m, x: setattr(m, "last", x)),
    "append": ("items", lambda m, x: m.items.append(x)),
    "replace an item": ("items", lambda m, x: m.items.__setitem__(0, x)),
    "in a pytree": ("items", lambda m, x: m.items.append({"x": [x]})),
    "append to many": ("many", lambda m, x: m.many.append(x)),
    "a new key": ("table", lambda m, x: m.table.update(b=x)),
    "an old key": ("table", lambda m, x: m.table.update(a=x)),
    "push": ("queue", lambda m, x: m.queue.append(x)),
}


@pytest.mark.parametrize("way", ["jit", "checkpoint", "loop"])
@pytest.mark.parametrize("name", LEAKS)
def test_a_traced_value_in_an_attribute_or_container_is_an_error_that_names_it(name: str, way: str) -> None:
    place, leak = LEAKS[name]
    model, x = Model(), jnp.float32(3)
    body = lambda model, x: (leak(model, model.u.value * x), x)[1]
    ways: dict[str, Callable[[], Any]] = {
        "jit": lambda: transform.jit(body)(model, x),
        "checkpoint": lambda: transform.checkpoint(body)(model, x),
        "loop": lambda: transform.jit(lambda m: transform.fori_loop(0, 2, lambda i, c: body(m, c), x))(model),
    }
    before = model.seen()
    with pytest.raises(StateTraceError, match=f"attribute '{place}' of a Model"):
        ways[way]()
    assert model.seen() == before


def test_a_traced_value_that_was_there_before_is_none() -> None:
    model = Model()

    def outer(x: Any) -> Any:
        model.items = [x]
        try:
            return transform.checkpoint(lambda m: m.items[0] * m.u.value)(model)
        finally:
            model.items = []

    assert float(transform.grad(outer)(3.0)) == 2
