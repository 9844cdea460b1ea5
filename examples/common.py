"""What the examples share: options, what a compiled step takes, where the picture goes."""

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


def measure(jitted: Any, *args: Any, times: int = 3) -> tuple[int, float]:
    """Temporary memory and shortest time of what `transform.jit` has made. Runs it."""
    compiled, found = jitted.lower(*args).compile(), []
    for _ in range(times + 1):  # the first one warms up
        start = time.perf_counter()
        jax.block_until_ready(compiled(*args))
        found.append(time.perf_counter() - start)
    return compiled.memory_analysis().temp_size_in_bytes, min(found[1:])


def show(what: str, rows: list[tuple[str, int, float]]) -> None:
    """Prints memory and time of some ways to do the same, as a table in Markdown."""
    print(f"\n| {what:22} | memory, MB | time, s |\n|:{'-' * 23}|{'-' * 11}:|{'-' * 8}:|")
    for label, size, time_of in rows:
        print(f"| {label:22} | {size / 1e6:10.1f} | {time_of:7.3f} |")
    print()


def save(folder: pathlib.Path, example: str) -> None:
    """Writes the current figure as a picture with the example's name."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{pathlib.Path(example).stem}.png"
    plt.savefig(path, dpi=110)
    plt.close()
    print(f"picture: {path}")
