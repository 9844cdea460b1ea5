"""Takes a recurrent model of flax, unchanged, through a thousand steps within a budget.

    python examples/nnx_budget.py --memory 2MB --steps 1000 --out out

The model is one that a user of `flax.nnx` has: a GRU cell, dropout, a readout, a variable
that counts its steps. It learns to say how a chaotic signal goes on. Three lines make the
loop remember less: `transform.scan` with a `MemoryBudget`, `transform.value_and_grad` with
what `nnx.state` gives, and `transform.jit` around the step. What they bring is
printed and drawn: memory and time of a training step with and without.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import optax
from flax import nnx

import statetransform as st
from common import measure, parser, save, show
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


def training(remember: object, options) -> tuple[Forecaster, object]:
    """A model, and the compiled step that trains it; `remember` is for the loop."""
    model = Forecaster(options.hidden, nnx.Rngs(0))
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


def main() -> None:
    known = parser(__doc__)
    known.add_argument("--memory", default="2MB", help="what the loop may remember")
    known.add_argument("--steps", type=int, default=1000)
    known.add_argument("--batch", type=int, default=32)
    known.add_argument("--hidden", type=int, default=32)
    known.add_argument("--iterations", type=int, default=40)
    options = known.parse_args()

    signal = mackey_glass(options.steps + 1, options.batch)
    budget = st.MemoryBudget(options.memory)
    ways = {"flax alone": None, f"within {options.memory}": budget}
    rows = [
        (name, *measure(training(way, options)[1], signal)) for name, way in ways.items()
    ]
    show([f"{options.steps} steps of a GRU", "memory, MB", "time, ms"], rows)

    model, train = training(budget, options)
    losses = [float(train(signal)) for _ in range(options.iterations)]
    for i in range(0, options.iterations, max(1, options.iterations // 4)):
        print(f"iteration {i:3}: error {losses[i]:.4f}")
    print(f"the model has seen {int(model.seen[...])} values, each of them once")

    _, (left, middle, right) = plt.subplots(1, 3, figsize=(10, 3.2), layout="constrained")
    names = list(ways)
    left.bar(names, [size / 1e6 for _, size, _ in rows], color=["tab:gray", "tab:green"])
    left.set_ylabel("memory of a training step, MB")
    middle.bar(names, [time for *_, time in rows], color=["tab:gray", "tab:green"])
    middle.set_ylabel("time of a training step, s")
    right.semilogy(losses)
    right.set(xlabel="iteration", ylabel="error of the next value")
    save(options.out, __file__)


if __name__ == "__main__":
    main()
