"""Small stateful programs, each with its hand-threaded twin.

A program maps a scalar to a scalar and reads and writes states; its twin maps `(values, x)` to
`(out, new values)`, where `values` is a dict by the names of the states.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from statetransform import Param, RandomState, State

Values = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Case:
    """One program.

    Attributes:
      initial: the states' values on entry.
      make: from the states by name to the stateful function.
      twin: the hand-threaded function.
      is_shared: what it writes does not depend on its argument, so `vmap` may share the states.
      carries: it keeps the types of its states, so it can be the body of a loop.
    """

    name: str
    initial: Callable[[], Values]
    make: Callable[[dict[str, State]], Callable[[Any], Any]]
    twin: Callable[[Values, Any], tuple[Any, Values]]
    is_shared: bool = False
    carries: bool = True

    def states(self) -> dict[str, State]:
        kinds = {"w": Param, "rng": RandomState}
        return {name: kinds.get(name, State)(value, name=name) for name, value in self.initial().items()}


def _set(state: State, value: Any) -> None:
    state.value = value


def counter(s: dict[str, State]) -> Callable[[Any], Any]:
    def f(x: Any) -> Any:
        s["n"].value += 1
        return x * 2.0

    return f


def accumulate(s: dict[str, State]) -> Callable[[Any], Any]:
    def f(x: Any) -> Any:
        s["u"].value = s["u"].value * 0.5 + s["w"].value * x
        return (s["u"].value ** 2).sum()

    return f


def _accumulate(v: Values, x: Any) -> tuple[Any, Values]:
    u = v["u"] * 0.5 + v["w"] * x
    return (u**2).sum(), {**v, "u": u}


def pytree(s: dict[str, State]) -> Callable[[Any], Any]:
    def f(x: Any) -> Any:
        tree = s["t"].value
        s["t"].value = {"a": tree["a"] + x, "b": (tree["b"][0] * tree["a"],)}
        return s["t"].value["b"][0].sum()

    return f


def _pytree(v: Values, x: Any) -> tuple[Any, Values]:
    tree = {"a": v["t"]["a"] + x, "b": (v["t"]["b"][0] * v["t"]["a"],)}
    return tree["b"][0].sum(), {"t": tree}


def dropout(s: dict[str, State]) -> Callable[[Any], Any]:
    def f(x: Any) -> Any:
        mask = jax.random.bernoulli(s["rng"].split(), 0.5, (4,))
        return jnp.where(mask, x * s["w"].value, 0.0).sum()

    return f


def _dropout(v: Values, x: Any) -> tuple[Any, Values]:
    key, fresh = jax.random.split(v["rng"])
    mask = jax.random.bernoulli(fresh, 0.5, (4,))
    return jnp.where(mask, x * v["w"], 0.0).sum(), {**v, "rng": key}


def two_writes(s: dict[str, State]) -> Callable[[Any], Any]:
    def f(x: Any) -> Any:
        s["a"].value, s["b"].value = s["b"].value, s["a"].value + x
        s["b"].value = s["b"].value * 2.0
        return s["a"].value * x + s["b"].value

    return f


def _two_writes(v: Values, x: Any) -> tuple[Any, Values]:
    a, b = v["b"], (v["a"] + x) * 2.0
    return a * x + b, {"a": a, "b": b}


def inner_scan(s: dict[str, State]) -> Callable[[Any], Any]:
    def f(x: Any) -> Any:  # the first read stands inside a raw JAX loop
        return jax.lax.scan(lambda c, _: (jnp.sin(c * s["w"].value), None), x, None, length=3)[0]

    return f


def kinds(s: dict[str, State]) -> Callable[[Any], Any]:
    def f(x: Any) -> Any:
        s["i"].value = s["i"].value + 1
        s["z"].value = s["z"].value * 1j
        s["h"].value = s["h"].value + jnp.bfloat16(1)
        s["on"].value = ~s["on"].value
        return x * s["i"].value.astype(jnp.float32) + s["none"].value.get("x", 1.0) + s["empty"].value.sum()

    return f


def _kinds(v: Values, x: Any) -> tuple[Any, Values]:
    new = {**v, "i": v["i"] + 1, "z": v["z"] * 1j, "h": v["h"] + jnp.bfloat16(1), "on": ~v["on"]}
    return x * new["i"].astype(jnp.float32) + 1.0 + v["empty"].sum(), new


CASES = [
    Case("reads nothing", dict, lambda s: lambda x: x * 3.0, lambda v, x: (x * 3.0, v), is_shared=True),
    Case(
        "reads", lambda: {"w": jnp.float32(3)}, lambda s: lambda x: s["w"].value * x, lambda v, x: (v["w"] * x, v), True
    ),
    Case(
        "writes without reading",
        lambda: {"u": jnp.float32(3)},
        lambda s: lambda x: (_set(s["u"], jnp.sin(x)), x * x)[1],
        lambda v, x: (x * x, {"u": jnp.sin(x)}),
    ),
    Case("counter", lambda: {"n": jnp.int32(0)}, counter, lambda v, x: (x * 2.0, {"n": v["n"] + 1}), True),
    Case("python counter", lambda: {"n": 0}, counter, lambda v, x: (x * 2.0, {"n": v["n"] + 1}), True),
    Case("accumulate", lambda: {"u": jnp.zeros(3), "w": jnp.float32(2)}, accumulate, _accumulate),
    Case("pytree", lambda: {"t": {"a": jnp.ones(2), "b": (jnp.ones(2),)}}, pytree, _pytree),
    Case("dropout", lambda: {"w": jnp.float32(2), "rng": jax.random.key(1)}, dropout, _dropout),
    Case("dropout raw key", lambda: {"w": jnp.float32(2), "rng": jax.random.PRNGKey(1)}, dropout, _dropout),
    Case("two writes", lambda: {"a": jnp.float32(1), "b": jnp.float32(2)}, two_writes, _two_writes),
    Case(
        "reads in a raw loop",
        lambda: {"w": jnp.float32(2)},
        inner_scan,
        lambda v, x: (jax.lax.scan(lambda c, _: (jnp.sin(c * v["w"]), None), x, None, length=3)[0], v),
        is_shared=True,
    ),
    Case(
        "kinds of values",
        lambda: {
            "i": jnp.int32(0),
            "z": jnp.complex64(1),
            "h": jnp.bfloat16(1),
            "on": jnp.bool_(True),
            "none": {"n": None},
            "empty": jnp.zeros((0, 3)),
        },
        kinds,
        _kinds,
        is_shared=True,
    ),
    Case(
        "numpy",
        lambda: {"u": np.arange(3, dtype=np.float32)},
        lambda s: lambda x: (_set(s["u"], s["u"].value * x), s["u"].value.sum())[1],
        lambda v, x: ((v["u"] * x).sum(), {"u": v["u"] * x}),
    ),
    Case(
        "changes structure",
        lambda: {"t": {"a": jnp.float32(1)}},
        lambda s: lambda x: (_set(s["t"], {**s["t"].value, "b": x}), s["t"].value["a"] * x)[1],
        lambda v, x: (v["t"]["a"] * x, {"t": {**v["t"], "b": x}}),
        carries=False,
    ),
]
BY_NAME = {case.name: case for case in CASES}


@jax.custom_vjp
def spike(v: Any) -> Any:
    """Has a rule for reverse mode only."""
    return (v > 0).astype(v.dtype)


spike.defvjp(lambda v: (spike(v), v), lambda v, ct: (ct / (1 + 10 * jnp.abs(v)) ** 2,))


def assert_same(ours: Any, reference: Any) -> None:
    assert jax.tree.structure(ours) == jax.tree.structure(reference)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(reference), strict=True):
        assert jnp.shape(a) == jnp.shape(b)
        assert jax.dtypes.result_type(a) == jax.dtypes.result_type(b)
        if jax.dtypes.issubdtype(jnp.asarray(a).dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        np.testing.assert_allclose(np.asarray(a, np.complex128), np.asarray(b, np.complex128), rtol=1e-6, atol=1e-6)
