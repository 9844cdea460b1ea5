"""Guarantee 2: every call sees the states' current values, first call or hundredth, eager or compiled.

What else a call sees is in the other files of this guarantee: attributes, names, items; how often they trace is in
`test_2_traces.py`.
"""

from __future__ import annotations

import jax.numpy as jnp
import pytest

from statetransform import State, transform

from ..tables import ROWS, Row


@pytest.mark.parametrize("is_compiled", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_an_outside_write_is_seen_by_the_next_call(row: Row, is_compiled: bool) -> None:
    w = State(jnp.float32(1), name="w")
    f = row.ours(lambda x: w.value * x * x)
    f = transform.jit(f) if is_compiled else f
    x = jnp.float32(2)
    first = f(x)
    for scale in (5.0, -3.0):
        w.value = jnp.float32(scale)
        assert jnp.allclose(f(x), scale * first)


@pytest.mark.parametrize("is_compiled", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_new_shape_of_a_state_is_seen_by_the_next_call(row: Row, is_compiled: bool) -> None:
    s = State(jnp.ones(2), name="s")
    f = row.ours(lambda x: x * s.value.shape[0])
    f = transform.jit(f) if is_compiled else f
    x = jnp.float32(1)
    small = f(x)
    s.value = jnp.ones(6)
    assert jnp.allclose(f(x), 3 * small)
    s.value = jnp.ones(2)
    assert jnp.allclose(f(x), small)


class Model:
    def __init__(self, value: float) -> None:
        self.w = State(jnp.float32(value), name="w")

    @transform.jit
    def compiled(self, x: object) -> object:
        self.w.value = self.w.value + x
        return self.w.value

    @transform.checkpoint
    def checkpointed(self, x: object) -> object:
        self.w.value = self.w.value + x
        return self.w.value


def test_two_instances_never_see_each_others_states() -> None:
    a, b = Model(1.0), Model(100.0)
    for expected in (2.0, 3.0, 4.0):
        assert a.compiled(1.0) == expected
        assert b.compiled(1.0) == expected + 99
        assert b.checkpointed(0.0) == expected + 99
