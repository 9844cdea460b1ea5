"""What a long ring buffer costs a gradient, and what to do about it.

    python examples/delay_lines.py --steps 2000 --neurons 256 --slots 200 --out out

The axons of a spiking network hold the spikes of the last 200 steps: a buffer that is most
of the state. Writing to it and reading from it is linear, so the plain gradient does not
keep it. Whatever stores the state of each step does: `checkpoint="step"` has 2,000 copies
of it. The program compares the ways to checkpoint.
"""

from __future__ import annotations

import argparse
import pathlib
import tempfile

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt

import statetransform as st
from measuring import measure, show
from statetransform import Param, State, transform


@jax.custom_jvp
def spike(v: jax.Array) -> jax.Array:
    """A step, with the slope of a smooth one."""
    return (v > 0) * 1.0


spike.defjvps(lambda dv, out, v: dv / (1 + 5 * jnp.abs(v)) ** 2)


class Network:
    """Integrate-and-fire neurons; a delay for each axon."""

    def __init__(self, n: int, slots: int, seed: int = 0):
        k_weight, k_delay = jax.random.split(jax.random.key(seed))
        self.weights = Param(2 / n * jax.random.normal(k_weight, (n, n)), name="weights")
        self.delays = jax.random.randint(k_delay, (n,), 1, slots)
        self.v = State(jnp.zeros(n), name="v")
        self.axons = State(jnp.zeros((slots, n)), name="axons")  # the ring

    def step(self, now: jax.Array) -> jax.Array:
        """What arrives now was sent a delay ago. Gives the fraction that fires."""
        slots, n = self.axons.value.shape
        arriving = self.axons[(now - self.delays) % slots, jnp.arange(n)]
        v = 0.95 * self.v.value + self.weights.value @ arriving + 0.06
        fired = spike(v - 1)
        self.v.value = v * (1 - fired)
        self.axons[now % slots] = fired
        return fired.mean()

    def rate(self, steps: int, checkpoint: object = None) -> jax.Array:
        """How far the mean rate is from 0.02."""
        self.v.value = jnp.linspace(0.0, 0.9, len(self.delays))
        self.axons.value = jnp.zeros_like(self.axons.value)
        rates = transform.for_loop(self.step, jnp.arange(steps), checkpoint=checkpoint)
        return (rates.mean() - 0.02) ** 2


def main(
    steps: int = 2000,
    neurons: int = 256,
    slots: int = 200,
    memory: str = "2MB",
    disk: str = "100MB",
    out: str = "out",
) -> None:
    network = Network(neurons, slots)
    places = network.axons.value.nbytes / 1e3
    print(
        f"the ring takes {places:.0f} kB, a copy of it for each of {steps} steps "
        f"{places * steps / 1e3:.0f} MB"
    )
    with tempfile.TemporaryDirectory() as folder:  # take one on a fast disk
        ways = {
            "all steps": None,
            "each step again": "step",
            "20 states": 20,
            memory: st.MemoryBudget(memory),
            f"{memory} and disk": st.MemoryBudget(memory, disk=disk, folder=folder),
        }

        def gradient(checkpoint: object):
            loss = lambda: network.rate(steps, checkpoint)
            return transform.jit(transform.grad(loss, states=network.weights))

        programs = {label: gradient(checkpoint) for label, checkpoint in ways.items()}
        found = measure(programs, rounds=3)
        counted = {"each step again": 2 * steps}
        counted["20 states"] = st.schedule(steps, 20).evaluations
        rows = []
        for label, (size, time) in found.items():
            choice = getattr(ways[label], "choices", None)
            total = choice[-1].evaluations if choice else counted.get(label, steps)
            rows.append((label, size, f"{total / steps:.2f}", time))
        show(["a gradient", "memory, MB", "evaluations per step", "time"], rows)

    _, bars = plt.subplots(figsize=(6, 3), layout="constrained")
    labels = [label.replace(" ", "\n", 1) for label in found]
    colors = ["0.7", "0.7", "C0", "C0", "C0"]
    drawn = bars.bar(labels, [size for size, _ in found.values()], color=colors)
    bars.bar_label(drawn, fmt="%.1f")
    bars.set(title=f"memory of a gradient through {steps} steps (MB)")
    bars.margins(y=0.15)
    picture = pathlib.Path(out) / "delay_lines.png"
    picture.parent.mkdir(parents=True, exist_ok=True)
    plt.savefig(picture, dpi=110)
    print(f"picture: {picture}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=2000, help="time steps")
    parser.add_argument("--neurons", type=int, default=256, help="neurons in the network")
    parser.add_argument("--slots", type=int, default=200, help="steps that the ring holds")
    parser.add_argument(
        "--memory", default="2MB", help="bytes that a loop may store, such as 2MB"
    )
    parser.add_argument("--disk", default="100MB", help="bytes in files, such as 100MB")
    parser.add_argument("--out", default="out", help="folder for the picture")
    main(**vars(parser.parse_args()))
