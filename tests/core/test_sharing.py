"""Objects of the same structure share one trace and one compiled program, as their values do in hand-threaded code."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from statetransform import State, transform

from .compiling import compilations

N = 50
X = jnp.ones((2, 2))


class Layer:
    def __init__(self, index: int, act: str = "tanh") -> None:
        self.w = State(jnp.full((2, 2), 0.1))
        self.name, self.index, self.act = f"layer {index}", index, act
        self.lock, self.array, self.own = threading.Lock(), jnp.ones(3) * index, jax.jit(lambda x: x * index)


def apply(act: str, w: Any, x: Any) -> Any:
    return jnp.maximum(x @ w, 0.0) if act == "relu" else jnp.tanh(x @ w)


def traced_once(way: str) -> tuple[Any, Any, list[int]]:
    """A call of a layer in some way, the class of layer for it, and where the runs of the body are counted."""
    runs: list[int] = []

    def body(layer: Any, x: Any) -> Any:
        runs.append(layer.w.value.ndim)
        return apply(layer.act, layer.w.value, x)

    transformed = {"checkpoint": transform.checkpoint, "jit": transform.jit}.get(way.partition(" ")[0], lambda f: f)

    class Own(Layer):
        call = transformed(body)

    whole = transformed(body)
    calls: dict[str, Callable[[Any, Any], Any]] = {
        "argument": lambda layer, x: whole(layer, x),
        "self": lambda layer, x: layer.call(x),
        "loop body": lambda layer, x: transform.fori_loop(0, 2, lambda i, c: body(layer, c), x),
    }
    return calls[way.partition(" as ")[2]], Own, runs


def gradient(call: Callable[[Any, Any], Any], layers: list[Any]) -> Any:
    def loss(x: Any) -> Any:
        for layer in layers:
            x = call(layer, x)
        return x.sum()

    return transform.jit(transform.grad(loss, states=[layer.w for layer in layers], argnums=None))


def twin(way: str, acts: list[str]) -> str:
    transformed: Any = {"checkpoint": jax.checkpoint, "jit": jax.jit}.get(way.partition(" ")[0], lambda f: f)
    layers = {act: transformed(lambda w, x, act=act: apply(act, w, x)) for act in acts}
    once = layers if "loop" not in way else {
        act: lambda w, x, f=f: jax.lax.fori_loop(0, 2, lambda i, c: f(w, c), x) for act, f in layers.items()
    }  # fmt: skip

    def loss(ws: Any, x: Any) -> Any:
        for act, w in zip(acts, ws, strict=True):
            x = once[act](w, x)
        return x.sum()

    return jax.jit(jax.grad(loss)).lower([jnp.full((2, 2), 0.1)] * len(acts), X).as_text()


WAYS = ["checkpoint as argument", "checkpoint as self", "jit as argument", "jit as self", "untransformed as loop body"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kinds", [("tanh",), ("tanh", "relu")])
def test_layers_run_once_for_each_structure_and_have_the_functions_of_the_twin(
    way: str, kinds: tuple[str, ...]
) -> None:
    call, make, runs = traced_once(way)
    acts = [kinds[i % len(kinds)] for i in range(N)]
    program = gradient(call, [make(i, act) for i, act in enumerate(acts)])
    text = program.lower(X).as_text()
    assert len(runs) == len(kinds)
    if "loop" not in way:  # JAX gives each loop of the twin functions of its own
        assert text.count("func.func") == twin(way, acts).count("func.func")
    else:
        assert text.count("stablehlo.while") == twin(way, acts).count("stablehlo.while")


class Simulator:
    runs = 0

    def __init__(self) -> None:
        self.u, self.t = State(jnp.float32(0)), State(jnp.float32(0))

    @transform.jit
    def step(self, dt: Any) -> None:
        Simulator.runs += 1
        self.u.value, self.t.value = self.u.value + dt, self.t.value + dt


def test_a_thousand_instances_are_compiled_once_and_leave_nothing() -> None:
    dt, runs = jnp.float32(1), Simulator.runs
    for _ in range(4):
        Simulator().step(dt)
    gc.collect()
    before = len(gc.get_objects())
    with compilations() as compiled:
        for _ in range(1000):
            Simulator().step(dt)
    gc.collect()
    assert compiled == []
    assert Simulator.runs - runs <= 1  # another test may have traced it
    assert len(gc.get_objects()) - before < 100
