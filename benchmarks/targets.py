"""Loops, functions and real models under budgets, as the compilers of GPUs and TPUs see them: no card is needed.

    python -m benchmarks.targets --cards H100 v5e:2x2 cpu --programs loops vit resnet --out targets.json

Each row is one program, one way to run its gradient step and one target: temporary bytes as compiled, FLOPs counted
before compilation, the compiler's estimate of time (TPUs), and seconds to plan and compile.
What the compiler refuses for want of memory has the bytes that it names, and `refused`. `--report docs/measured.md`
puts them on the page of the documentation, those of several files with `--rows`.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import json
import pathlib
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from typing import Any

import jax
import jax.numpy as jnp

import statetransform as st
from statetransform import inspect, policies, transform

from . import report
from .model_programs import MODELS

STEPS = 400
PACKAGES = ("jax", "jaxlib", "jax-cuda12-pjrt", "libtpu")
Rows = Iterator[dict[str, Any]]


def _row(card: str, program: str, way: str, f: Callable[..., Any], args: Any, argnums: Any = None) -> dict[str, Any]:
    """One program, as compiled for a target; errors of budgets are rows as well."""
    start, target = time.perf_counter(), None if card == "cpu" else card
    row: dict[str, Any] = {"target": card, "program": program, "way": way}
    try:
        compared = inspect.compare({"it": f}, *args, argnums=argnums, target=target)
    except (st.BudgetError, jax.errors.JaxRuntimeError) as error:
        return {**row, "error": f"{type(error).__name__}: {error}"[:300], "planning": time.perf_counter() - start}
    found = compared["it"]
    return {
        **row,
        "bytes": found.temporary_bytes,
        "flops": found.flops,
        "refused": found.is_refused,
        "seconds": found.seconds,
        "planning": time.perf_counter() - start,
        "warnings": [note for note in compared.notes if "no plan fits" in note],
    }


def loops(card: str) -> Rows:
    """A loop of 400 steps of a stencil: plain, with twenty carries, and with budgets."""
    rows = 1 << (25 if card.startswith("v") else 20)
    size = 4 * rows
    laplacian = lambda c: jnp.roll(c, 1) + jnp.roll(c, -1) - 2 * c

    def loop(checkpoint: Any) -> Callable[..., Any]:
        def f(r: Any, u0: Any) -> Any:
            step = lambda c, _: (jnp.sin(c + 0.1 * laplacian(c)) * r, None)
            return (transform.scan(step, u0, length=STEPS, checkpoint=checkpoint)[0] ** 2).sum()

        return f

    args = jax.ShapeDtypeStruct((), jnp.float32), jax.ShapeDtypeStruct((rows,), jnp.float32)
    ways = {"plain": None, "20 carries": 20, "sqrt": "sqrt", "log": "log"}
    ways |= {f"budget of {n} carries": st.MemoryBudget(n * size) for n in (12, 48)}
    for way, checkpoint in ways.items():
        row = _row(card, "loop", way, loop(checkpoint), args)
        yield {**row, "carries": row.get("bytes") and row["bytes"] / size}


def model(card: str, name: str) -> Rows:
    """A model: plain, by hand with and without products, and within a half and a quarter of the plain bytes."""
    target = None if card == "cpu" else card
    ways = {
        "plain": lambda f: f,
        "by hand": transform.checkpoint,
        "by hand, products kept": lambda f: transform.checkpoint(f, policy=policies.dots_with_no_batch_dims_saveable),
    }
    plain = None
    for way, around in ways.items():
        f, args = MODELS[name](around)
        yield (row := _row(card, name, way, f, args, argnums=0))
        plain = row.get("bytes") if way == "plain" else plain
    for share in (0.5, 0.25):
        f, args = MODELS[name](lambda f: f)
        budget = policies.fit(int(share * (plain or 0)) or "1GB", target=target)
        yield _row(card, name, f"{share:g} of plain", transform.checkpoint(f, policy=budget), args, argnums=0)


def dense(card: str) -> Rows:
    """Twelve dense layers whose gradient step is too large for a TPU v5e: plain, one checkpoint, within 10 GB."""
    target = None if card == "cpu" else card

    def loss(weights: Any, x: Any) -> Any:
        for w in weights:
            x = jnp.tanh(x @ w)
        return (x * x).sum()

    weights = [jax.ShapeDtypeStruct((4096, 4096), jnp.float32)] * 12
    args = weights, jax.ShapeDtypeStruct((1 << 17, 4096), jnp.float32)
    yield _row(card, "dense", "plain", loss, args, argnums=0)
    yield _row(card, "dense", "by hand", transform.checkpoint(loss), args, argnums=0)
    planned = transform.checkpoint(loss, policy=policies.fit("10GB", target=target))
    yield _row(card, "dense", "within 10GB", planned, args, argnums=0)


PROGRAMS: dict[str, Callable[[str], Rows]] = {
    "loops": loops,
    "dense": dense,
    **{name: functools.partial(model, name=name) for name in MODELS},
}


def measured(cards: list[str], programs: list[str]) -> Rows:
    """All rows; each is printed as it comes, as some take minutes."""
    for card in cards:
        for program in programs:
            for row in PROGRAMS[program](card):
                print(json.dumps(row), flush=True)
                yield row


def versions() -> dict[str, str]:
    """Those of the compilers."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


COLUMNS = [
    "gradient, target",
    "temporary MB",
    "in carries",
    "FLOPs over plain",
    "compiler's estimate, s",
    "planned and compiled in, s",
]


def table(rows: list[dict[str, Any]]) -> list[list[str]]:
    """The rows of a program as the cells of a table; what a compiler refuses or a budget cannot meet says so."""
    plain = {row["target"]: row["flops"] for row in rows if row["way"] == "plain" and row.get("flops")}
    found = []
    for row in rows:
        shown = lambda value, form: "" if value is None else format(value, form)
        size = row.get("bytes")
        said = " (refused)" if row.get("refused") else " (above the budget)" if row.get("warnings") else ""
        size = "no plan" if size is None else f"{size / 1e6:,.0f}{said}"
        work = row["flops"] / plain[row["target"]] if row.get("flops") and row["target"] in plain else None
        cells = [shown(row.get("carries"), ".1f"), shown(work, ".3f"), shown(row.get("seconds"), ".3g")]
        found.append([f"{row['way']}, {row['target']}", size, *cells, f"{row['planning']:.1f}"])
    return found


def publish(found: dict[str, Any], page: pathlib.Path) -> None:
    """Puts the rows of a run into the page of measured tables."""
    rows = found["rows"]
    for program in dict.fromkeys(row["program"] for row in rows):
        title = f"python -m benchmarks.targets --programs {'loops' if program == 'loop' else program}"
        report.keep(title, COLUMNS, table([row for row in rows if row["program"] == program]))
        named = [f"{name} {version}" for name, version in found["versions"].items()]
        report.tables[title] |= {"date": found["date"], "versions": ", ".join(named)}
        report.tables[title]["machine"] = "compiled on 2 cores of a CPU for cards that are not there"
    report.write(page)


def main() -> None:
    """Measures, and writes the rows with versions and date."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cards = ["cpu", "H100", "v5e:2x2"]
    parser.add_argument("--cards", nargs="+", default=cards, help="names that `st.target` takes, or cpu")
    parser.add_argument("--programs", nargs="+", choices=PROGRAMS, default=[*PROGRAMS], help="which to compile")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("targets.json"), help="a file for the rows")
    parser.add_argument("--report", type=pathlib.Path, help="puts the rows on this page of the documentation")
    parser.add_argument("--rows", type=pathlib.Path, nargs="+", help="rows printed by earlier runs, to report alone")
    options = parser.parse_args()
    if options.rows:
        lines = [line for path in options.rows for line in path.read_text().splitlines() if line.startswith("{")]
        rows = [json.loads(line) for line in lines]
    else:
        rows = list(measured(options.cards, options.programs))
    found = {"date": str(datetime.date.today()), "versions": versions(), "rows": rows}
    options.out.write_text(json.dumps(found, indent=1))
    if options.report:
        publish(found, options.report)


if __name__ == "__main__":
    main()
