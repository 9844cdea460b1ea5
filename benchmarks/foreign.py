"""Models of flax.nnx and brainstate, and Refs, updated by one compiled function: `python -m benchmarks foreign`.

Each table has the time of one call over that of the hand-threaded one. The model is closed over, is `self` of a method,
or is an argument; beside it is the framework's own `jit`, and for flax `jax.jit` of a function that merges what
`nnx.split` gave. The last two tables have the time to trace and lower the gradient of fifty layers, and what it costs
to read a variable outside of every transform once this package has been used, over reading it before.
"""

from __future__ import annotations

import importlib.util
import statistics
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from statetransform import transform

from .layers import N_LAYERS, WIDTH, parameters, work
from .layers import by_hand as layers_by_hand
from .timing import Run, ratios, seconds_of, show

SIZES = (10, 100, 1000)
X = jnp.float32(1)


def by_hand(n: int) -> Run:
    """The floor: a compiled function over a list of arrays, which is stored again."""
    held = {"values": [jnp.float32(i) for i in range(n)]}
    add = jax.jit(lambda values, x: [value + x for value in values])

    def run() -> None:
        held["values"] = add(held["values"], X)

    return run


def of_nnx(n: int) -> dict[str, Run]:
    """A module with N variables."""
    from flax import nnx

    class Model(nnx.Module):
        def __init__(self) -> None:
            self.cells = nnx.List([nnx.Variable(jnp.float32(i)) for i in range(n)])

        def add(self, x: Any) -> None:
            for cell in self.cells:
                cell[...] = cell[...] + x

        jitted = transform.jit(add)

    graph, state = nnx.split(Model())
    held = {"state": state}

    @jax.jit
    def merged(state: Any, x: Any) -> Any:
        model = nnx.merge(graph, state)
        model.add(x)
        return nnx.state(model)

    def split() -> None:
        held["state"] = merged(held["state"], X)

    return {**three_ways(Model), "nnx.split, jax.jit": split, "nnx.jit": _called(nnx.jit(Model.add), Model())}


def of_brainstate(n: int) -> dict[str, Run]:
    """An object with N states of brainstate."""
    import brainstate

    class Model:
        def __init__(self) -> None:
            self.cells = [brainstate.State(jnp.float32(i)) for i in range(n)]

        def add(self, x: Any) -> None:
            for cell in self.cells:
                cell.value = cell.value + x

        jitted = transform.jit(add)

    return {**three_ways(Model), "brainstate.jit": _called(brainstate.transform.jit(Model().add))}


def of_refs(n: int) -> dict[str, Run]:
    """An object with N Refs."""

    class Model:
        def __init__(self) -> None:
            self.cells = [jax.new_ref(jnp.float32(i)) for i in range(n)]

        def add(self, x: Any) -> None:
            for cell in self.cells:
                cell[...] = cell[...] + x

        jitted = transform.jit(add)

    return {**three_ways(Model), "jax.jit": _called(jax.jit(Model().add))}


def three_ways(kind: type) -> dict[str, Run]:
    """A model that is closed over, that is `self`, and that is an argument."""
    closed_over, bound, passed = kind(), kind(), kind()
    by_closure = transform.jit(lambda x: closed_over.add(x))
    by_argument = transform.jit(lambda model, x: model.add(x))
    return {
        "closure": _settled(by_closure, _called(by_closure)),
        "self": _settled(kind.jitted, _called(bound.jitted)),  # type: ignore[attr-defined]
        "argument": _settled(by_argument, _called(by_argument, passed)),
    }


def _called(fun: Callable[..., Any], *args: Any) -> Run:
    return lambda: fun(*args, X)


def _settled(jitted: Any, run: Run) -> Run:
    """Calls until the way in is written down, which takes up to a hundred calls."""
    run()
    while any(program.way_in is None for program in jitted._store.programs):
        run()
    return run


def foreign() -> None:
    """The tables for the frameworks that are installed."""
    kinds = {"flax.nnx": ("flax", of_nnx), "brainstate": ("brainstate", of_brainstate), "jax.Ref": ("jax", of_refs)}
    for title, (package, make) in kinds.items():
        if importlib.util.find_spec(package):
            _table(f"Cells of {title}: time of a compiled call that writes them all", make)
    if importlib.util.find_spec("flax"):
        _layers()
        _idle()


def _table(title: str, make: Callable[[int], dict[str, Run]]) -> None:
    rows = {}
    for n in (*SIZES, 7600) if make is of_nnx else SIZES:
        runs = {"by hand": by_hand(n), **make(n)}
        for run in runs.values():
            for _ in range(3):
                run()
        rows[f"{n} cells"] = ratios(runs, "by hand", rounds=101 if n < 1000 else 15)
    _show(title, rows)


def _show(title: str, rows: dict[str, dict[str, float]]) -> None:
    show(title, {label: {name: f"{found:.2f}" for name, found in row.items()} for label, row in rows.items()})


def _layers() -> None:
    """Trace and lowering of the gradient of equal layers, made anew for each time that is taken."""
    from flax import nnx

    class Layer(nnx.Module):
        def __init__(self) -> None:
            self.w, self.b = map(nnx.Param, parameters())

        def __call__(self, x: Any) -> Any:
            return work(self.w[...], self.b[...], x)

    def ours(around: Callable[..., Any]) -> Run:
        layers = [Layer() for _ in range(N_LAYERS)]

        def loss(x: Any) -> Any:
            for layer in layers:
                x = around(layer)(x)
            return x.sum()

        states = [layer.w for layer in layers] + [layer.b for layer in layers]
        return lambda: transform.jit(transform.grad(loss, states=states)).lower(jnp.ones(WIDTH))

    plain = lambda fun: fun
    rows = {}
    for label, around, by_jax in (
        ("", plain, plain),
        (", each checkpointed", transform.checkpoint, jax.checkpoint),
    ):
        pairs = []
        for _ in range(8):
            jax.clear_caches()
            by_hand, by_us = seconds_of(layers_by_hand(by_jax, [0])), seconds_of(ours(around))
            pairs.append(by_us / by_hand)
        rows[f"{N_LAYERS} layers{label}"] = {"by hand": 1.0, "statetransform": statistics.median(pairs)}
    _show("Modules of flax.nnx: trace and lowering of jit(grad(...))", rows)


_READING = """
import time
from flax import nnx
import jax.numpy as jnp
import statetransform as st
def read():
    best = float("inf")
    for _ in range(300):
        start = time.perf_counter()
        for _ in range(500):
            v.get_value()
        best = min(best, time.perf_counter() - start)
    return best
v = nnx.Variable(jnp.zeros(3))
read()
before = read()
st.transform.jit(lambda: v[...] + 1)()
print(read() / before)
"""


def _idle() -> None:
    """Reading a variable outside of every transform, before and after a function over it was compiled."""
    ratios = []
    for _ in range(7):
        done = subprocess.run([sys.executable, "-c", _READING], capture_output=True, text=True, check=True)
        ratios.append(float(done.stdout))
    row = {"before": 1.0, "after": statistics.median(ratios)}
    _show("get_value() of a variable of flax.nnx, before and after this package has lifted it", {"time": row})
