"""Compiled programs name their inputs like the states and the arguments."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from statetransform import Param, State, transform


class Model:
    def __init__(self) -> None:
        self.u = State({"a": jnp.ones(3)}, name="u")
        self.w = Param(jnp.ones(3), name="layers.0.w")
        self.free = State(jnp.float32(1))
        self.x = State(jnp.float32(1), name="x")

    def step(self, x: Any, n: int, *more: Any, y: Any = 1.0) -> Any:
        self.u.value = jax.tree.map(lambda a: a * x, self.u.value)
        return (self.u.value["a"] * self.w.value).sum() * n + self.free.value + self.x.value + y + sum(more)


def inputs(compiled: Any) -> set[str]:
    entry = compiled.as_text().partition("ENTRY")[2]
    found = re.findall(r'parameter\(\d+\).*op_name="([^"]*)"', entry)
    return {name.replace("\\", "") for name in found}


@pytest.mark.parametrize("donate", [False, True], ids=["kept", "donated"])
def test_inputs_are_named_like_states_and_parameters(donate: bool) -> None:
    model = Model()
    step = transform.jit(model.step, static_argnums=1, donate_states=donate)
    compiled = step.lower(2.0, 3, 4.0, y=5.0).compile()
    assert inputs(compiled) == {"u['a']", "layers_0_w", "state", "x", "x_1", "more_0", "y"}
    expected = 2.0 * 9 + 2 + 5 + 4
    assert float(compiled(2.0, 4.0, y=5.0)) == expected
    model.u.value = {"a": jnp.ones(3)}
    assert float(step(2.0, 3, 4.0, y=5.0)) == expected


def test_a_name_that_python_keeps_for_itself_is_taken() -> None:
    states = [State(jnp.float32(i), name=name) for i, name in enumerate(["lambda", "2d", "", "u", "u"])]
    f = transform.jit(lambda u: sum(s.value for s in states) * u)
    assert inputs(f.lower(1.0).compile()) == {"_lambda", "_2d", "state", "u", "u_1", "u_2"}
    assert float(f(2.0)) == 20.0
