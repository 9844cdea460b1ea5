"""Finds the plasticity of a spiking network from its spikes, through 5,000 steps.

    python examples/spiking_delays.py --steps 5000 --memory 8MB --out out

Each spike arrives after a delay: a ring buffer holds the last milliseconds. Synapses change
while the network runs: one whose spike arrives just before its target's grows stronger, one
just after it weaker. Only the spikes of the network are known, neither its inputs nor the
rates of plasticity of its exciting and inhibiting neurons. The fit makes these spikes
likely: the model follows the recording, and how surprising each spike is depends on the
membrane, so on the synapses, so on all earlier steps.

Every step writes the matrix of synapses. Storing it 5,000 times is what the budget
avoids. The optimizer is SciPy's: to it the model is a function of a vector.
"""

from __future__ import annotations

import argparse
import pathlib

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from jax.flatten_util import ravel_pytree
from scipy.optimize import minimize

import statetransform as st
from statetransform import Param, RandomState, State, transform

DELAY = 16  # steps of 0.5 ms: the longest delay
UNIT = 0.02  # of plasticity


class Network:
    """Integrate-and-fire neurons with delays and plastic synapses."""

    def __init__(self, n: int, seed: int):
        k_weight, k_delay, k_sign = jax.random.split(jax.random.key(seed), 3)
        weights = 2 / n * jnp.abs(jax.random.normal(k_weight, (n, n))) * (1 - jnp.eye(n))
        self.inhibits = jax.random.bernoulli(k_sign, 0.25, (n,))
        self.born = jnp.where(self.inhibits, -2 * weights, weights)  # to, from
        self.delays = jax.random.randint(k_delay, (n,), 2, DELAY)
        self.drive = Param(jnp.full(n, 1.1), name="drive")
        self.exciting = Param(jnp.float32(0.0), name="exciting")
        self.inhibiting = Param(jnp.float32(0.0), name="inhibiting")
        self.v = State(jnp.zeros(n), name="v")
        self.synapses = State(self.born, name="synapses")
        self.axons = State(
            jnp.zeros((DELAY, n)), name="axons"
        )  # a ring: spikes on their way
        self.before = State(jnp.zeros(n), name="before")  # what arrived lately
        self.after = State(jnp.zeros(n), name="after")  # what was fired lately
        self.now = State(0, name="now")
        self.noise = RandomState(seed + 1, name="noise")

    def reset(self) -> None:
        n = len(self.delays)
        self.v.value = jnp.linspace(0.0, 0.9, n)
        self.synapses.value, self.axons.value = self.born, jnp.zeros((DELAY, n))
        self.before.value = self.after.value = jnp.zeros(n)
        self.now.value = 0

    def step(self, seen: jax.Array | None = None) -> jax.Array:
        """Fires, or follows spikes that were seen and says how surprising they are."""
        ring = (self.now.value - self.delays) % DELAY, jnp.arange(len(self.delays))
        arriving = self.axons[ring]
        push = 0.03 * self.drive.value + self.synapses.value @ arriving
        v = 0.97 * self.v.value + push
        urge = 15 * (v - 1)  # the log-odds of a spike
        if seen is None:
            spikes = jax.random.bernoulli(self.noise.split(), jax.nn.sigmoid(urge)) * 1.0
        else:
            spikes = seen.astype(v.dtype)
        self.v.value = v * (1 - spikes)
        self.learn(arriving, spikes)
        self.axons[self.now.value % DELAY] = spikes
        self.now.value += 1
        return spikes if seen is None else jax.nn.softplus(urge) - spikes * urge

    def learn(self, arriving: jax.Array, spikes: jax.Array) -> None:
        """Plasticity by the timing of spikes. No synapse more than doubles."""
        w = self.synapses.value
        stronger = jnp.outer(spikes, self.before.value) * (2 * self.born - w)
        weaker = 0.5 * jnp.outer(self.after.value, arriving) * w
        rate = jnp.where(self.inhibits, self.inhibiting.value, self.exciting.value)
        self.synapses.value = w + UNIT * rate * (stronger - weaker)
        self.before.value = 0.95 * self.before.value + arriving
        self.after.value = 0.95 * self.after.value + spikes

    def record(self, steps: int) -> jax.Array:
        """The spikes of a free run: `[steps, n]`."""
        self.reset()
        return transform.for_loop(self.step, length=steps)

    def surprise(self, recorded: jax.Array, checkpoint: object = None) -> jax.Array:
        """Minus the log-likelihood of recorded spikes, for each step."""
        self.reset()
        return transform.for_loop(self.step, recorded, checkpoint=checkpoint).sum(1).mean()


def temporary_bytes(compiled, *args) -> int:
    """Temporary memory of a function made by `transform.jit`."""
    return compiled.lower(*args).compile().memory_analysis().temp_size_in_bytes


def main(
    steps: int = 5000,
    neurons: int = 48,
    iterations: int = 30,
    memory: str = "8MB",
    out: str = "out",
) -> None:
    network = Network(neurons, seed=0)
    params = st.states(network, Param)
    start = st.values(params)
    place = jnp.arange(neurons)
    truth = {"drive": 1.1 + 0.2 * jnp.sin(0.7 * place), "exciting": 0.8, "inhibiting": 0.4}
    st.update(params, {name: jnp.float32(value) for name, value in truth.items()})
    recorded = transform.jit(lambda: network.record(steps))().astype(jnp.int8)
    st.update(params, start)

    def gradient(checkpoint: object):
        loss = lambda recorded: network.surprise(recorded, checkpoint)
        return transform.jit(transform.value_and_grad(loss, states=params))

    budget = st.MemoryBudget(memory)
    slope = gradient(budget)
    within = temporary_bytes(slope, recorded)
    plain = temporary_bytes(gradient(None), recorded)
    print(budget.choices[-1])
    print(
        f"temporary memory of a gradient: {within / 1e6:.1f} MB; "
        f"the plain loop needs {plain / 1e6:.1f} MB"
    )

    vector, unravel = ravel_pytree(start)
    history = []

    def evaluate(vector: np.ndarray) -> tuple[float, np.ndarray]:
        st.update(params, unravel(jnp.asarray(vector, jnp.float32)))
        value, slopes = slope(recorded)
        history.append(float(value))
        return history[-1], np.asarray(ravel_pytree(slopes)[0], float)

    print(f"fitting {vector.size} parameters to {int(recorded.sum())} spikes", flush=True)
    settings = {"maxiter": iterations}
    found = minimize(evaluate, vector, jac=True, method="L-BFGS-B", options=settings)
    st.update(params, unravel(jnp.asarray(found.x, jnp.float32)))
    print(
        f"negative log likelihood {history[0]:.3f} -> {found.fun:.3f} "
        f"in {found.nit} iterations"
    )
    off = jnp.abs(network.drive.value - truth["drive"]).max()
    print(f"inputs found to within {float(off):.2f}")
    kinds = ["exciting", "inhibiting"]
    values = [float(params[name].value) for name in kinds]
    for name, value in zip(kinds, values, strict=True):
        print(f"plasticity of {name} synapses: {value:.2f}, in truth {truth[name]}")

    _, axes = plt.subplots(1, 4, figsize=(12, 3), layout="constrained")
    curve, drives, rates, size = axes
    curve.plot(np.minimum.accumulate(history), color="C0")
    curve.set(title="negative log likelihood", xlabel="evaluation")
    curve.grid(alpha=0.3)
    drives.plot(truth["drive"], "-", color="0.7", label="true")
    drives.plot(network.drive.value, ".", color="C0", label="found")
    drives.set(title="input of each neuron", xlabel="neuron")
    drives.margins(y=0.25)
    drives.legend(loc="upper right", ncols=2)
    rates.bar([0, 1], [truth[name] for name in kinds], 0.4, color="0.7", label="true")
    bars = rates.bar([0.4, 1.4], values, 0.4, color="C0", label="found")
    rates.bar_label(bars, fmt="%.2f")
    rates.set_xticks([0.2, 1.2], kinds)
    rates.set(title="plasticity of synapses")
    rates.legend()
    sizes, colors = [plain / 1e6, within / 1e6], ["0.7", "C0"]
    bars = size.bar(["all steps", f"{memory} budget"], sizes, color=colors)
    size.bar_label(bars, fmt="%.1f")
    size.set(title="memory of a gradient (MB)")
    size.margins(y=0.15)
    picture = pathlib.Path(out) / "spiking_delays.png"
    picture.parent.mkdir(parents=True, exist_ok=True)
    plt.savefig(picture, dpi=110)
    print(f"picture: {picture}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=5000, help="time steps of 0.5 ms")
    parser.add_argument("--neurons", type=int, default=48, help="neurons in the network")
    parser.add_argument("--iterations", type=int, default=30, help="steps of the optimizer")
    parser.add_argument(
        "--memory", default="8MB", help="bytes that a loop may store, such as 8MB"
    )
    parser.add_argument("--out", default="out", help="folder for the picture")
    main(**vars(parser.parse_args()))
