"""Modules with variables of each option of nnx; single variables are in `test_guarantees.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import statetransform as st
from statetransform import policies, transform

from .modules import HIJAX, REF, nnx

pytestmark = pytest.mark.skipif(not hasattr(nnx, "var_defaults"), reason="this flax has no such variables")

OPTIONS: dict[str, dict[str, bool]] = {"plain": {}, "hijax": HIJAX, "ref": REF, "both": HIJAX | REF}
XS = jnp.linspace(-1, 1, 6).reshape(2, 3)


class Cell(nnx.Module):
    """Reads a parameter, and writes a whole variable and a part of another."""

    def __init__(self, **options: bool) -> None:
        self.w = nnx.Param(jnp.arange(1.0, 4.0), **options)
        self.h = nnx.Variable(jnp.ones(3), **options)
        self.n = nnx.Variable(jnp.zeros(2), scale=2.0, **options)

    def __call__(self, x: Any) -> Any:
        self.h.set_value(jnp.tanh(self.h[...] * self.w + x))
        self.n[0] = self.n[0] + self.n.scale
        return jnp.sum(self.h[...] ** 2) + self.n[0]


def pure(values: Any, x: Any) -> Any:
    """`Cell.__call__`, threaded by hand."""
    h = jnp.tanh(values["h"] * values["w"] + x)
    n = values["n"].at[0].add(2.0)
    return jnp.sum(h**2) + n[0], values | {"h": h, "n": n}


def values(cell: Any) -> dict[str, Any]:
    return {name: getattr(cell, name)[...] for name in ("w", "h", "n")}


def close(x: Any, y: Any) -> None:
    for a, b in zip(jax.tree.leaves(x), jax.tree.leaves(y), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


WRAPS: dict[str, Callable[[Any], Any]] = {
    "eager": lambda f: f,
    "jit of checkpoint": lambda f: transform.jit(transform.checkpoint(f)),
    "value_and_grad": lambda f: lambda m, x: transform.value_and_grad(f, argnums=1)(m, x)[0],
    "cond": lambda f: lambda m, x: transform.cond(jnp.sum(x) > -9, f, lambda m, x: 0.0, m, x),
    "scan of few carries": lambda f: (
        lambda m, x: transform.scan(lambda c, _: (c, f(m, x)), None, length=1, checkpoint=1)[1][0]
    ),
    "a budget": lambda f: transform.checkpoint(f, policy=policies.fit("1MB", compile=False)),
    "their jit": lambda f: transform.jit(lambda m, x: nnx.jit(f)(m, x)),
}


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("wrap", WRAPS)
def test_closed_over_and_passed(wrap: str, options: str) -> None:
    if wrap == "their jit" and "hijax" in str(OPTIONS[options]):
        pytest.skip("flax itself refuses to write variables with hijax=True in `nnx.jit`, on JAX 0.12 Refs in them too")
    passed, over = Cell(**OPTIONS[options]), Cell(**OPTIONS[options])
    by_argument = WRAPS[wrap](lambda m, x: m(x))
    by_closure = WRAPS[wrap](lambda _, x: over(x))
    held = values(passed)
    for x in (XS[0], XS[1], XS[0]):
        expected, held = pure(held, x)
        close(by_argument(passed, x), expected)
        close(values(passed), held)
        if wrap != "their jit":  # nnx refuses writes to what its functions close over
            close(by_closure(None, x), expected)
            close(values(over), held)


def test_a_variable_of_a_high_type_keeps_its_structure_inside() -> None:
    variable = nnx.Variable({"a": jnp.zeros(2)}, **HIJAX)

    def grow() -> None:
        variable.set_value({"a": jnp.ones(2), "b": jnp.ones(2)})

    for wrap in (transform.jit, transform.checkpoint):
        with pytest.raises(st.StateTraceError, match="another structure"):
            wrap(grow)()
    close(variable.get_value(), {"a": jnp.zeros(2)})
    handle = st.states([variable])["0"]
    with pytest.raises(ValueError, match="keeps the structure"):
        handle.value = {"b": 1.0}
    grow()
    close(transform.jit(lambda: variable.get_value())(), {"a": jnp.ones(2), "b": jnp.ones(2)})
    close(handle.value, {"a": jnp.ones(2), "b": jnp.ones(2)})


def test_a_layer_with_a_ref_of_outside_in_it_writes_that_ref() -> None:
    outer = nnx.Variable(jnp.zeros(3), **REF)

    @transform.jit
    def write(x: Any) -> None:
        graph, state = nnx.split([outer])
        nnx.merge(graph, state)[0].set_value(x)

    write(XS[0])
    close(outer[...], XS[0])
