"""Finds the forces between atoms from how they move: gradients through a trajectory.

    python examples/molecular_dynamics.py --steps 800 --side 7 --out out

A cluster of Lennard-Jones atoms in two dimensions is released and watched for a while.
Depth and width of the potential are not known; they are found by following the trajectory
backwards. `checkpoint=20` keeps 20 of its steps; `st.Reversible` keeps none, for velocity
Verlet can be run backwards in time. Units: those of the true potential.
"""

from __future__ import annotations

import argparse
import pathlib

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

import statetransform as st
from measuring import deviation, measure, show
from statetransform import Param, State, transform

STEP = 0.005


class Cluster:
    """Atoms with positions and velocities, and the potential between them."""

    def __init__(self, side: int, seed: int):
        rows, columns = np.mgrid[:side, :side]
        lattice = np.stack([columns + 0.5 * (rows % 2), rows * 3**0.5 / 2], -1).reshape(
            -1, 2
        ) * 2 ** (1 / 6)
        self.start = jnp.asarray(lattice - lattice.mean(0), jnp.float32)
        self.kick = 0.4 * jax.random.normal(jax.random.key(seed), self.start.shape)
        self.r, self.v = State(self.start, name="r"), State(self.kick, name="v")
        self.depth, self.width = (
            Param(jnp.float32(1.0), name="depth"),
            Param(jnp.float32(1.0), name="width"),
        )

    def potential(self, r: jax.Array) -> jax.Array:
        """The energy of all pairs."""
        i, j = np.triu_indices(len(self.start), 1)
        power = (self.width.value**2 / ((r[i] - r[j]) ** 2).sum(-1)) ** 3
        return 4 * self.depth.value * (power**2 - power).sum()

    def energy(self) -> jax.Array:
        return self.potential(self.r.value) + 0.5 * (self.v.value**2).sum()

    def step(self) -> tuple[jax.Array, jax.Array]:
        """Velocity Verlet, twice the half of a kick. Gives the positions and the energy."""
        force = jax.grad(
            lambda r: -self.potential(r)
        )  # reads states only: JAX's own will do
        half = self.v.value + 0.5 * STEP * force(self.r.value)
        self.r.value = self.r.value + STEP * half
        self.v.value = half + 0.5 * STEP * force(self.r.value)
        return self.r.value, self.energy()

    def back(self) -> None:
        """Undoes `step`: the same kicks, the other way round."""
        force = jax.grad(lambda r: -self.potential(r))
        half = self.v.value - 0.5 * STEP * force(self.r.value)
        self.r.value = self.r.value - STEP * half
        self.v.value = half - 0.5 * STEP * force(self.r.value)

    def run(self, steps: int, checkpoint: object = None) -> tuple[jax.Array, jax.Array]:
        """Positions `[steps, atoms, 2]` and energies `[steps]` from the start."""
        self.r.value, self.v.value = self.start, self.kick
        return transform.for_loop(self.step, length=steps, checkpoint=checkpoint)


def main(steps: int = 800, side: int = 7, iterations: int = 60, out: str = "out") -> None:
    cluster = Cluster(side, seed=1)
    seen, energies = transform.jit(lambda: cluster.run(steps))()
    drift = float(jnp.abs(energies - energies[0]).max() / jnp.abs(energies[0]))
    print(f"{len(cluster.start)} atoms, relative change of the energy {drift:.1e}")

    params = st.states(cluster, Param)
    guess = {"depth": jnp.float32(0.7), "width": jnp.float32(0.97)}
    st.update(params, guess)

    def misfit(checkpoint: object) -> jax.Array:
        positions, _ = cluster.run(steps, checkpoint)
        return ((positions - seen) ** 2).mean()

    def gradient(checkpoint: object):
        return transform.jit(
            transform.value_and_grad(lambda: misfit(checkpoint), states=params)
        )

    ways = {"all steps": None, "each step again": "step", "20 states": 20}
    ways["undone"] = st.Reversible(cluster.back)
    programs = {label: gradient(checkpoint) for label, checkpoint in ways.items()}
    found = measure(programs)
    slopes = {label: np.stack(list(f()[1].values())) for label, f in programs.items()}
    errors = {label: deviation(x, slopes["all steps"]) for label, x in slopes.items()}
    rows = [(label, n, time, errors[label]) for label, (n, time) in found.items()]
    show(["a gradient", "memory, MB", "time", "relative error"], rows)

    optimizer = optax.adam(optax.cosine_decay_schedule(0.02, iterations))
    moments, slope, history = optimizer.init(guess), gradient(20), []
    for _ in range(iterations):
        value, slopes = slope()
        changes, moments = optimizer.update(slopes, moments)
        st.update(params, optax.apply_updates(st.values(params), changes))
        history.append(float(value))
    print(f"misfit {history[0]:.2e} -> {history[-1]:.2e}")
    print(
        ", ".join(
            f"{name} {float(param.value):.4f} (in truth 1)"
            for name, param in params.items()
        )
    )

    _, (paths, curve, forces, memory) = plt.subplots(
        1, 4, figsize=(11, 3), layout="constrained"
    )
    paths.plot(seen[:, :, 0], seen[:, :, 1], linewidth=0.6)
    paths.plot(cluster.start[:, 0], cluster.start[:, 1], "C0.", markersize=2)
    paths.set(title="trajectories", xticks=[], yticks=[], aspect="equal")
    curve.semilogy(history, color="C0")
    curve.set(title="misfit of the positions", xlabel="iteration")
    x = np.linspace(0.95, 2.5, 200)
    found = {name: float(param.value) for name, param in params.items()}
    for label, style, at in (
        ("true", "C0-", {"depth": 1, "width": 1}),
        ("first guess", "C1--", guess),
        ("found", "C2:", found),
    ):
        power = (at["width"] / x) ** 6
        forces.plot(x, 4 * at["depth"] * (power**2 - power), style, label=label)
    forces.set(title="the potential", xlabel="distance", ylim=(-1.2, 1))
    forces.legend()
    bars = memory.bar(
        [row[0].replace(" ", "\n", 1) for row in rows],
        [row[1] for row in rows],
        color=["0.7", "C0", "C0", "C1"],
    )
    memory.bar_label(bars, fmt="%.1f")
    memory.set(title="memory of a gradient (MB)")
    memory.margins(y=0.15)
    picture = pathlib.Path(out) / "molecular_dynamics.png"
    picture.parent.mkdir(parents=True, exist_ok=True)
    plt.savefig(picture, dpi=110)
    print(f"picture: {picture}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=800, help="time steps")
    parser.add_argument("--side", type=int, default=7, help="atoms along each side")
    parser.add_argument("--iterations", type=int, default=60, help="steps of the fit")
    parser.add_argument("--out", default="out", help="folder for the picture")
    main(**vars(parser.parse_args()))
