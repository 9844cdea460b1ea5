"""Finds a lens from the light behind it: FDTD whose gradient runs the fields backwards.

    python examples/fdtd.py --steps 400 --size 96 --out out

The electric and the magnetic field take turns on a staggered grid (Yee), and each update
can be subtracted again. So `st.Reversible` undoes the steps from the last fields, and
stores none. The walls reflect: what an absorbing wall takes away cannot be brought back.
"""

from __future__ import annotations

import argparse
import pathlib

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import statetransform as st
from measuring import deviation, measure, show
from statetransform import Param, State, transform

COURANT = 0.5


class Cavity:
    """Light in a box of mirrors: E across the plane, H in it, and the permittivity."""

    def __init__(self, size: int):
        zeros = jnp.zeros((size, size))
        self.e = State(zeros, name="e")  # on the points of the grid
        self.hx = State(zeros[:, :-1], name="hx")  # between them
        self.hy = State(zeros[:-1, :], name="hy")
        self.inverse = Param(jnp.ones((size, size)), name="inverse")  # permittivity

    def magnetic(self, sign: float) -> None:
        """The update of H, or its opposite."""
        e = self.e.value
        self.hx.value = self.hx.value - sign * COURANT * jnp.diff(e, axis=1)
        self.hy.value = self.hy.value + sign * COURANT * jnp.diff(e, axis=0)

    def electric(self, sign: float, source: jax.Array) -> None:
        """The update of E, or its opposite. It stays zero on the walls."""
        curl = jnp.diff(self.hy.value[:, 1:-1], axis=0) - jnp.diff(
            self.hx.value[1:-1, :], axis=1
        )
        change = COURANT * self.inverse.value[1:-1, 1:-1] * curl
        e = self.e.value.at[1:-1, 1:-1].add(sign * change)
        self.e.value = e.at[e.shape[0] // 6, e.shape[1] // 2].add(sign * source)

    def step(self, source: jax.Array) -> jax.Array:
        """H, then E. Gives E where the detectors are."""
        self.magnetic(1.0)
        self.electric(1.0, source)
        return self.e.value[-len(self.e.value) // 6]

    def back(self, source: jax.Array) -> None:
        """Undoes `step`, last first."""
        self.electric(-1.0, source)
        self.magnetic(-1.0)

    def run(self, pulse: jax.Array, checkpoint: object = None) -> jax.Array:
        """What the detectors see: `[steps, size]`."""
        for field in (self.e, self.hx, self.hy):
            field.value = jnp.zeros_like(field.value)
        return transform.for_loop(self.step, pulse, checkpoint=checkpoint)


def main(steps: int = 400, size: int = 96, out: str = "out") -> None:
    cavity = Cavity(size)
    y, x = np.mgrid[:size, :size] / size - 0.5
    lens = jnp.where(x**2 + y**2 < 0.04, 0.5, 1.0)  # a disk of glass
    now = jnp.arange(steps)
    pulse = jnp.exp(-(((now - 40) / 15) ** 2)) * jnp.sin(0.3 * now)
    cavity.inverse.value = lens
    seen = transform.jit(lambda: cavity.run(pulse))()
    cavity.inverse.value = jnp.ones_like(lens)

    def gradient(checkpoint: object):
        misfit = lambda: ((cavity.run(pulse, checkpoint) - seen) ** 2).mean()
        return transform.jit(transform.grad(misfit, states=cavity.inverse))

    undone = st.Reversible(cavity.back)
    ways = {"all steps": None, "20 states": 20, "undone": undone}
    programs = {label: gradient(checkpoint) for label, checkpoint in ways.items()}
    slopes = {label: np.asarray(f()) for label, f in programs.items()}
    found, plain = measure(programs, rounds=3), slopes["all steps"]
    rows = [
        (label, f"{n:.2f}", time, deviation(slopes[label], plain))
        for label, (n, time) in found.items()
    ]
    show(["a gradient", "memory, MB", "time", "relative error"], rows)

    _, (truth, slope, bars) = plt.subplots(1, 3, figsize=(10, 3), layout="constrained")
    truth.imshow(lens, cmap="gray")
    truth.set(title="the lens", xticks=[], yticks=[])
    bound = float(np.quantile(np.abs(slopes["undone"]), 0.99))
    slope.imshow(slopes["undone"], cmap="RdBu", vmin=-bound, vmax=bound)
    slope.set(title="the gradient without it", xticks=[], yticks=[])
    drawn = bars.bar(
        list(found), [row[0] for row in found.values()], color=["0.7", "C0", "C1"]
    )
    bars.bar_label(drawn, fmt="%.2f")
    bars.set(title="memory of a gradient (MB)")
    bars.margins(y=0.15)
    picture = pathlib.Path(out) / "fdtd.png"
    picture.parent.mkdir(parents=True, exist_ok=True)
    plt.savefig(picture, dpi=110)
    print(f"picture: {picture}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=400, help="time steps")
    parser.add_argument("--size", type=int, default=96, help="grid points along each side")
    parser.add_argument("--out", default="out", help="folder for the picture")
    main(**vars(parser.parse_args()))
