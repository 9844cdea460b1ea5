"""Models of flax.nnx and brainstate, and Refs, updated by one compiled function: `python -m benchmarks foreign`.

Each table has the time of one call over that of the hand-threaded one. The model is closed over, is `self` of a method,
or is an argument; the framework's own `jit` stands beside it. The last table has what it costs to read a variable
outside of every transform once this package has been used, over reading it before.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from rich.table import Table

from statetransform import transform

from . import report
from .timing import ratios

Run = Callable[[], Any]
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

    return {**three_ways(Model), "nnx.jit": _called(nnx.jit(Model.add), Model())}


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
    return {
        "closure": _called(transform.jit(lambda x: closed_over.add(x))),
        "self": _called(bound.jitted),
        "argument": _called(transform.jit(lambda model, x: model.add(x)), passed),
    }


def _called(fun: Callable[..., Any], *args: Any) -> Run:
    return lambda: fun(*args, X)


def foreign() -> None:
    """The tables for the frameworks that are installed."""
    kinds = {"flax.nnx": ("flax", of_nnx), "brainstate": ("brainstate", of_brainstate), "jax.Ref": ("jax", of_refs)}
    for title, (package, make) in kinds.items():
        if importlib.util.find_spec(package):
            _table(f"Cells of {title}: time of a compiled call that writes them all", make)
    if importlib.util.find_spec("flax"):
        _idle()


def _table(title: str, make: Callable[[int], dict[str, Run]]) -> None:
    rows = {}
    for n in SIZES:
        runs = {"by hand": by_hand(n), **make(n)}
        for name, run in runs.items():
            for _ in range(3 if name.endswith(".jit") else 40 + n // 2):  # until the way in of a call is written down
                run()
        rows[f"{n} cells"] = ratios(runs, "by hand", rounds=101 if n < SIZES[-1] else 15)
    names = list(rows[f"{SIZES[0]} cells"])
    table = Table(title=title)
    for name in ("", *names):
        table.add_column(name, justify="right" if name else "left")
    for label, row in rows.items():
        table.add_row(label, *[f"{row[name]:.2f}" for name in names])
    report.show(table)


_READING = """
import sys, time
from flax import nnx
import jax.numpy as jnp
v = nnx.Variable(jnp.zeros(3))
if sys.argv[1] == "with":
    import statetransform as st
    st.transform.jit(lambda: v[...] + 1)()
def seconds():
    start = time.perf_counter()
    for _ in range(2000):
        v.get_value()
    return time.perf_counter() - start
print(min(seconds() for _ in range(40)))
"""


def _idle() -> None:
    """Reading a variable outside of every transform, in processes that take turns."""
    best: dict[str, float] = {}
    for _ in range(5):
        for how in ("without", "with"):
            done = subprocess.run([sys.executable, "-c", _READING, how], capture_output=True, text=True, check=True)
            best[how] = min(float(done.stdout), best.get(how, float("inf")))
    table = Table(title="get_value() of a variable of flax.nnx outside of every transform")
    for name in ("", "without", "with this package"):
        table.add_column(name, justify="right" if name else "left")
    table.add_row("time", "1.00", f"{best['with'] / best['without']:.2f}")
    report.show(table)
