"""`eval_shape` and `make_jaxpr`, `lower` and `trace`: who only looks at a program writes nothing."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import pytest

from statetransform import State, transform


class Like:
    shape, dtype = (3,), jnp.dtype("float32")


def test_what_has_a_shape_and_a_dtype_stands_for_an_array() -> None:
    w = State(jnp.float32(2))
    assert transform.eval_shape(lambda x: w.value * x, Like()).shape == (3,)
    jaxpr, shape = transform.make_jaxpr(lambda x: w.value * x, return_shape=True)(Like())
    assert shape.shape == (3,) and len(jaxpr.jaxpr.invars) == 2


@pytest.mark.parametrize("name", ["eval_shape", "make_jaxpr", "lower", "trace"])
def test_what_only_looks_writes_nothing(name: str) -> None:
    s = State({"a": jnp.float32(1)})

    def f(x: Any) -> Any:
        s.value["a"] = s.value["a"] + x
        s.value = {**s.value, "b": x}
        return x

    looks = {
        "eval_shape": lambda: transform.eval_shape(f, 1.0),
        "make_jaxpr": lambda: transform.make_jaxpr(f)(1.0),
        "lower": lambda: transform.jit(f).lower(1.0),
        "trace": lambda: transform.jit(f).trace(1.0),
    }
    looks[name]()
    assert s.value == {"a": 1.0}
