"""The gradient through diffrax's steps: loops of this package, and diffrax's own adjoints.

    python -m benchmarks.solvers --steps 200 --size 1000 --pages docs/coming-from/diffrax.md

For each way: how often one gradient evaluates the vector field, the temporary bytes of the compiled gradient, and its
processor time over that of the plain scan. All ways run in turns; the table has the median of the ratios, and their
quartiles. Needs diffrax.
"""

from __future__ import annotations

import argparse
import pathlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import diffrax
import jax
import jax.numpy as jnp

from statetransform import policies, transform

from . import report
from .timing import Run, temporary_bytes

Field = Callable[..., Any]
Make = Callable[[Field, int], Callable[[Any], Any]]
PLAIN = "`transform.scan` over `solver.step`"


def scanned(checkpoint: Any) -> Make:
    """A scan of this package around diffrax's step."""

    def make(field: Field, steps: int) -> Callable[[Any], Any]:
        term, solver, h = diffrax.ODETerm(field), diffrax.Tsit5(), 1.0 / steps

        def step(carry: Any, t: Any) -> tuple[Any, None]:
            y, _, _, state, _ = solver.step(term, t, t + h, carry[0], None, carry[1], made_jump=False)
            return (y, state), None

        def f(y: Any) -> Any:
            start = y, solver.init(term, 0.0, h, y, None)
            return transform.scan(step, start, h * jnp.arange(steps), checkpoint=checkpoint)[0][0].sum()

        return f

    return make


def looped(k: int) -> Make:
    """A raw `while_loop` around diffrax's step, reversed by `policies.loops`."""

    def make(field: Field, steps: int) -> Callable[[Any], Any]:
        term, solver, h = diffrax.ODETerm(field), diffrax.Tsit5(), 1.0 / steps

        def f(y: Any) -> Any:
            def body(c: Any) -> Any:
                i, y, state = c
                y, _, _, state, _ = solver.step(term, i * h, (i + 1) * h, y, None, state, made_jump=False)
                return i + 1, y, state

            return jax.lax.while_loop(lambda c: c[0] < steps, body, (0, y, solver.init(term, 0.0, h, y, None)))[1].sum()

        return transform.checkpoint(f, policy=policies.loops(k))

    return make


def solved(adjoint: diffrax.AbstractAdjoint) -> Make:
    """diffrax's own loop."""

    def make(field: Field, steps: int) -> Callable[[Any], Any]:
        term, solver = diffrax.ODETerm(field), diffrax.Tsit5()
        options: dict[str, Any] = {"adjoint": adjoint, "max_steps": steps + 1}
        return lambda y: jnp.sum(jnp.asarray(diffrax.diffeqsolve(term, solver, 0.0, 1.0, 1.0 / steps, y, **options).ys))

    return make


WAYS: dict[str, Make] = {
    PLAIN: scanned(None),
    "the same, `checkpoint=20`": scanned(20),
    'the same, `checkpoint="sqrt"`': scanned("sqrt"),
    "a raw `while_loop` under `policies.loops(20)`": looped(20),
    "`diffeqsolve`, `DirectAdjoint`": solved(diffrax.DirectAdjoint()),
    "`diffeqsolve`, `RecursiveCheckpointAdjoint(checkpoints=20)`": solved(diffrax.RecursiveCheckpointAdjoint(20)),
    "`diffeqsolve`, `RecursiveCheckpointAdjoint()`": solved(diffrax.RecursiveCheckpointAdjoint()),
}


def evaluations(make: Make, steps: int, y: Any) -> int:
    """How often one gradient evaluates the vector field."""
    calls: list[int] = []

    def noted(t: Any, y: Any, args: Any) -> Any:
        jax.debug.callback(lambda: calls.append(1))
        return jnp.sin(y) - t * y

    jax.block_until_ready(jax.jit(jax.grad(make(noted, steps)))(y))
    jax.effects_barrier()
    return len(calls)


def in_turns(runs: dict[str, Run], floor: str, rounds: int) -> dict[str, list[float]]:
    """Quartiles of the processor time over that of the floor."""
    ratios: dict[str, list[float]] = {name: [] for name in runs}
    for i in range(rounds + 1):
        taken = {}
        for name, run in runs.items():
            start = time.process_time()
            run()
            taken[name] = time.process_time() - start
        if i > 0:  # the first round warms up
            for name in runs:
                ratios[name].append(taken[name] / taken[floor])
    return {name: statistics.quantiles(found, n=4) for name, found in ratios.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200, help="of the solver")
    parser.add_argument("--size", type=int, default=1000, help="values of the solution")
    parser.add_argument("--rounds", type=int, default=25, help="calls of each way, in turns")
    parser.add_argument("--pages", type=pathlib.Path, nargs="*", default=[], help="puts the table into these")
    options = parser.parse_args()
    y = jnp.linspace(0.1, 1.0, options.size)
    field = lambda t, y, args: jnp.sin(y) - t * y
    programs = {name: jax.jit(jax.grad(make(field, options.steps))).lower(y).compile() for name, make in WAYS.items()}
    runs: dict[str, Run] = {name: lambda run=run: jax.block_until_ready(run(y)) for name, run in programs.items()}
    times = in_turns(runs, PLAIN, options.rounds)
    rows = []
    for name, make in WAYS.items():
        low, middle, high = times[name]
        spread = f"{middle:.2f} ({low:.2f} to {high:.2f})"
        found = evaluations(make, options.steps, y)
        rows.append([name, f"{found:,}", f"{temporary_bytes(programs[name]):,}", spread])
    report.keep("solvers", ["", "evaluations of the field", "temporary bytes", "processor time"], rows)
    print("\n".join(report.lines_of(report.tables["solvers"])))
    for page in options.pages:
        page.write_text(report.refreshed(page.read_text()))


if __name__ == "__main__":
    main()
