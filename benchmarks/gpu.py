"""Memory and time on a GPU, planned against measured: `make bench-gpu`.

Five loops with few carries and five functions within a budget. Each case runs in a process of its own, since the
allocator reports the highest peak of a process. Writes a table with the card's name and the date to
`docs/measured-gpu.md`. Without a GPU it says so and exits with 0.

    python -m benchmarks.gpu                    all cases
    python -m benchmarks.gpu --case wave        one case, in this process
"""

from __future__ import annotations

import argparse
import datetime
import functools
import json
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import statetransform as st
from statetransform import policies, transform

from .timing import temporary_bytes

PAGE = pathlib.Path(__file__).parent.parent / "docs" / "measured-gpu.md"
STEPS, CARRIES = 2000, 20
Case = tuple[Callable[[Any], Any], Callable[[Any], Any], Any, int]


def _laplacian(u: jax.Array) -> jax.Array:
    return sum(jnp.roll(u, by, axis) for by in (1, -1) for axis in (0, 1)) - 4 * u


def _wave(c: Any, r: Any) -> Any:
    u, before = c
    return 2 * u - before + 0.1 * r * _laplacian(u), u


def _spiking(c: Any, r: Any) -> Any:
    v, spikes = c
    v = 0.95 * v * (1 - spikes) + r * 0.1
    return v, jax.nn.sigmoid(10 * (v - 1.0))


LOOPS: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any], Any]]] = {
    "wave": (_wave, lambda x: (x, x)),
    "logistic": (lambda c, r: r * c * (1 - c), lambda x: x),
    "heat": (lambda c, r: jnp.sin(c + 0.1 * _laplacian(c)) * r, lambda x: x),
    "spiking": (_spiking, lambda x: (x, x)),
    "matmul": (lambda c, r: jnp.tanh(r @ c), lambda x: x),
}


def loop(name: str) -> Case:
    """A loop with few carries, JAX's with each step checkpointed, its argument, and the bytes that are planned."""
    step, start = LOOPS[name]
    r = jnp.full((1024, 1024), 0.9 if name != "matmul" else 1e-3)
    carry = start(jnp.linspace(0.1, 0.9, r.size).reshape(r.shape))

    def run(loop: Callable[..., Any]) -> Callable[[Any], Any]:
        def loss(r: Any) -> Any:
            out, _ = loop(lambda c, _: (step(c, r), None), carry, None, STEPS)
            return sum((leaf**2).sum() for leaf in jax.tree.leaves(out))

        return loss

    ours = functools.partial(transform.scan, checkpoint=CARRIES)
    by_hand = lambda f, *args: jax.lax.scan(jax.checkpoint(f), *args)
    return run(ours), run(by_hand), r, CARRIES * sum(leaf.nbytes for leaf in jax.tree.leaves(carry))


def function(name: str) -> Case:
    """A function within half of its plain bytes, the same with each block checkpointed, and its argument."""
    from . import budget_programs as programs

    made = {
        "mlp": lambda: programs.mlp(16, 1024, 8192),
        "residual": lambda: programs.residual(12, 512, 2048),
        "transformer": lambda: programs.transformer(12, 512, 256, 16),
        "resnet": lambda: programs.resnet(8, 64, 64),
        "nbody": lambda: programs.nbody(16, 1024),
    }[name]()

    def run(wrap: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def loss(ps: Any) -> Any:
            x = made.x
            for layer, p in zip(made.layers, ps, strict=True):
                x = wrap(layer)(x, p)
            return made.loss(x)

        return loss

    plain = jax.jit(jax.grad(run(lambda layer: layer))).lower(made.ps).compile()
    budget = temporary_bytes(plain) // 2
    f = transform.checkpoint(run(lambda layer: layer), policy=policies.fit(budget))
    return f, run(jax.checkpoint), made.ps, budget


FUNCTIONS = ("mlp", "residual", "transformer", "resnet", "nbody")


def peak() -> int | None:
    statistics = jax.local_devices()[0].memory_stats()
    return None if statistics is None else statistics.get("peak_bytes_in_use")


def seconds(run: Callable[[], Any]) -> float:
    jax.block_until_ready(run())
    start = time.perf_counter()
    jax.block_until_ready(run())
    return time.perf_counter() - start


def measure(name: str) -> dict[str, Any]:
    """One case in this process."""
    ours, by_hand, argument, planned = loop(name) if name in LOOPS else function(name)
    step = transform.jit(transform.value_and_grad(ours))
    compiled = temporary_bytes(step.lower(argument).compile())
    before = peak()
    time_ours = seconds(lambda: step(argument))
    after = peak()
    step_by_hand = jax.jit(jax.value_and_grad(by_hand))  # once: a new one would compile in the run that is timed
    time_by_hand = seconds(lambda: step_by_hand(argument))
    measured = None if before is None or after is None else after - before
    return {"planned": planned, "compiled": compiled, "measured": measured, "time": time_ours / time_by_hand}


def _mb(size: int | None) -> str:
    return "" if size is None else f"{size / 1e6:.1f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=[*LOOPS, *FUNCTIONS])
    options = parser.parse_args()
    if options.case is not None:
        print(json.dumps(measure(options.case)))
        return 0
    if jax.default_backend() != "gpu":
        print(f"No GPU: JAX runs on the {jax.default_backend()}. Nothing was measured.")
        return 0
    lines = [
        f"{jax.local_devices()[0].device_kind}, JAX {jax.__version__}, statetransform {st.__version__}, "
        f"{datetime.date.today().isoformat()}. `make bench-gpu` prints this table.",
        "",
        "| | planned, MB | compiled, MB | measured peak, MB | time over a checkpoint by hand |",
        "| :--- | ---: | ---: | ---: | ---: |",
    ]
    environment = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    for name in (*LOOPS, *FUNCTIONS):
        command = [sys.executable, "-m", "benchmarks.gpu", "--case", name]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            print(done.stderr)
            return 1
        row = json.loads(done.stdout.splitlines()[-1])
        sizes = " | ".join(_mb(row[key]) for key in ("planned", "compiled", "measured"))
        lines.append(f"| {name} | {sizes} | {row['time']:.2f} |")
        print(lines[-1])
    PAGE.write_text("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
