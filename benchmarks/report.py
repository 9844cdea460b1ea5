"""Keeps the tables of a run, and writes them as the page of the documentation: `python -m benchmarks --report FILE`.

A file holds the tables of all runs by title: a run that makes some of them again replaces these, and leaves the others
as they were, each with its date. The JSON file beside the page holds the same numbers. A run of all benchmarks starts
anew. `--pages FILE` puts the tables of this run into a file that shows older figures of the same tables.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import platform
import sys
from typing import Any

import jax
from rich.console import Console
from rich.table import Table

PEERS = ("brainstate", "nnx", "flax", "equinox", "nested by hand")
PACKAGES = ("jax", "jaxlib", "numpy", "brainstate", "flax", "equinox")
WALL, TIMES = "wall over plain", ("trace + lower", "time")
FLOORS = {"wall time": "the plain scan"}
tables: dict[str, dict[str, Any]] = {}


def show(table: Table) -> None:
    """Prints a table, and keeps it for the report."""
    Console(width=120).print(table)
    cells = [[str(cell) for cell in column.cells] for column in table.columns]
    rows = [list(row) for row in zip(*cells, strict=True)]
    keep(str(table.title), [str(column.header) for column in table.columns], rows)


def keep(title: str, columns: list[str], rows: list[list[str]]) -> None:
    """Keeps a table for the report."""
    tables[title] = {"columns": columns, "rows": rows, **surroundings()}


def surroundings() -> dict[str, str]:
    """When, where and with what a table was measured."""
    versions = [
        f"{name} {importlib.metadata.version(name)}" for name in PACKAGES if importlib.util.find_spec(name) is not None
    ]
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "versions": ", ".join([f"Python {platform.python_version()}", *versions]),
        "machine": f"{os.cpu_count()} cores, {_processor()}, {jax.default_backend()} backend",
    }


def _processor() -> str:
    """The processor's name, as Linux knows it."""
    info = pathlib.Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next(iter(names), platform.machine())


def ratio(text: str) -> float | None:
    """The number in a cell."""
    try:
        return float(text)
    except ValueError:
        return None


def times(table: dict[str, Any]) -> dict[str, dict[str, float]]:
    """The ratios of a table by what was measured and who took part, whether these are columns or rows."""
    columns, rows = table["columns"], table["rows"]
    if any(name.startswith(PEERS) for name in columns):
        found = {row[0]: zip(columns[1:], row[1:], strict=True) for row in rows}
    elif WALL in columns:  # of loops; what is compared stores few carries
        place = columns.index(WALL)
        few = [row for row in rows if row[0].startswith(("checkpoint=", *PEERS))]
        found = {"wall time": [(row[0], row[place]) for row in few]}
    else:  # who took part is named in the rows, behind what was measured, if that is more than one thing
        found = {}
        for name in TIMES:
            for row in rows if name in columns else ():
                what, _, who = row[0].rpartition(", ")
                found.setdefault(what or name, []).append((who, row[columns.index(name)]))
    return {
        what: {name: number for name, cell in pairs if (number := ratio(cell)) is not None}
        for what, pairs in found.items()
    }


def faster_peers(title: str, table: dict[str, Any]) -> list[str]:
    """A sentence for each row in which a peer is faster than the best of ours."""
    found = []
    for what, by_name in times(table).items():
        peers = {name for name in by_name if name.startswith(PEERS)}
        best = min((by_name[name] for name in by_name if name not in {*peers, "by hand"}), default=None)
        found += [
            f"{title}; {what} over {FLOORS.get(what, 'by hand')}: {name} {by_name[name]:.2f}, "
            f"statetransform {best:.2f}."
            for name in sorted(peers)
            if best is not None and by_name[name] < best
        ]
    return found


def markdown(kept: dict[str, dict[str, Any]]) -> str:
    """The part of the page that is measured: what peers do faster, the surroundings, and the tables, folded."""
    slower = [sentence for title, table in kept.items() for sentence in faster_peers(title, table)]
    said = [f"- {sentence}" for sentence in slower] or ["In none of the rows measured."]
    parts = [
        "<!-- Written by `make bench`; changes are lost. -->",
        "\n".join(["## Where a peer is faster", "", *said]),
        "## All tables",
        *surroundings_of(kept),
    ]
    for title, table in kept.items():
        parts.append("\n".join([f"::::{{dropdown}} {title}", "", *lines_of(table), "::::"]))
    return "\n\n".join(parts) + "\n"


def surroundings_of(kept: dict[str, dict[str, Any]]) -> list[str]:
    """Where and when the tables were measured: each machine with its versions once."""
    dates: dict[str, set[str]] = {}
    for table in kept.values():
        dates.setdefault(f"{table['machine']}, {table['versions']}", set()).add(table["date"])
    return [f"Measured on {_between(found)}: {where}." for where, found in dates.items()]


def _between(dates: set[str]) -> str:
    return min(dates) if len(dates) == 1 else f"{min(dates)} to {max(dates)}"


def lines_of(table: dict[str, Any]) -> list[str]:
    """A table in Markdown, with numbers on the right."""
    rule = [":---", *["---:"] * (len(table["columns"]) - 1)]
    return [f"| {' | '.join(row)} |" for row in (table["columns"], rule, *table["rows"])]


def cells_of(line: str) -> list[str]:
    """The cells of a line of Markdown's tables."""
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def refreshed(text: str) -> str:
    """A text in Markdown with the tables of this run in the place of those with the same columns."""
    by_columns = {tuple(table["columns"]): table for table in tables.values()}
    lines, found, i = text.split("\n"), [], 0
    while i < len(lines):
        table = by_columns.get(tuple(cells_of(lines[i]))) if lines[i].startswith("|") else None
        if table is None:
            found.append(lines[i])
            i += 1
            continue
        found += lines_of(table)
        while i < len(lines) and lines[i].startswith("|"):
            i += 1
    return "\n".join(found)


def write(path: pathlib.Path, is_all: bool = False) -> None:
    """Writes the tables of this run to a page and to the JSON beside it; a run of all leaves no others there."""
    data = path.with_suffix(".json")
    kept = json.loads(data.read_text()) if data.exists() and not is_all else {}
    kept.update(tables)
    data.write_text(json.dumps(kept, indent=1) + "\n")
    path.write_text(markdown(kept))
    print(f"wrote {path} and {data}", file=sys.stderr)
