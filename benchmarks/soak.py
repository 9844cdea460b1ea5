"""A long session: memory and traces of a training loop after many steps, and of one class after many shapes.

    python -m benchmarks.soak                 20,000 steps and 300 shapes, some minutes
    python -m benchmarks.soak --steps 2000 --shapes 100

Exits with 1 if memory grows by more than 2 %, if a step is traced after the first of its shape, or if the last traces
of a sweep take twice as long as the first.
"""

from __future__ import annotations

import argparse
import gc
import os
import pickle
import statistics
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp

import statetransform as st
from statetransform import Param, RandomState, State, inspect, policies, transform

SIZES = (16, 24, 32, 48)
BAR = {"file": open(os.devnull, "w")}  # noqa: SIM115 - open as long as the process


class Model:
    """Two layers with dropout and a counter, and a loop over time within a budget."""

    def __init__(self, width: int = 32) -> None:
        self.rng = RandomState(0, name="rng")
        self.w = [Param(jax.random.normal(self.rng.split(), (width, width)) / width**0.5) for _ in range(2)]
        self.h = State(jnp.zeros(width), name="h")
        self.steps = State(jnp.zeros((), jnp.int32), name="steps")
        self.width = width

    @transform.checkpoint(policy=policies.fit("64 KiB"))
    def layer(self, x: Any) -> Any:
        keep = jax.random.bernoulli(self.rng.split(), 0.9, x.shape)
        return jnp.where(keep, jnp.tanh(x @ self.w[0].value), 0.0)

    def advance(self, x: Any) -> None:
        self.h.value = jnp.tanh(self.w[1].value @ self.h.value + x)

    def loss(self, xs: Any) -> Any:
        self.h.value = jnp.zeros(self.width)
        self.steps.value += 1
        inputs = self.layer(xs)
        transform.for_loop(self.advance, inputs, checkpoint=4, progress=BAR if len(xs) == SIZES[0] else None)
        return (self.h.value**2).mean()


def resident() -> float:
    """MB of memory that the process holds."""
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 1e6


def train(steps: int) -> list[str]:
    """What went wrong in a training loop."""
    model = Model()
    params = st.states(model, Param)

    @transform.jit
    def step(xs: Any) -> Any:
        value, slopes = transform.value_and_grad(model.loss, states=params)(xs)
        st.update(params, jax.tree.map(lambda p, g: p - 0.01 * g, st.values(params), slopes))
        return value

    batches = [jnp.ones((n, model.width)) for n in SIZES]
    after_warmup, traces = 0.0, 0
    for i in range(steps):
        step(batches[i % len(batches)]).block_until_ready()
        if i % 100 == 0:
            pickle.loads(pickle.dumps(st.values(st.states(model))))
        if i + 1 == 500:
            after_warmup, traces = resident(), len(inspect.explain_retrace(step))
    end = resident()
    print(f"training: {after_warmup:.1f} MB after 500 steps, {end:.1f} MB after {steps}; {traces} traces")
    wrong = []
    if end > 1.02 * after_warmup:
        wrong.append(f"memory grew by {100 * (end / after_warmup - 1):.1f} %")
    if len(inspect.explain_retrace(step)) > len(SIZES):
        wrong.append(f"{len(inspect.explain_retrace(step))} traces for {len(SIZES)} shapes")
    return wrong


def sweep(shapes: int) -> list[str]:
    """What went wrong in a sweep of shapes over one class."""
    seconds = []
    for n in range(1, shapes + 1):
        model = Model(width=8)
        xs = jnp.ones((n, 8))
        start = time.process_time()
        transform.eval_shape(transform.jit(model.loss), xs)  # without compiling, which would take most of the time
        seconds.append(time.process_time() - start)
        jax.block_until_ready(transform.jit(lambda xs, model=model: xs @ model.w[0].value)(xs))
    third = shapes // 3
    first, last = statistics.median(seconds[:third]), statistics.median(seconds[-third:])
    print(f"sweep: {1e3 * first:.1f} ms a trace at first, {1e3 * last:.1f} ms in the end; {resident():.0f} MB")
    return [f"a trace takes {last / first:.1f} times as long in the end"] if last > 2 * first else []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--shapes", type=int, default=300)
    options = parser.parse_args()
    wrong = train(options.steps) + sweep(options.shapes)
    for line in wrong:
        print("WRONG:", line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
