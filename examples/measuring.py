"""What the other examples measure: memory and time of a program, in several ways."""

from __future__ import annotations

import statistics
import time

import jax
import numpy as np


def measure(ways: dict, *args, rounds: int = 5) -> dict[str, tuple[float, str]]:
    """Temporary memory in MB of jitted functions, and their time over that of the first.

    All run in turns, so what else the machine does slows all of them alike. The time is
    that of the processor: the median over the rounds, the least and the most.
    """
    programs = {name: way.lower(*args).compile() for name, way in ways.items()}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds + 1):  # the first one warms up
        for name, program in programs.items():
            start = time.process_time()
            jax.block_until_ready(program(*args))
            times[name].append(time.process_time() - start)
    first, found = next(iter(times.values())), {}
    for name, program in programs.items():
        ratios = [x / y for x, y in zip(times[name][1:], first[1:], strict=True)]
        least, middle, most = min(ratios), statistics.median(ratios), max(ratios)
        spread = (
            "1" if first is times[name] else f"{middle:.1f} ({least:.1f} to {most:.1f})"
        )
        found[name] = program.memory_analysis().temp_size_in_bytes / 1e6, spread
    return found


def deviation(x: np.ndarray, plain: np.ndarray) -> str:
    """The greatest difference, relative to the greatest value."""
    return f"{np.abs(x - plain).max() / np.abs(plain).max():.0e}"


def show(columns: list[str], rows: list[tuple]) -> None:
    """Prints a table in Markdown."""
    lines = [columns, [":---", *["---:"] * (len(columns) - 1)]]
    text = lambda cell: cell if isinstance(cell, str) else f"{cell:.3g}"
    lines += [[text(cell) for cell in row] for row in rows]
    print("\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines), flush=True)
    print("time: over the first row's, the median of runs in turns (least to most)\n")
