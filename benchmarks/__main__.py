"""Runs all benchmarks and prints one table for each: `make bench`.

Every number is a ratio to the hand-threaded JAX program (1.00), measured in turns in the same run. equinox, brainstate
and flax.nnx take part where they are installed. `python -m benchmarks dispatch cold` runs some of them only.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib.util
import os
import pathlib
import sys
import time
import types
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from rich.table import Table

import statetransform as st
from statetransform import State, transform
from statetransform._traces.large_stack import thread

from . import report, timing
from .dispatch import dispatch
from .eager import eager
from .examples import examples
from .foreign import foreign
from .layers import layers, simulators
from .loops import loops, replaced

Runs = dict[str, timing.Run]


def interleaved(runs: Runs, calls: int, rounds: int = 40) -> dict[str, float]:
    """Seconds of one call of each, measured in turns: the lower quartile of the rounds."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run(), run()
    for _ in range(rounds):
        for name, run in runs.items():
            times[name].append(timing.seconds_of(run, calls))
    return {name: sorted(found)[len(found) // 4] for name, found in times.items()}


def show(title: str, rows: dict[str, dict[str, float]], floor: str) -> None:
    """Prints a table of ratios to one column."""
    ratios = {label: {name: f"{taken / row[floor]:.3f}" for name, taken in row.items()} for label, row in rows.items()}
    timing.show(title, ratios)


class Model:
    """N scalar states, and a method that writes them all."""

    def __init__(self, n: int) -> None:
        self.cells = [State(jnp.float32(i)) for i in range(n)]

    @transform.jit
    def add(self, x: Any) -> None:
        for cell in self.cells:
            cell.value = cell.value + x


def by_hand(n: int) -> Callable[[], Any]:
    """The floor: a compiled function over a list of arrays, which is stored again."""
    held = {"values": [jnp.float32(i) for i in range(n)]}
    add = jax.jit(lambda values, x: [value + x for value in values])
    x = jnp.float32(1)

    def run() -> None:
        held["values"] = add(held["values"], x)

    return run


def with_brainstate(n: int) -> Callable[[], Any]:
    """The same with brainstate."""
    import brainstate

    cells = [brainstate.State(jnp.float32(i)) for i in range(n)]

    @brainstate.transform.jit
    def add(x: Any) -> None:
        for cell in cells:
            cell.value = cell.value + x

    x: Any = jnp.float32(1)
    return lambda: add(x)


def with_nnx(n: int) -> Callable[[], Any]:
    """The same with flax.nnx, whose states are passed in a module."""
    from flax import nnx

    class Module(nnx.Module):
        def __init__(self) -> None:
            self.cells = nnx.List([nnx.Variable(jnp.float32(i)) for i in range(n)])

    @nnx.jit
    def add(module: Any, x: Any) -> None:
        for cell in module.cells:
            cell[...] = cell[...] + x

    module, x = Module(), jnp.float32(1)
    return lambda: add(module, x)


def with_equinox(n: int) -> Callable[[], Any]:
    """The same with equinox, whose modules are immutable: the function returns a new one."""
    import equinox

    class Module(equinox.Module):
        cells: list[jax.Array]

    @equinox.filter_jit
    def add(module: Module, x: Any) -> Module:
        return equinox.tree_at(lambda module: module.cells, module, [cell + x for cell in module.cells])

    held, x = [Module([jnp.float32(i) for i in range(n)])], jnp.float32(1)

    def run() -> None:
        held[0] = add(held[0], x)

    return run


PEERS = {
    "equinox": ("equinox", with_equinox),
    "brainstate": ("brainstate", with_brainstate),
    "nnx": ("flax", with_nnx),
}


def _compiled(cells: list[State]) -> Callable[[Any], None]:
    """A compiled function that closes over states."""

    @transform.jit
    def add(x: Any) -> None:
        for cell in cells:
            cell.value = cell.value + x

    return add


def peers() -> None:
    """A compiled call on a known signature, with the peers beside it."""
    rows = {}
    for n in (1, 10, 100, 1000):
        function, model, x = _compiled(Model(n).cells), Model(n), jnp.float32(1)
        runs: Runs = {
            "by hand": by_hand(n),
            "function": lambda function=function, x=x: function(x),
            "method": lambda model=model, x=x: model.add(x),
        }
        for name, (package, make) in PEERS.items():
            if importlib.util.find_spec(package):
                runs[name] = make(n)
        rows[f"{n} state{'s' if n > 1 else ''}, all written"] = interleaved(runs, 2000 // n + 3)
    show("Dispatch and the peers: time of a compiled call", rows, "by hand")


def eager_checkpoint() -> None:
    """Second and later eager calls of a checkpointed function."""
    rows = {}
    for n in (1, 10, 100):
        cells, x = Model(n).cells, jnp.float32(1)
        held = {"values": [cell.value for cell in cells]}

        @jax.checkpoint
        def pure(values: Any, x: Any) -> Any:
            return jnp.sin(x), [value + x for value in values]

        def step(x: Any, cells: list[State] = cells) -> Any:
            for cell in cells:
                cell.value = cell.value + x
            return jnp.sin(x)

        ours = transform.checkpoint(lambda x, step=step: step(x))

        def run_pure(pure: Any = pure, held: Any = held, x: Any = x) -> None:
            _, held["values"] = pure(held["values"], x)

        runs: Runs = {"by hand": run_pure, "statetransform": lambda ours=ours, x=x: ours(x)}
        rows[f"{n} state{'s' if n > 1 else ''}"] = interleaved(runs, 200 // n + 2, rounds=20)
    show("Eager calls of a checkpointed function", rows, "by hand")


def _step(values: list[Any], x: Any) -> tuple[list[Any], Any]:
    """About 1000 equations over 120 states."""
    new, y = [], x
    for value in values:
        for _ in range(2):
            value = jnp.tanh(value * 0.5) + y * 0.1
        new.append(value)
        y = y * 0.9 + value.sum() * 0.01
    return new, y


def _hand_lowered() -> Any:
    step = jax.checkpoint(lambda values, x: _step(values, x))

    def loss(x: Any, values: Any) -> Any:
        (values, x), _ = jax.lax.scan(lambda c, _: (step(*c), None), (values, x), None, length=10)
        return x, values

    values = [jnp.ones(8) * i / 100 for i in range(120)]
    return lambda: jax.jit(jax.grad(loss, has_aux=True)).lower(1.0, values)


def _our_lowered() -> Any:
    cells = [State(jnp.ones(8) * i / 100) for i in range(120)]

    @transform.checkpoint
    def step(x: Any) -> Any:
        new, y = _step([cell.value for cell in cells], x)
        for cell, value in zip(cells, new, strict=True):
            cell.value = value
        return y

    loss = lambda x: transform.scan(lambda c, _: (step(c), None), x, None, length=10)[0]
    return lambda: transform.jit(transform.grad(loss)).lower(1.0)


def _without_room() -> Any:
    run = _our_lowered()

    def narrow() -> Any:
        thread.has_large_stack = True  # as if somebody above had made it
        try:
            return run()
        finally:
            thread.has_large_stack = False

    return narrow


def cold() -> None:
    """Trace and lowering of jit(grad(scan(checkpoint(step)))), over depths of the call stack; and what room brings.

    CPython's stack makes tracing slower at some depths, see `_traces/large_stack.py`.
    """
    makers = {"by hand": _hand_lowered, "statetransform": _our_lowered, "without room": _without_room}
    times: dict[str, dict[int, float]] = {name: {} for name in makers}
    for depth in (0, 8, 16, 24, 32, 40):
        for _ in range(2):
            for name, make in makers.items():
                run = make()
                start = time.perf_counter()
                _deep(depth, run)
                taken = time.perf_counter() - start
                del run  # with it go its traces, which functions of the same code would find
                gc.collect()
                times[name][depth] = min(taken, times[name].get(depth, taken))
    rows = {f"depth {depth}": {name: found[depth] for name, found in times.items()} for depth in times["by hand"]}
    rows["best depth"] = {name: min(found.values()) for name, found in times.items()}
    rows["mean over depths"] = {name: sum(found.values()) / len(found) for name, found in times.items()}
    show("Cold: trace and lowering of jit(grad(scan(checkpoint(step)))), 120 states", rows, "by hand")
    worst = {name: max(found.values()) / min(found.values()) for name, found in times.items()}
    print("Worst depth over best:", ", ".join(f"{name} {ratio:.2f}" for name, ratio in worst.items()))
    print("First call of jit(grad(f)), where f reads a state: {} functions of the package, {} calls".format(*_walked()))


def _walked() -> tuple[int, int]:
    """How many functions of the package a first call runs, and in how many calls."""
    u, x, folder = State(jnp.float32(1)), jnp.float32(2), os.path.dirname(st.__file__)
    first = transform.jit(transform.grad(lambda x: u.value * x))
    found: list[types.CodeType] = []
    sys.setprofile(lambda frame, event, _: found.append(frame.f_code) if event == "call" else None)
    first(x)
    sys.setprofile(None)
    own = [code for code in found if code.co_filename.startswith(folder)]
    return len(set(own)), len(own)


def _deep(depth: int, run: Callable[[], Any]) -> Any:
    return run() if depth == 0 else _deep(depth - 1, run)


def same_program() -> None:
    """The compiled programs of six stateful functions over those of their hand-threaded twins."""
    sys.path.insert(0, ".")
    from tests.cases import BY_NAME
    from tests.guarantees.test_5_same_program import PROGRAMS, compile_both

    table = Table(title="Same program: statetransform over by hand")
    for column in ("program", "FLOPs", "bytes accessed", "temporary bytes", "instructions"):
        table.add_column(column, justify="left" if column == "program" else "right")
    for name, transforms in PROGRAMS:
        ours, twin = compile_both(BY_NAME[name], transforms)
        pairs = [(ours.cost_analysis()[key], twin.cost_analysis()[key]) for key in ("flops", "bytes accessed")]
        pairs.append((timing.temporary_bytes(ours), timing.temporary_bytes(twin)))
        pairs.append((ours.as_text().count(" = "), twin.as_text().count(" = ")))
        ratios = [f"{a / b:.3f}" if b else ("1.000" if a == b else "inf") for a, b in pairs]
        table.add_row(f"{' of '.join(transforms)} of {name}", *ratios)
    report.show(table)


TABLES = (dispatch, peers, foreign, layers, simulators, eager, eager_checkpoint, cold, same_program)
BY_NAME = {benchmark.__name__: benchmark for benchmark in (*TABLES, loops, replaced, examples)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    names = ", ".join(BY_NAME)
    parser.add_argument("benchmarks", nargs="*", help=f"which to run: {names}; all, if none is named")
    parser.add_argument("--report", type=pathlib.Path, help="writes the tables to this page of the documentation, too")
    parser.add_argument("--pages", type=pathlib.Path, nargs="+", help="puts the tables that they show up to date")
    options = parser.parse_args()
    chosen = options.benchmarks
    if unknown := [name for name in chosen if name not in BY_NAME]:
        parser.error(f"no benchmark is called {unknown[0]!r}. There are {names}.")
    print(f"JAX {jax.__version__} on {jax.default_backend()}, statetransform {st.__version__}")
    for name, benchmark in BY_NAME.items():
        if not chosen or name in chosen:
            with contextlib.suppress(KeyboardInterrupt):
                benchmark()
    if options.report is not None:
        report.write(options.report, is_all=not chosen)
    for page in options.pages or ():
        page.write_text(report.refreshed(page.read_text()))


if __name__ == "__main__":
    main()
