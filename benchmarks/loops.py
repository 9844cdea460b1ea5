"""Loops that remember little, against the plain scan and the peers: `python -m benchmarks.loops`.

One gradient of each loop, compiled: step evaluations (counted by a callback on a scalar step of the same length),
temporary bytes, the time to trace and compile, and the wall time as a ratio to the plain scan, measured in turns in the
same run. equinox and brainstate take part where they are installed.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import math
import pathlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from rich.table import Table

import statetransform as st
from statetransform import transform

from . import report
from .timing import temporary_bytes

Scan = Callable[[Any, Any, Any, int], tuple[Any, Any]]
Program = Callable[[Scan, Any, int], Any]


def nested(f: Any, init: Any, xs: Any, n: int) -> tuple[Any, Any]:
    """What people write by hand: checkpointed blocks of about sqrt(n) steps."""
    inner = max(d for d in range(1, math.isqrt(n) + 1) if n % d == 0)
    xs = jax.tree.map(lambda x: x.reshape(n // inner, inner, *x.shape[1:]), xs)
    block = jax.checkpoint(lambda carry, x: jax.lax.scan(jax.checkpoint(f), carry, x, length=inner))
    carry, ys = jax.lax.scan(block, init, xs, length=n // inner)
    return carry, jax.tree.map(lambda y: y.reshape(n, *y.shape[2:]), ys)


def scans(k: int, n: int) -> dict[str, Scan]:
    """All ways to run a loop, by name."""
    ours = lambda checkpoint: lambda f, init, xs, n: transform.scan(f, init, xs, n, checkpoint=checkpoint)
    found: dict[str, Scan] = {
        "plain scan": lambda f, init, xs, n: jax.lax.scan(f, init, xs, length=n),
        "each step": ours("step"),
        "nested by hand": nested,
        f"checkpoint={k}": ours(k),
        "unknown length": lambda f, init, xs, n: _while(f, init, xs, n, k),
    }
    if importlib.util.find_spec("equinox"):
        import equinox.internal as eqxi

        found[f"equinox, {k}"] = lambda f, init, xs, n: eqxi.scan(
            f, init, xs, length=n, kind="checkpointed", checkpoints=k
        )
    if importlib.util.find_spec("brainstate"):
        import brainstate

        found["brainstate"] = lambda f, init, xs, n: brainstate.transform.checkpointed_scan(
            f, init, jnp.arange(n) if xs is None else xs
        )
    return found


def _while(f: Any, init: Any, xs: Any, n: int, k: int) -> tuple[Any, Any]:
    """The same loop as one whose length is not known; it has no outputs."""
    take = lambda i: jax.tree.map(lambda x: x[i], xs)
    body = lambda c: (c[0] + 1, f(c[1], take(c[0]))[0])
    return transform.while_loop(lambda c: c[0] < n, body, (0, init), checkpoint=k)[1], None


def matmul(scan: Scan, w: Any, n: int) -> Any:
    """`tanh(W @ x)` with a 128 x 128 carry; the gradient is for the weights."""
    carry, _ = scan(lambda x, _: (jnp.tanh(w @ x), None), jnp.ones((128, 128)), None, n)
    return (carry**2).sum()


def wave(scan: Scan, velocity: Any, n: int) -> Any:
    """The 2-D wave equation on 256 x 256 points; the gradient is for the velocity."""

    def step(carry: Any, _: Any) -> Any:
        u, before = carry
        laplacian = sum(jnp.roll(u, shift, axis) for shift in (-1, 1) for axis in (0, 1)) - 4 * u
        return (2 * u - before + velocity * laplacian, u), None

    start = jnp.zeros((256, 256)).at[128, 128].set(1.0)
    (u, _), _ = scan(step, (start, start), None, n)
    return (u**2).sum()


def spiking(scan: Scan, w: Any, n: int) -> Any:
    """256 recurrent spiking neurons with a surrogate gradient; the gradient is for the weights."""

    @jax.custom_jvp
    def spike(v: Any) -> Any:
        return (v > 0).astype(v.dtype)

    spike.defjvp(lambda p, t: (spike(*p), t[0] / (1 + 10 * jnp.abs(p[0])) ** 2))

    def step(carry: Any, x: Any) -> Any:
        v, s = carry
        v = 0.95 * v * (1 - s) + w @ s + 0.1 * x
        return (v, spike(v - 1.0)), None

    inputs = jax.random.normal(jax.random.key(1), (n, 256)) + 1
    (v, s), _ = scan(step, (jnp.zeros(256), jnp.zeros(256)), inputs, n)
    return (v**2).sum() + s.sum()


def scaled(n: int) -> Any:
    return jax.random.normal(jax.random.key(0), (n, n)) / n**0.5


PROGRAMS: dict[str, tuple[Program, Callable[[], Any]]] = {
    "matmul": (matmul, lambda: scaled(128)),
    "wave": (wave, lambda: jnp.full((256, 256), 0.3)),
    "spiking": (spiking, lambda: scaled(256)),
}


def evaluations(scan: Scan, n: int, shape: tuple[int, ...] = ()) -> int:
    """Step evaluations of one gradient, with a carry of that shape."""
    count = [0]

    def step(x: Any, _: Any) -> Any:
        jax.debug.callback(lambda _: count.__setitem__(0, count[0] + 1), x)
        return jnp.sin(x), None

    jax.block_until_ready(jax.jit(jax.grad(lambda x: scan(step, x, None, n)[0].sum()))(jnp.full(shape, 0.5)))
    jax.effects_barrier()
    return count[0]


def measure(program: Program, argument: Any, n: int, k: int, rounds: int) -> dict[str, dict[str, float]]:
    """One row for each way to run the loop."""
    rows, compiled = {}, {}
    for name, scan in scans(k, n).items():
        start = time.perf_counter()
        gradient = jax.jit(jax.grad(functools.partial(program, scan), argnums=0), static_argnums=1)
        compiled[name] = gradient.lower(argument, n).compile()
        rows[name] = {
            "seconds to compile": time.perf_counter() - start,
            "temporary MB": temporary_bytes(compiled[name]) / 1e6,
            "evaluations": evaluations(scan, n) if n <= 2000 else math.nan,
        }
    times: dict[str, list[float]] = {name: [] for name in compiled}
    for _ in range(rounds):
        for name, call in compiled.items():
            start = time.perf_counter()
            jax.block_until_ready(call(argument))
            times[name].append(time.perf_counter() - start)
    for name, found in times.items():
        rows[name]["wall"] = sorted(found)[len(found) // 4]
    return rows


def nested_lengths(f: Any, init: Any, lengths: Sequence[int]) -> Any:
    """`nested_checkpoint_scan` as libraries of fluid dynamics have it: scans of scans, each body checkpointed."""
    outer, *inner = lengths
    body = (lambda x, _: (nested_lengths(f, x, inner), None)) if inner else f
    return jax.lax.scan(jax.checkpoint(body), init, None, length=outer)[0]


def replaced(n: int = 1000, k: int = 20) -> None:
    """What a changed line brings: `nested_checkpoint_scan` and the loops of equinox, and what takes their place."""
    ours = scans(k, n)
    ways: dict[str, Scan] = {
        "`nested_checkpoint_scan`, 10 x 10 x 10": lambda f, init, xs, n: (nested_lengths(f, init, (10, 10, 10)), None),
        "`nested_checkpoint_scan`, 25 x 40": lambda f, init, xs, n: (nested_lengths(f, init, (25, 40)), None),
    }
    if importlib.util.find_spec("equinox"):
        import equinox.internal as eqxi

        options: dict[str, Any] = {"kind": "checkpointed", "checkpoints": k}
        ways[f"`eqxi.while_loop`, `checkpoints={k}`"] = lambda f, init, xs, n: (
            eqxi.while_loop(
                lambda c: c[0] < n, lambda c: (c[0] + 1, f(c[1], None)[0]), (0, init), max_steps=n, **options
            )[1],
            None,
        )
        ways[f"`eqxi.scan`, `checkpoints={k}`"] = ours[f"equinox, {k}"]
    ways |= {
        f"`transform.while_loop`, `checkpoint={k}`": ours["unknown length"],
        f"`transform.scan`, `checkpoint={k}`": ours[f"checkpoint={k}"],
    }
    budgets = {
        f'`transform.scan`, `checkpoint=MemoryBudget("{size}")`': st.MemoryBudget(size) for size in ("1MB", "4MB")
    }
    for name, budget in budgets.items():
        ways[name] = lambda f, init, xs, n, budget=budget: transform.scan(f, init, xs, n, checkpoint=budget)
    table = Table(title=f"matmul, {n} steps: what takes the place of other loops")
    for column in ("the loop", "evaluations per step", "temporary MB"):
        table.add_column(column, justify="left" if column == "the loop" else "right")
    for name, scan in ways.items():
        compiled = jax.jit(jax.grad(lambda w, scan=scan: matmul(scan, w, n))).lower(scaled(128)).compile()
        held = temporary_bytes(compiled) / 1e6
        # What a budget recomputes depends on the step; what a number of carries does, does not.
        choices = budgets[name].choices if name in budgets else []
        count = getattr(choices[-1], "evaluations", 0) if choices else evaluations(scan, n, (128, 128))
        table.add_row(name, f"{count / n:.3f}", f"{held:.2f}")
    report.show(table)


def lanes(ks: tuple[int, ...] = (16, 200), size: int = 256, rounds: int = 7) -> dict[str, float]:
    """`vmap` of the gradient of loops of unknown length, 16 lanes of up to 200 steps, as ratios to a masked scan.

    The scan recomputes each step from its carry, which is what a loop does that has room for all carries; the steps
    that are taken again with fewer are divided out.
    """
    x, n, most = jnp.ones((16, size)), jnp.arange(1, 17) * 12, 192
    body = lambda x: jnp.sin(x) * 1.01

    def unknown(x: Any, n: Any, k: int) -> Any:
        loop = transform.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, body(c[1])), (0, x), checkpoint=k)
        return loop[1].sum()

    def masked(x: Any, n: Any) -> Any:
        step = lambda c, i: (jnp.where(i < n, body(c), c), None)
        return jax.lax.scan(jax.checkpoint(step), x, jnp.arange(most))[0].sum()

    programs = {"masked scan": masked} | {f"checkpoint={k}": functools.partial(unknown, k=k) for k in ks}
    compiled = {name: jax.jit(jax.vmap(jax.grad(f))).lower(x, n).compile() for name, f in programs.items()}
    times: dict[str, list[float]] = {name: [] for name in compiled}
    for _ in range(rounds):
        for name, call in compiled.items():
            start = time.perf_counter()
            jax.block_until_ready(call(x, n))
            times[name].append(time.perf_counter() - start)
    best = {name: min(found) for name, found in times.items()}
    work = {f"checkpoint={k}": st.schedule(most, k).evaluations / (2 * most) for k in ks}
    return {name: best[name] / best["masked scan"] / work.get(name, 1.0) for name in best}


def show(title: str, rows: dict[str, dict[str, float]], n: int) -> None:
    """Prints the rows; the wall time as a ratio to the plain scan."""
    table = Table(title=title)
    for column in ("", "evaluations per step", "temporary MB", "seconds to compile", "wall ms", "wall over plain"):
        table.add_column(column, justify="left" if not column else "right")
    plain = rows["plain scan"]["wall"]
    for name, row in rows.items():
        count = row["evaluations"] / n
        table.add_row(
            name,
            "" if math.isnan(count) else f"{count:.3f}",
            f"{row['temporary MB']:.2f}",
            f"{row['seconds to compile']:.2f}",
            f"{1000 * row['wall']:.1f}",
            f"{row['wall'] / plain:.2f}",
        )
    report.show(table)


def loops(
    programs: Sequence[str] = tuple(PROGRAMS), steps: Sequence[int] = (1000,), k: int = 20, rounds: int = 5
) -> None:
    """A table for each program and number of steps."""
    for name in programs:
        program, make = PROGRAMS[name]
        for n in steps:
            show(f"{name}, {n} steps, {k} stored carries", measure(program, make(), n, k, rounds), n)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("programs", nargs="*", default=list(PROGRAMS), help="matmul, wave, spiking")
    parser.add_argument("--steps", type=int, nargs="*", default=[1000, 10000])
    parser.add_argument("-k", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--lanes", action="store_true", help="only loops of unknown length under vmap")
    parser.add_argument("--report", type=pathlib.Path, help="writes the tables to this page of the documentation, too")
    chosen = parser.parse_args()
    print(f"JAX {jax.__version__} on {jax.default_backend()}, statetransform {st.__version__}")
    if chosen.lanes:
        for name, ratio in lanes().items():
            print(f"{name:16} {ratio:6.2f} times the masked scan, for the same evaluations")
        return
    loops(chosen.programs, chosen.steps, chosen.k, chosen.rounds)
    if chosen.report is not None:
        report.write(chosen.report)


if __name__ == "__main__":
    main()
