"""Checked by pyright, not run: a state's value has the type that it was made with."""

from __future__ import annotations

from typing import Any, assert_type

import jax
import jax.numpy as jnp

from statetransform import Param, RandomState, State, states


class Membrane(State[jax.Array]):
    """A kind whose values are arrays."""

    def rest(self) -> jax.Array:
        return self.value


zeros = jnp.zeros(3)
u = State(zeros, name="u")
assert_type(u, State[jax.Array])
assert_type(u.value, jax.Array)
u.value = u.value + 1
u.value = "no"  # pyright: ignore[reportAttributeAccessIssue]

pair = State({"a": zeros})
assert_type(pair.value, dict[str, jax.Array])

mode = State("fast", static=True)
assert_type(mode.value, str)
order = State(3, static=True)
assert_type(order.value, int)

# A scalar becomes an array when a transform writes the state.
t = State(0.0, name="t", unit="ms")
assert_type(t.value, Any)
t.value = t.value + jnp.float32(1)

w = Param(zeros)
assert_type(w.value, jax.Array)
assert_type(RandomState(0).value, jax.Array)
assert_type(RandomState(0).split(), jax.Array)
assert_type(Membrane(zeros).value, jax.Array)
assert_type(states([u, w]), dict[str, State])
assert_type(states([u, w], Param), dict[str, Param])
assert_type(states([u, w], Param, RandomState), dict[str, Param | RandomState])
assert_type(states([u, w], lambda state: state.name == "w"), dict[str, State])
assert_type(states([u, w], [Param, u]), dict[str, State])
unknown: State = State(zeros)
unknown.value = "anything"


def kinetic(v: State[jax.Array], m: Param) -> jax.Array:
    return m.value * v.value**2 / 2


kinetic(u, w)
u.shape  # pyright: ignore[reportAttributeAccessIssue]
