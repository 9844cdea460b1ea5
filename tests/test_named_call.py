"""`named_call` runs the function as it is, under a name."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from statetransform import State, transform

X = jnp.float32(2)


def count(n: State) -> None:
    n.value = n.value + 1


def test_a_named_call_runs_as_it_is() -> None:
    w, n, runs = State(jnp.float32(3)), State(jnp.int32(0)), []

    @transform.named_call(name="scale")
    def f(x: Any, mode: str, box: list[Any]) -> Any:
        runs.append(1)
        box.append(mode)
        count(n)
        return (w.value * x if x > 0 else x), mode

    box: list[Any] = []
    assert f(X, "fast", box) == (6.0, "fast")
    assert f(-X, "slow", box) == (-2.0, "slow")
    assert (box, len(runs), int(n.value)) == (["fast", "slow"], 2, 2)
    assert "scale" in str(
        jax.make_jaxpr(lambda x: transform.named_call(jnp.sin, name="scale")(x))(X).jaxpr.pretty_print(name_stack=True)
    )
    with pytest.raises(ZeroDivisionError):
        transform.named_call(lambda: (count(n), 1 / 0))()
    assert n.value == 2


def test_a_named_call_makes_states_and_takes_what_has_no_name() -> None:
    made = transform.named_call(functools.partial(lambda a, x: {"s": State(a * x)}, 2.0))(X)["s"]
    assert made.value == 4.0
    assert np.asarray(transform.named_call(lambda s: s.value)(made)) == 4.0
