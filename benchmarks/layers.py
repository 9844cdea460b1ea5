"""Equal layers and equal objects: `python -m benchmarks.layers`.

Fifty equal layers in `jit(grad(...))`: how often the body runs, the time to trace and lower over that of the
hand-threaded program, and the functions in the lowered program. Twenty simulators of one class stepped by one jitted
method: compilations, and seconds until each has made its first step.
"""

from __future__ import annotations

import gc
import importlib.util
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.monitoring
import jax.numpy as jnp

from statetransform import Param, State, transform

from .timing import show

N_LAYERS = 50
N_SIMULATORS = 20
WIDTH = 16
_COMPILATION = "/jax/core/compile/backend_compile_duration"
_compilations: list[str] = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, *_, **__: _compilations.append(event) if event == _COMPILATION else None
)


@contextmanager
def compilations() -> Iterator[list[int]]:
    """Counts what is compiled; the first element afterwards."""
    before, count = len(_compilations), [0]
    yield count
    count[0] = len(_compilations) - before


def work(w: Any, b: Any, x: Any) -> Any:
    """A layer: ten equations and a matrix product."""
    y = jnp.tanh(x @ w + b)
    return x + y * jax.nn.sigmoid(y) - 0.1 * jnp.sin(x)


def parameters() -> tuple[Any, Any]:
    return jnp.eye(WIDTH) / 2, jnp.zeros(WIDTH)


def by_hand(around: Callable[..., Any], runs: list[int]) -> Callable[[], Any]:
    """The program over lists of arrays."""

    @around
    def layer(w: Any, b: Any, x: Any) -> Any:
        runs[0] += 1
        return work(w, b, x)

    def loss(held: Any, x: Any) -> Any:
        for w, b in held:
            x = layer(w, b, x)
        return x.sum()

    held = [parameters() for _ in range(N_LAYERS)]
    return lambda: jax.jit(jax.grad(loss)).lower(held, jnp.ones(WIDTH))


def ours(around: Callable[..., Any], runs: list[int]) -> Callable[[], Any]:
    """The same over states, each layer with a name of its own."""
    around = {jax.jit: transform.jit, jax.checkpoint: transform.checkpoint}[around]

    class Layer:
        def __init__(self, i: int) -> None:
            w, b = parameters()
            self.w, self.b, self.name = Param(w), Param(b), f"layer {i}"

        @around
        def __call__(self, x: Any) -> Any:
            runs[0] += 1
            return work(self.w.value, self.b.value, x)

    layers = [Layer(i) for i in range(N_LAYERS)]

    def loss(x: Any) -> Any:
        for layer in layers:
            x = layer(x)
        return x.sum()

    states = [[layer.w, layer.b] for layer in layers]
    return lambda: transform.jit(transform.grad(loss, states=states)).lower(jnp.ones(WIDTH))


def with_nnx(around: Callable[..., Any], runs: list[int]) -> Callable[[], Any]:
    """The same with flax.nnx."""
    from flax import nnx

    @{jax.jit: nnx.jit, jax.checkpoint: nnx.remat}[around]
    def call(layer: Any, x: Any) -> Any:
        runs[0] += 1
        return work(layer.w[...], layer.b[...], x)

    class Layer(nnx.Module):
        def __init__(self) -> None:
            w, b = parameters()
            self.w, self.b = nnx.Param(w), nnx.Param(b)

    class Model(nnx.Module):
        def __init__(self) -> None:
            self.layers = nnx.List([Layer() for _ in range(N_LAYERS)])

    def loss(model: Any, x: Any) -> Any:
        for layer in model.layers:
            x = call(layer, x)
        return x.sum()

    model = Model()
    return lambda: nnx.jit(nnx.grad(loss)).lower(model, jnp.ones(WIDTH))


def layers(rounds: int = 7) -> None:
    """The table of equal layers; wanted is 1.15."""
    makers = {"by hand": by_hand, "statetransform": ours}
    if importlib.util.find_spec("flax"):
        makers["flax.nnx"] = with_nnx
    rows: dict[str, dict[str, str]] = {}
    for kind, around in (("jit", jax.jit), ("checkpoint", jax.checkpoint)):
        found: dict[str, list[float]] = {name: [] for name in makers}
        counts: dict[str, tuple[int, int]] = {}
        for i in range(rounds + 1):
            seconds = {}
            for name, make in makers.items():
                runs = [0]
                run = make(around, runs)
                gc.collect()
                start = time.perf_counter()
                lowered = run()
                seconds[name] = time.perf_counter() - start
                counts[name] = runs[0], lowered.as_text().count("func.func")
            for name, taken in seconds.items() if i else ():  # the first round imports and fills JAX's own caches
                found[name].append(taken / seconds["by hand"])
        for name, ratios in found.items():
            rows[f"layer under {kind}, {name}"] = {
                "body runs": str(counts[name][0]),
                "trace + lower": f"{statistics.median(ratios):.2f}",
                "functions": str(counts[name][1]),
            }
    show(f"{N_LAYERS} equal layers in jit(grad(...)), time over the program by hand", rows)


def simulate(u: Any, v: Any, dt: Any) -> tuple[Any, Any]:
    """One step of a simulator."""
    v = v + dt * (jnp.roll(u, 1) + jnp.roll(u, -1) - 2 * u)
    return u + dt * v, v


def simulators(rounds: int = 5) -> None:
    """Many objects of one class stepped by one jitted method."""
    makers = {"by hand": _stepped_by_hand, "statetransform": _stepped}
    if importlib.util.find_spec("flax"):
        makers["flax.nnx"] = _stepped_with_nnx
    found: dict[str, list[float]] = {name: [] for name in makers}
    counts: dict[str, int] = {}
    for i in range(rounds + 1):
        seconds = {}
        for name, make in makers.items():
            run = make()
            gc.collect()
            with compilations() as count:
                start = time.perf_counter()
                jax.block_until_ready(run())
                seconds[name] = time.perf_counter() - start
            counts[name] = count[0]
        for name, taken in seconds.items() if i else ():
            found[name].append(taken / seconds["by hand"])
    rows = {
        name: {"compilations": str(counts[name]), "time": f"{statistics.median(ratios):.2f}"}
        for name, ratios in found.items()
    }
    show(f"Time to the first step of each of {N_SIMULATORS} simulators of one class, with one jitted method", rows)


def _stepped_by_hand() -> Callable[[], Any]:
    step = jax.jit(lambda u, v, dt: simulate(u, v, dt))
    held = [(jnp.ones(64) * i, jnp.zeros(64)) for i in range(N_SIMULATORS)]
    dt = jnp.float32(0.1)
    return lambda: [step(u, v, dt) for u, v in held]


def _stepped() -> Callable[[], Any]:
    class Simulator:
        def __init__(self, i: int) -> None:
            self.u, self.v, self.index = State(jnp.ones(64) * i), State(jnp.zeros(64)), i

        @transform.jit
        def step(self, dt: Any) -> None:
            self.u.value, self.v.value = simulate(self.u.value, self.v.value, dt)

    held, dt = [Simulator(i) for i in range(N_SIMULATORS)], jnp.float32(0.1)

    def run() -> Any:
        for simulator in held:
            simulator.step(dt)
        return [simulator.u.value for simulator in held]

    return run


def _stepped_with_nnx() -> Callable[[], Any]:
    from flax import nnx

    class Simulator(nnx.Module):
        def __init__(self, i: int) -> None:
            self.u, self.v = nnx.Variable(jnp.ones(64) * i), nnx.Variable(jnp.zeros(64))

        @nnx.jit
        def step(self, dt: Any) -> None:
            self.u[...], self.v[...] = simulate(self.u[...], self.v[...], dt)

    held, dt = [Simulator(i) for i in range(N_SIMULATORS)], jnp.float32(0.1)

    def run() -> Any:
        for simulator in held:
            simulator.step(dt)  # pyright: ignore[reportCallIssue]  # flax gives methods the type of functions
        return [simulator.u[...] for simulator in held]

    return run


if __name__ == "__main__":
    layers()
    simulators()
