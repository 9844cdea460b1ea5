"""Fits a spiking network with delays and plasticity through 5,000 steps, within a budget.

    python examples/spiking_delays.py --steps 5000 --memory 8MB --out out

Neurons receive the spikes of others after a delay of their own: a ring buffer holds the
last milliseconds. Synapses change while the network runs, by the timing of spikes (STDP).
A recorded network has inputs and a rate of plasticity that nobody knows; they are found
from its firing rates, by gradients through all steps and all changes of the synapses.

Every step writes the matrix of synapses. Storing it 5,000 times is what the budget
avoids.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import optax

import common
import statetransform as st
from statetransform import Param, State, transform

DELAY = 16  # steps of 0.5 ms: the longest delay
BIN = 100  # steps over which spikes are counted


@jax.custom_jvp
def spike(v):
    """1 above the threshold; its derivative pretends to be smooth."""
    return (v > 0).astype(v.dtype)


spike.defjvp(lambda p, t: (spike(*p), t[0] / (1 + 5 * jnp.abs(p[0])) ** 2))


class Network:
    """Integrate-and-fire neurons with delays and plastic synapses."""

    def __init__(self, n, seed):
        k_weight, k_delay, k_sign = jax.random.split(jax.random.key(seed), 3)
        weights = jnp.abs(jax.random.normal(k_weight, (n, n))) * (1 - jnp.eye(n)) * 0.6 / n
        self.born = jnp.where(
            jax.random.bernoulli(k_sign, 0.25, (1, n)), -2 * weights, weights
        )  # to, from
        self.delays = jax.random.randint(k_delay, (n,), 2, DELAY)
        self.drive = Param(jnp.full(n, 1.3), name="drive")
        self.plasticity = Param(jnp.float32(0.0), name="plasticity")
        self.v = State(jnp.zeros(n), name="v")
        self.synapses = State(self.born, name="synapses")
        self.axons = State(
            jnp.zeros((DELAY, n)), name="axons"
        )  # a ring of spikes that are on their way
        self.trace = State(jnp.zeros(n), name="trace")
        self.now = State(0, name="now")

    def reset(self):
        n = len(self.delays)
        self.v.value = jnp.linspace(0.0, 0.9, n)
        self.synapses.value, self.now.value = self.born, 0
        self.axons.value, self.trace.value = jnp.zeros((DELAY, n)), jnp.zeros(n)

    def step(self):
        now = self.now.value
        arriving = self.axons.value[
            (now - self.delays) % DELAY, jnp.arange(len(self.delays))
        ]
        v = 0.97 * self.v.value + 0.03 * self.drive.value + self.synapses.value @ arriving
        spikes = spike(v - 1.0)
        self.v.value = v - jax.lax.stop_gradient(spikes) * v  # back to rest
        # What arrives just before a spike grows stronger, what arrives after it weaker.
        change = jnp.outer(spikes, self.trace.value) - jnp.outer(self.trace.value, arriving)
        self.synapses.value = (
            self.synapses.value + 1e-3 * self.plasticity.value * jnp.abs(self.born) * change
        )
        self.trace.value = 0.95 * self.trace.value + arriving
        self.axons.value = self.axons.value.at[now % DELAY].set(spikes)
        self.now.value = now + 1
        return spikes

    def run(self, steps, checkpoint=None):
        """Firing rates in bins, `[steps / BIN, n]`: spikes are summed, then stacked."""
        self.reset()

        def one_bin():
            return transform.for_loop(self.step, length=BIN).sum(0) / BIN

        return transform.for_loop(one_bin, length=steps // BIN, checkpoint=checkpoint)


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--neurons", type=int, default=48)
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument(
        "--memory", default="8MB", help="what the time loop may use to remember its steps"
    )
    options = parser.parse_args()

    network = Network(options.neurons, seed=0)
    hidden = {
        "drive": 1.3 + 0.35 * jnp.sin(jnp.arange(options.neurons) * 0.7),
        "plasticity": jnp.float32(0.8),
    }
    start = {"drive": network.drive.value, "plasticity": network.plasticity.value}
    params = st.states(network, Param)
    st.update(params, hidden)
    recorded = transform.jit(lambda: network.run(options.steps))()
    st.update(params, start)

    rate = optax.cosine_decay_schedule(0.04, options.iterations)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(rate))
    moments = State(optimizer.init(start), name="moments")

    def misfit(checkpoint):
        return ((network.run(options.steps, checkpoint) - recorded) ** 2).sum() / (
            recorded**2
        ).sum()

    def make(checkpoint):
        @transform.jit
        def improve():
            value, slopes = transform.value_and_grad(
                lambda: misfit(checkpoint), states=params
            )()
            changes, moments.value = optimizer.update(slopes, moments.value)
            st.update(params, optax.apply_updates(st.values(params), changes))
            return value

        return improve

    budget = st.MemoryBudget(options.memory)
    improve = make(budget)
    within, plain = common.temporary_bytes(improve), common.temporary_bytes(make(None))
    print(budget.choices[-1])
    print(
        f"temporary memory of a step of the fit: {within / 1e6:.1f} MB; "
        f"the plain loop needs {plain / 1e6:.1f} MB"
    )
    history = [float(improve()) for _ in range(options.iterations)]
    print(f"misfit {history[0]:.3f} -> {history[-1]:.3f}")
    print(
        f"plasticity {float(network.plasticity.value):.2f}, "
        f"in truth {float(hidden['plasticity']):.2f}"
    )

    _, (curve, drives, memory) = plt.subplots(1, 3, figsize=(10, 3), layout="constrained")
    curve.semilogy(history, color="k")
    curve.set(title="misfit of the firing rates", xlabel="iteration")
    curve.grid(alpha=0.3)
    drives.plot(hidden["drive"], "-", color="0.6", label="in truth")
    drives.plot(network.drive.value, ".", color="tab:blue", label="found")
    drives.set(title="input of each neuron", xlabel="neuron")
    drives.margins(y=0.25)
    drives.legend(loc="upper right", ncols=2)
    bars = memory.bar(
        ["all steps", f"{options.memory} budget"],
        [plain / 1e6, within / 1e6],
        color=["0.7", "tab:blue"],
    )
    memory.bar_label(bars, fmt="%.1f")
    memory.set(title="memory of a step of the fit (MB)")
    memory.margins(y=0.15)
    common.save(options.out, __file__)


if __name__ == "__main__":
    main()
