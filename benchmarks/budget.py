"""Budgets against hand policies: which ones fit, and at how many operations.

python benchmarks/budget.py --only mlp8,rnn_scan --budgets 0.5,0.25
python benchmarks/budget.py --every 4 --no-hand
python benchmarks/budget.py --summary some.json,others.json
python benchmarks/budget.py --time
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

import statetransform as st
from statetransform import _jax, policies, transform
from statetransform._memory.plans import measured
from statetransform._memory.plans.choose import Planner
from statetransform._memory.programs.flops import jaxpr_flops
from statetransform._memory.programs.rewrite import inlined
from statetransform._memory.programs.walk import backward_slice
from statetransform.inspect._view import view_of as stage

sys.path.insert(0, str(Path(__file__).parent.parent))
from benchmarks.budget_programs import LARGE, PROGRAMS, Program
from benchmarks.timing import temporary_bytes

BUDGETS = (0.9, 0.7, 0.5, 0.35, 0.25, 0.125, 0.0625)
FAST = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
DOTS = policies.dots_with_no_batch_dims_saveable


def run_layers(program: Program, around: Any = lambda f: f, parts: int | None = None) -> Callable[[Any, Any], Any]:
    """The loss as a function of input and parameters, with a checkpoint around each of some parts of the layers."""
    if program.is_loop:
        return _run_loop(program, around, parts)

    def loss(x: Any, ps: Any) -> Any:
        n = len(ps)
        size = 1 if parts is None else math.ceil(n / parts)
        for start in range(0, n, size):

            def part(h: Any, some: Any, start: int = start) -> Any:
                for k, p in enumerate(some):
                    h = program.layers[start + k](h, p)
                return h

            x = around(part)(x, ps[start : start + size])
        return program.loss(x)

    return loss


def _run_loop(program: Program, around: Any, parts: int | None) -> Callable[[Any, Any], Any]:
    layer = program.layers[0]

    def loss(x: Any, ps: Any) -> Any:
        xs = jax.tree.map(lambda *leaves: jnp.stack(leaves), *ps)
        n = len(ps)
        if parts is None or n % parts:
            step = around(layer)
            return program.loss(transform.scan(lambda h, p: (step(h, p), None), x, xs)[0])
        rows = (parts, n // parts)
        xs = jax.tree.map(lambda leaf: leaf.reshape(*rows, *leaf.shape[1:]), xs)
        inner = around(lambda h, some: transform.scan(lambda h, p: (layer(h, p), None), h, some)[0])
        return program.loss(transform.scan(lambda h, some: (inner(h, some), None), x, xs)[0])

    return loss


def halved(program: Program) -> Callable[[Any, Any], Any]:
    """Recursive halving: each half is recomputed, and within it each half of it."""
    if program.is_loop:
        n = len(program.ps)
        return _run_loop(program, transform.checkpoint, next((d for d in (2, 3, 5) if n % d == 0), None))

    def part(start: int, stop: int) -> Any:
        def run(h: Any, some: Any) -> Any:
            if stop - start == 1:
                return program.layers[start](h, some[0])
            middle = (stop - start) // 2
            h = transform.checkpoint(part(start, start + middle))(h, some[:middle])
            return part(start + middle, stop)(h, some[middle:])

        return run

    return lambda x, ps: program.loss(part(0, len(ps))(x, ps))


def hand_policies(program: Program) -> dict[str, Callable[[Any, Any], Any]]:
    """The seven ways to write checkpoints by hand."""
    plain, parts = run_layers(program), round(math.sqrt(len(program.ps)))
    dots = lambda f: transform.checkpoint(f, policy=DOTS)
    return {
        "none": plain,
        "everything": transform.checkpoint(plain),
        "dots": dots(plain),
        "per layer": run_layers(program, transform.checkpoint),
        "per layer with dots": run_layers(program, dots),
        "sqrt segments": run_layers(program, transform.checkpoint, parts),
        "halving": halved(program),
    }


class Alive(NamedTuple):
    """As much of a jaxpr as is counted."""

    eqns: list[Any]


class Measured:
    """A gradient step: its equations, operations, temporary bytes, gradients, and a call that runs it."""

    def __init__(
        self, loss: Callable[[Any, Any], Any], program: Program, options: dict[str, Any] | None = FAST
    ) -> None:
        step = transform.grad(loss, argnums=1)
        staged = stage(step, (program.x, program.ps), {})
        closed = jax.make_jaxpr(lambda *xs: staged.fun(*xs))(*staged.inputs)
        # What a rule was made for has been done: as the compiler sees it, and without what nobody wants of its outputs.
        flat = _jax.opened(inlined(inlined(closed, rules=True), rules=True))
        alive = backward_slice(flat, list(flat.outvars))
        self.equations, self.flops = len(alive), jaxpr_flops(Alive(alive))
        body, consts = _jax.opened(closed), _jax.consts_of(closed)
        inputs = staged.inputs
        # What is closed over is an argument, too: constants of a program count as its temporaries.
        lowered = jax.jit(lambda cs, *xs: _jax.eval_jaxpr(body, cs, *xs)).lower(list(consts), *inputs)
        compiled = lowered.compile(compiler_options=options)
        self.bytes = temporary_bytes(compiled)
        self.run = lambda: jax.block_until_ready(compiled(list(consts), *inputs))
        self.gradients = self.run()


def differs(ours: list[Any], theirs: list[Any]) -> float:
    """The largest difference of two lists of gradients, in units of the largest of each."""
    worst = 0.0
    for a, b in zip(ours, theirs, strict=True):
        if jnp.issubdtype(b.dtype, jnp.inexact) and b.size:
            worst = max(worst, float(jnp.abs(a - b).max() / (jnp.abs(b).max() + 1e-6)))
    return worst


class Clock:
    """Processor seconds of planning without the compilations, and how many of these there are."""

    def __init__(self) -> None:
        self.seconds, self.compilations = 0.0, 0
        self._decide, self._compile = Planner.decide, measured.compiled_step

    def __enter__(self) -> Clock:
        clock = self

        def decide(self: Planner, budget: int) -> Any:
            start = time.process_time()
            try:
                return clock._decide(self, budget)
            finally:
                clock.seconds += time.process_time() - start

        def compiled_step(*args: Any, **options: Any) -> Any:
            start = time.process_time()
            try:
                return clock._compile(*args, **options)
            finally:
                clock.seconds -= time.process_time() - start
                clock.compilations += 1

        Planner.decide, measured.compiled_step = decide, compiled_step
        return self

    def __exit__(self, *error: object) -> None:
        Planner.decide, measured.compiled_step = self._decide, self._compile


def budgeted(program: Program, budget: int) -> tuple[Measured | None, str]:
    """The step under a budget, and what was said: a warning, or an error."""
    loss = transform.checkpoint(run_layers(program), policy=policies.fit(budget))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found = Measured(loss, program)
        except st.BudgetError as error:
            return None, str(error)
    return found, "; ".join(str(w.message) for w in caught if issubclass(w.category, policies.PolicyWarning))


def measure(name: str, shares: tuple[float, ...], with_hand: bool) -> list[dict[str, Any]]:
    """One row for each budget of one program."""
    program = PROGRAMS[name]()
    plain = Measured(run_layers(program), program)
    hand = {}
    if with_hand:
        for label, loss in hand_policies(program).items():
            found = Measured(loss, program)
            hand[label] = (found.bytes, found.flops / plain.flops)
    rows = []
    for share in shares:
        budget = int(share * plain.bytes)
        start = time.perf_counter()
        with Clock() as clock:
            found, said = budgeted(program, budget)
        fitting = [flops for size, flops in hand.values() if size <= budget]
        rows.append(
            {
                "program": name,
                "equations": plain.equations,
                "share": share,
                "budget": budget,
                "bytes": None if found is None else found.bytes,
                "flops": None if found is None else found.flops / plain.flops,
                "hand": min(fitting, default=None),
                "error": None if found is None else differs(found.gradients, plain.gradients),
                "warned": bool(said) and found is not None,
                "planning": clock.seconds,
                "compilations": clock.compilations,
                "seconds": time.perf_counter() - start,
            }
        )
    return rows


def times(shares: tuple[float, ...], rounds: int = 25) -> None:
    """Prints the time of steps under a budget over that of the plain step, in turns, for programs of some size."""
    for name, make in LARGE.items():
        program = make()
        plain = Measured(run_layers(program), program, None)
        for share in shares:
            loss = transform.checkpoint(run_layers(program), policy=policies.fit(int(share * plain.bytes)))
            try:
                found = Measured(loss, program, None)
            except st.BudgetError:
                continue
            turns = [(_seconds(found.run), _seconds(plain.run)) for _ in range(rounds)]
            taken, flops = statistics.median(ours / theirs for ours, theirs in turns), found.flops / plain.flops
            print(
                f"{name:12} {share:<5} bytes {found.bytes / plain.bytes:.2f} operations {flops:.3f} time {taken:.3f} "
                f"time over operations {taken / flops:.3f}",
                flush=True,
            )


def _seconds(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _mean(ratios: list[float]) -> str:
    return "-" if not ratios else f"{math.exp(sum(map(math.log, ratios)) / len(ratios)):.3f} ({len(ratios)})"


def summary(rows: list[dict[str, Any]]) -> str:
    """The figures in words."""
    honoured = [r for r in rows if r["bytes"] is not None and r["bytes"] <= r["budget"]]
    by_hand = [r for r in rows if r["hand"] is not None]
    worse = [r for r in by_hand if r not in honoured or r["flops"] > r["hand"] * 1.001]
    ratios = [r["flops"] / r["hand"] for r in by_hand if r in honoured]
    silent = [r for r in rows if r["bytes"] is not None and r["bytes"] > r["budget"] and not r["warned"]]
    paces = sorted(1000 * r["planning"] / r["equations"] for r in rows)
    return "\n".join(
        [
            f"pairs {len(rows)}, honoured {len(honoured)} ({100 * len(honoured) / max(len(rows), 1):.0f} %) "
            f"at {_mean([r['flops'] for r in honoured])} of the plain operations",
            f"honoured by a hand policy {len(by_hand)}, of these honoured {len(ratios)}, at {_mean(ratios)} of its "
            f"operations; not at most these {len(worse)}: "
            + ", ".join(f"{r['program']} {r['share']}" for r in worse[:30]),
            f"silent violations {len(silent)}; wrong values {sum((r['error'] or 0) > 1e-3 for r in rows)}",
            f"planning: {paces[len(paces) // 2]:.2f} s per 1,000 equations in the median, {paces[-1]:.2f} at most; "
            f"{1000 * sum(r['planning'] for r in rows) / sum(r['equations'] for r in rows):.2f} over all; "
            f"at most {max(r['compilations'] for r in rows)} compilations",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="names of programs, with commas between")
    parser.add_argument("--every", type=int, default=1, help="every n-th program")
    parser.add_argument("--budgets", help="shares of the plain step's temporary bytes")
    parser.add_argument("--no-hand", action="store_true", help="leave out the hand policies")
    parser.add_argument("--json", help="a file for the rows")
    parser.add_argument("--summary", help="files of rows, with commas between: nothing runs, what they say together")
    parser.add_argument("--time", action="store_true", help="the time of larger steps instead")
    options = parser.parse_args()
    if options.time:
        times(tuple(map(float, (options.budgets or "0.7,0.4").split(","))))
        return
    if options.summary:
        print(summary([row for file in options.summary.split(",") for row in json.loads(Path(file).read_text())]))
        return
    names = options.only.split(",") if options.only else list(PROGRAMS)[:: options.every]
    shares = tuple(map(float, options.budgets.split(","))) if options.budgets else BUDGETS
    rows = []
    for name in names:
        found = measure(name, shares, not options.no_hand)
        rows += found
        for r in found:
            cell = lambda x: "-" if x is None else f"{x:.3f}"
            state = "none" if r["bytes"] is None else f"{r['bytes'] / r['budget']:.2f}"
            print(
                f"{name:22} {r['equations']:5} {r['share']:<7} {state:>5}{'!' if r['warned'] else ' '} "
                f"flops {cell(r['flops'])} hand {cell(r['hand'])} {r['seconds']:.1f}s",
                flush=True,
            )
        if options.json:
            Path(options.json).write_text(json.dumps(rows, indent=1))
    print(summary(rows))


if __name__ == "__main__":
    main()
