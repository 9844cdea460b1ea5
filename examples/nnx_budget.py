"""Takes a recurrent model of flax, unchanged, through a thousand steps within a budget.

    python examples/nnx_budget.py --memory 2MB --steps 1000 --out out

An ordinary flax.nnx model: a GRU cell, dropout, a readout, a variable that counts its
steps. It learns to predict a chaotic signal. Three changed lines reduce its memory:
`transform.scan` with a `MemoryBudget`, `transform.value_and_grad` with what `nnx.state`
gives, and `transform.jit` around the step. The program prints the memory and the time of a
training step with and without them.
"""

from __future__ import annotations

import argparse
import pathlib

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import optax
from flax import nnx

import statetransform as st
from measuring import measure, show
from statetransform import transform


class Forecaster(nnx.Module):
    """A guess of the next value, as one would write it for flax alone."""

    def __init__(self, hidden: int, rngs: nnx.Rngs):
        self.hidden = hidden
        self.cell = nnx.GRUCell(1, hidden, rngs=rngs)
        self.dropout = nnx.Dropout(0.05, rngs=rngs)
        self.readout = nnx.Linear(hidden, 1, rngs=rngs)
        self.seen = nnx.Variable(jnp.zeros((), jnp.int32))

    def __call__(self, memory: jax.Array, value: jax.Array) -> tuple[jax.Array, jax.Array]:
        self.seen[...] = self.seen[...] + 1
        memory, features = self.cell(memory, value)
        return memory, self.readout(self.dropout(features))


def mackey_glass(steps: int, batch: int, delay: int = 17) -> jax.Array:
    """A signal that depends on what it was a while ago: (steps, batch, 1)."""

    def step(past: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
        new = past[-1] + 0.2 * past[0] / (1 + past[0] ** 10) - 0.1 * past[-1]
        return jnp.concatenate([past[1:], new[None]]), new

    start = 0.6 + 0.6 * jax.random.uniform(jax.random.key(0), (delay, batch, 1))
    return jax.lax.scan(step, start, None, length=steps + 100)[1][100:]


def training(remember: object, hidden: int) -> tuple[Forecaster, object]:
    """A model, and the compiled step that trains it; `remember` is for the loop."""
    model = Forecaster(hidden, nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(3e-3), wrt=nnx.Param)

    def loss(signal: jax.Array) -> jax.Array:
        def step(memory: jax.Array, pair: tuple[jax.Array, jax.Array]):
            memory, guess = model(memory, pair[0])
            return memory, jnp.mean((guess - pair[1]) ** 2)

        start = jnp.zeros((signal.shape[1], model.hidden))
        pairs = (signal[:-1], signal[1:])
        return jnp.mean(transform.scan(step, start, pairs, checkpoint=remember)[1])

    @transform.jit
    def train(signal: jax.Array) -> jax.Array:
        params = nnx.state(model, nnx.Param)
        value, gradient = transform.value_and_grad(loss, argnums=None, states=params)(
            signal
        )
        optimizer.update(model, gradient)
        return value

    return model, train


def main(
    memory: str = "2MB",
    steps: int = 1000,
    batch: int = 32,
    hidden: int = 32,
    iterations: int = 40,
    out: str = "out",
) -> None:
    signal = mackey_glass(steps + 1, batch)
    budget = st.MemoryBudget(memory)
    ways = {"flax alone": None, f"within {memory}": budget}
    jitted = {name: training(way, hidden)[1] for name, way in ways.items()}
    found = measure(jitted, signal)
    show(
        [f"{steps} steps of a GRU", "memory, MB", "time"],
        [(name, *figures) for name, figures in found.items()],
    )

    model, train = training(budget, hidden)
    losses = [float(train(signal)) for _ in range(iterations)]
    for i in range(0, iterations, max(1, iterations // 4)):
        print(f"iteration {i:3}: error {losses[i]:.4f}")
    print(f"the model has seen {int(model.seen[...])} values, each of them once")

    _, (left, right) = plt.subplots(1, 2, figsize=(7, 3.2), layout="constrained")
    names = list(ways)
    bars = left.bar(names, [size for size, _ in found.values()], color=["0.7", "C0"])
    left.bar_label(bars, fmt="%.3g", padding=2)
    left.set(title="memory of a training step (MB)")
    left.margins(y=0.15)
    right.semilogy(losses)
    right.set(title="error of the next value", xlabel="iteration")
    picture = pathlib.Path(out) / "nnx_budget.png"
    picture.parent.mkdir(parents=True, exist_ok=True)
    plt.savefig(picture, dpi=110)
    print(f"picture: {picture}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--memory", default="2MB", help="bytes that the loop may store, such as 2MB"
    )
    parser.add_argument("--steps", type=int, default=1000, help="time steps of a sequence")
    parser.add_argument("--batch", type=int, default=32, help="sequences in a step")
    parser.add_argument("--hidden", type=int, default=32, help="units of the GRU cell")
    parser.add_argument("--iterations", type=int, default=40, help="training steps")
    parser.add_argument("--out", default="out", help="folder for the picture")
    main(**vars(parser.parse_args()))
