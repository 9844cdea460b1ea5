"""What other threads pay while a class is traced: `python -m benchmarks.meanwhile`.

One thread is held in the middle of a trace. Another uses an instance of the same class, and one of a subclass. Each
is measured in turns with the same work while nothing is traced.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from statetransform import State, transform

from .timing import interleaved_after, show


class Simulator:
    """A state, and a number that changes."""

    def __init__(self) -> None:
        self.u, self.k = State(jnp.float32(0)), 0

    def half(self) -> int:
        """A method."""
        return self.k // 2


class Heir(Simulator):
    """A subclass without an instance in the trace."""


def reads(obj: Any) -> Callable[[], Any]:
    def run() -> None:
        for _ in range(1000):
            _ = obj.k

    return run


def writes(obj: Any) -> Callable[[], Any]:
    def run() -> None:
        for _ in range(1000):
            obj.k = 1

    return run


def calls(obj: Any) -> Callable[[], Any]:
    def run() -> None:
        for _ in range(1000):
            obj.half()

    return run


def meanwhile() -> None:
    """The table: time during the trace over time without."""
    works = {
        f"{work.__name__}, {kind.__name__.lower()}": work(kind())
        for kind in (Simulator, Heir)
        for work in (reads, writes, calls)
    }
    inside, done = threading.Event(), threading.Event()

    @transform.jit
    def step(simulator: Any, x: Any) -> None:
        inside.set()
        done.wait()
        simulator.u.value = simulator.u.value + x * simulator.k

    def during(run: Callable[[], Any]) -> Any:
        inside.clear(), done.clear()
        step.clear_cache()
        thread = threading.Thread(target=step, args=(Simulator(), 1.0))
        thread.start()
        inside.wait()
        try:
            return run()
        finally:
            done.set()
            thread.join()

    rows = {name: {"ratio": f"{ratio:.1f}"} for name, ratio in interleaved_after(works, during).items()}
    show("Attributes in another thread while a class is traced, over the same without", rows)


if __name__ == "__main__":
    meanwhile()
