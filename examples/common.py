"""What the examples share: options, what a compiled step takes, tables, pictures."""

from __future__ import annotations

import argparse
import pathlib
import time
from typing import Any

import jax
import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt


def parser(doc: str | None) -> argparse.ArgumentParser:
    """A parser with the example's own text and `--out`."""
    found = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    found.add_argument(
        "--out",
        type=pathlib.Path,
        default=pathlib.Path("out"),
        help="folder for the picture",
    )
    return found


def temporary_bytes(compiled: Any, *args: Any) -> int:
    """Temporary memory of a function made by `transform.jit`."""
    return compiled.lower(*args).compile().memory_analysis().temp_size_in_bytes


def measure(jitted: Any, *args: Any, times: int = 3) -> tuple[float, float]:
    """Temporary memory in MB and shortest time in ms of what `transform.jit` has made."""
    compiled, found = jitted.lower(*args).compile(), []
    for _ in range(times + 1):  # the first one warms up
        start = time.perf_counter()
        jax.block_until_ready(compiled(*args))
        found.append(time.perf_counter() - start)
    return compiled.memory_analysis().temp_size_in_bytes / 1e6, 1e3 * min(found[1:])


def show(columns: list[str], rows: list[tuple[Any, ...]]) -> None:
    """Prints a table in Markdown: text in the first column, numbers in the others."""
    cells = [columns, *[[row[0], *[f"{cell:.1f}" for cell in row[1:]]] for row in rows]]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    rule = [f":{'-' * (widths[0] - 1)}", *[f"{'-' * (width - 1)}:" for width in widths[1:]]]
    print()
    for first, *others in (cells[0], rule, *cells[1:]):
        right = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        print(f"| {' | '.join([first.ljust(widths[0]), *right])} |")
    print(flush=True)


def save(folder: pathlib.Path, example: str) -> None:
    """Writes the current figure as a picture with the example's name."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{pathlib.Path(example).stem}.png"
    plt.savefig(path, dpi=110)
    plt.close()
    print(f"picture: {path}")
