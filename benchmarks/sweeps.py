"""Memory that a sweep takes over the same sweep by hand: `python -m benchmarks.sweeps [how many]`.

Each case runs in a process of its own: functions that differ in a number that they close over, held or dropped one
after the other, and one class with many shapes. What is counted is how much the process grows from the twentieth on.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from statetransform import State, transform

from .timing import show

SIZE = 64


def work(u: Any, x: Any, scale: float) -> Any:
    """What a step computes."""
    return jnp.tanh(u * scale + x) + jnp.roll(u, 1)


def closure(scale: float) -> Any:
    u = State(jnp.ones(SIZE))

    def step(x: Any) -> Any:
        u.value = work(u.value, x, scale)
        return u.value.sum()

    return _called(transform.jit(step))


def closure_by_hand(scale: float) -> Any:
    held = [jnp.ones(SIZE)]

    def step(x: Any, u: Any) -> Any:
        u = work(u, x, scale)
        return u.sum(), u

    compiled = jax.jit(step)

    def run(x: Any) -> None:
        _, held[0] = compiled(x, held[0])

    return _called(run)


def gradient(scale: float) -> Any:
    u = State(jnp.ones(SIZE))

    def step(x: Any) -> Any:
        u.value = work(u.value, x, scale)
        return u.value.sum()

    return _called(transform.jit(transform.grad(transform.checkpoint(step))))


def gradient_by_hand(scale: float) -> Any:
    held = [jnp.ones(SIZE)]

    def step(x: Any, u: Any) -> Any:
        u = work(u, x, scale)
        return u.sum(), u

    compiled = jax.jit(jax.grad(jax.checkpoint(step), has_aux=True))

    def run(x: Any) -> None:
        _, held[0] = compiled(x, held[0])

    return _called(run)


class Simulator:
    """One state of any length."""

    def __init__(self, n: int) -> None:
        self.u = State(jnp.ones(n))

    @transform.jit
    def step(self, x: Any) -> Any:
        """Reads and writes."""
        self.u.value = work(self.u.value, x, 2.0)
        return self.u.value.sum()


@jax.jit
def _step_by_hand(x: Any, u: Any) -> Any:
    u = work(u, x, 2.0)
    return u.sum(), u


def shapes(n: float) -> Any:
    simulator = Simulator(int(n))
    return _called(simulator.step)


def shapes_by_hand(n: float) -> Any:
    held = [jnp.ones(int(n))]

    def run(x: Any) -> None:
        _, held[0] = _step_by_hand(x, held[0])

    return _called(run)


def _called(run: Callable[[Any], Any]) -> Any:
    """The function after some calls."""
    x = jnp.float32(1)
    for _ in range(4):
        run(x)
    return run


CASES = (closure, gradient, shapes)


def grown(name: str, n: int, is_held: bool) -> float:
    """Bytes by which this process grows from the twentieth function to the last."""
    make, held = globals()[name], []
    before = 0.0
    for i in range(n + 20):
        if i == 20:
            before = _resident()
        function = make(2.0 + i)
        if is_held:
            held.append(function)
    return _resident() - before


def _resident() -> float:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def sweeps(n: int = 400) -> None:
    """The table; wanted is 1.2 where the functions are held, and no growth where they are not."""
    rows: dict[str, dict[str, str]] = {}
    for case in CASES:
        for kind in ("held", "dropped"):
            row = rows[f"{case.__name__}, {kind}"] = {}
            found = []
            for name in (case.__name__, f"{case.__name__}_by_hand"):
                command = [sys.executable, "-m", "benchmarks.sweeps", name, str(n), kind]
                found.append(float(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
            row["MiB each"], row["by hand"] = (f"{size / n / 2**20:.3f}" for size in found)
            row["ratio"] = f"{found[0] / found[1]:.2f}" if found[1] > n * 2**14 else "-"
    show(f"Memory that {n} compiled functions or shapes take", rows)


if __name__ == "__main__":
    if len(sys.argv) == 4:
        print(grown(sys.argv[1], int(sys.argv[2]), sys.argv[3] == "held"))
    else:
        sweeps(*map(int, sys.argv[1:]))
