"""Times of two or more ways to do the same, measured in turns; the memory of compiled programs."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from typing import Any

from rich.table import Table

from . import report

Run = Callable[[], Any]


def ratios(runs: dict[str, Run], floor: str, *, seconds: float = 0.0004, rounds: int = 301) -> dict[str, float]:
    """Time of each over that of the floor: the median of the rounds, in each of which all take their turn.

    Args:
      runs: by name; each has been called as often as it needs to settle.
      floor: the name of that which is 1.
      seconds: how long a turn takes; short ones are seldom interrupted by other programs.
      rounds: how many there are.
    """
    times = {name: seconds_of(run, 3) for name, run in runs.items()}
    calls = max(1, round(seconds / times[floor]))
    found: dict[str, list[float]] = {name: [] for name in runs}
    order, shuffle = list(runs), random.Random(0).shuffle
    for _ in range(rounds):
        taken = {name: seconds_of(runs[name], calls) for name in order}
        shuffle(order)  # whose turn comes after that of a slow program finds the caches of the processor empty
        for name, time_taken in taken.items():
            found[name].append(time_taken / taken[floor])
    return {name: statistics.median(each) for name, each in found.items()}


def temporary_bytes(compiled: Any) -> int:
    """Temporary bytes of a compiled program."""
    found = compiled.memory_analysis()
    assert found is not None, "the backend does not say how much memory a program takes"
    return int(found.temp_size_in_bytes)


def seconds_of(run: Run, calls: int = 1) -> float:
    """Seconds that one call takes."""
    start = time.perf_counter()
    for _ in range(calls):
        run()
    return (time.perf_counter() - start) / calls


def interleaved_after(runs: dict[str, Run], during: Callable[[Run], Any], rounds: int = 7) -> dict[str, float]:
    """Time of each while something goes on, over the time without: the least of the rounds of each.

    Args:
      runs: by name.
      during: calls a function while it goes on.
      rounds: how many there are.
    """
    found: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            found[name][0].append(seconds_of(run, 20))
            found[name][1].append(during(lambda run=run: seconds_of(run, 20)))
    return {name: min(meanwhile) / min(alone) for name, (alone, meanwhile) in found.items()}


def show(title: str, rows: dict[str, dict[str, str]]) -> None:
    """Prints a table."""
    table = Table(title=title)
    names = list(dict.fromkeys(name for row in rows.values() for name in row))
    table.add_column("")
    for name in names:
        table.add_column(name, justify="right")
    for label, row in rows.items():
        table.add_row(label, *[row.get(name, "") for name in names])
    report.show(table)
