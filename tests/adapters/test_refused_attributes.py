"""What cannot be a cell, or be done to one, is refused by name."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import statetransform as st
from statetransform import transform

from .cells import Plain, Record, make

N = jnp.array([0.3, 0.5, 0.7])


class Tank:
    def __init__(self, level: float) -> None:
        self._level = level

    @property
    def level(self) -> Any:
        return self._level

    @level.setter
    def level(self, level: Any) -> None:
        if level < 0:
            raise ValueError("below the floor")
        self._level = level


def test_what_cannot_be_a_cell_is_refused_by_name() -> None:
    with pytest.raises(AttributeError, match="missing"):
        st.attr(Plain(1.0), "missing")
    with pytest.raises(TypeError, match=r"Plain\.n .*str"):
        st.attr(Plain("text"), "n")
    with pytest.raises(TypeError, match="holds a State"):
        st.attr(Plain(st.State(1.0)), "n")
    with pytest.raises(TypeError, match="not a class written in Python"):
        st.attr(1j, "real")
    with pytest.raises(TypeError, match="not a class written in Python"):
        st.register_state_type(list, attribute="append")
    for refused in (lambda: st.attr(Tank(1.0), "level"), lambda: st.register_state_type(Tank, attribute="level")):
        with pytest.raises(TypeError, match=r"Tank\.level is of type property and does more .*Name the attribute"):
            refused()
    st.attr(Tank(1.0), "_level")
    with pytest.raises(TypeError, match="`attribute` must be the name of an attribute, not 3"):
        st.register_state_type(Record, attribute=3)
    with pytest.raises(TypeError, match="attribute"):
        st.register_state_type(Record)
    with pytest.raises(TypeError, match="not an array"):
        obj = make(Plain, 1.0)
        transform.jit(lambda: setattr(obj, "n", "text"))()


def test_an_attribute_that_is_deleted_inside_is_refused_by_name() -> None:
    obj = make(Plain, N)

    def body() -> None:
        del obj.n

    with pytest.raises(st.StateTraceError, match=r"'n'.*deleted"):
        transform.jit(body)()
    np.testing.assert_allclose(obj.n, N)
    del obj.n
    assert not hasattr(obj, "n")
