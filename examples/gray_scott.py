"""Two chemicals make patterns; the adjoint says what they depend on, and finds their rates.

    python examples/gray_scott.py --steps 3000 --size 96 --out out

The Gray-Scott model: `u` is fed into a dish, `v` eats it and is removed. From three
pictures of the dish the rates of feeding and removal are found by gradient descent
through the simulation. Then one backward pass, the adjoint, says for every point of the
dish how much the final amount of `v` would change if a little more were fed just there.
"""

from __future__ import annotations

import argparse
import pathlib

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import SymLogNorm

import statetransform as st
from statetransform import Param, State, transform

RATES = {"feed": 0.037, "kill": 0.06}  # stripes that grow and split
SCALE = {"feed": 1e-3, "kill": 1e-3}  # how large a change of a rate is


def laplacian(a: jax.Array) -> jax.Array:
    """Nine points, periodic."""
    near = sum(jnp.roll(a, shift, axis) for shift in (1, -1) for axis in (0, 1))
    far = sum(jnp.roll(a, (i, j), (0, 1)) for i in (1, -1) for j in (1, -1))
    return 0.2 * near + 0.05 * far - a


class Dish:
    """What is in the dish, and at which rates it is fed and drained."""

    def __init__(self, size: int):
        y, x = np.mgrid[:size, :size] / size
        seeds = [(0.3, 0.3), (0.55, 0.6), (0.75, 0.35), (0.35, 0.75)]
        spot = sum(np.exp(-(((x - a) ** 2 + (y - b) ** 2) / 0.04**2)) for a, b in seeds)
        self.start = (
            jnp.asarray(1 - 0.5 * spot, jnp.float32),
            jnp.asarray(0.25 * spot, jnp.float32),
        )
        self.u, self.v = (
            State(field, name=name) for name, field in zip("uv", self.start, strict=True)
        )
        self.feed = Param(jnp.float32(RATES["feed"]), name="feed")
        self.kill = Param(jnp.float32(RATES["kill"]), name="kill")
        self.more = Param(
            jnp.zeros((size, size)), name="more"
        )  # fed in addition, point by point

    def step(self) -> None:
        u, v = self.u.value, self.v.value
        feed = self.feed.value + self.more.value
        eaten = u * v * v
        self.u.value = u + 0.16 * laplacian(u) - eaten + feed * (1 - u)
        self.v.value = v + 0.08 * laplacian(v) + eaten - (feed + self.kill.value) * v

    def watch(self, steps: int, pictures: int, checkpoint: object = None) -> jax.Array:
        """`v`, photographed at even intervals: `[pictures, size, size]`."""
        self.u.value, self.v.value = self.start

        def until_the_next() -> jax.Array:
            transform.for_loop(self.step, length=steps // pictures, checkpoint=checkpoint)
            return self.v.value

        return transform.for_loop(until_the_next, length=pictures)


def temporary_bytes(compiled, *args) -> int:
    """Temporary memory of a function made by `transform.jit`."""
    return compiled.lower(*args).compile().memory_analysis().temp_size_in_bytes


def main(steps: int = 3000, size: int = 96, iterations: int = 40, out: str = "out") -> None:
    dish, pictures = Dish(size), 3
    taken = transform.jit(lambda: dish.watch(steps, pictures))()
    rates = {"feed": dish.feed, "kill": dish.kill}
    st.update(rates, {"feed": jnp.float32(0.038), "kill": jnp.float32(0.0605)})

    def misfit(checkpoint: object) -> jax.Array:
        return ((dish.watch(steps, pictures, checkpoint) - taken) ** 2).sum() / (
            taken**2
        ).sum()

    def gradient(checkpoint: object):
        return transform.jit(
            transform.value_and_grad(lambda: misfit(checkpoint), states=rates)
        )

    plain, few = (temporary_bytes(gradient(checkpoint)) for checkpoint in (None, "sqrt"))
    print(
        f"temporary memory of a gradient: {few / 1e6:.1f} MB; "
        f"with every step stored, {plain / 1e6:.1f} MB"
    )

    slope, history, path = gradient("sqrt"), [], []
    speed, size = dict.fromkeys(rates, 0.0), dict.fromkeys(rates, 0.0)
    for i in range(1, iterations + 1):
        path.append({name: float(rate.value) for name, rate in rates.items()})
        value, slopes = slope()
        history.append(float(value))
        for name, rate in rates.items():  # Adam, in units of the rates' own scale
            scaled = float(slopes[name]) * SCALE[name]
            speed[name] = 0.8 * speed[name] + 0.2 * scaled
            size[name] = 0.95 * size[name] + 0.05 * scaled**2
            move = (
                speed[name] / (1 - 0.8**i) / ((size[name] / (1 - 0.95**i)) ** 0.5 + 1e-12)
            )
            rate.value = rate.value - 0.12 * SCALE[name] * 0.96**i * move
    print(f"misfit {history[0]:.2e} -> {history[-1]:.2e}")
    print(
        ", ".join(
            f"{name} {float(rate.value):.5f} (in truth {RATES[name]})"
            for name, rate in rates.items()
        )
    )

    amount = lambda: dish.watch(steps, pictures, "sqrt")[-1].mean()
    adjoint = transform.jit(transform.grad(amount, states=dish.more))()

    figure, axes = plt.subplots(1, 3, figsize=(10, 3.2), layout="constrained")
    image = axes[0].imshow(taken[-1], cmap="magma")
    axes[0].set(title="v at the end", xticks=[], yticks=[])
    figure.colorbar(image, ax=axes[0], shrink=0.85)
    limit = float(jnp.abs(adjoint).max())
    image = axes[1].imshow(
        adjoint, cmap="RdBu_r", norm=SymLogNorm(limit / 100, vmin=-limit, vmax=limit)
    )
    axes[1].set(title="sensitivity of v to feeding", xticks=[], yticks=[])
    figure.colorbar(image, ax=axes[1], shrink=0.85)
    for name in rates:
        axes[2].plot([(1e3 * (point[name] - RATES[name])) for point in path], label=name)
    axes[2].axhline(0, color="0.5", linewidth=0.5)
    axes[2].set(title="error of the rates", xlabel="iteration", ylabel="1e-3")
    axes[2].legend()
    picture = pathlib.Path(out) / "gray_scott.png"
    picture.parent.mkdir(parents=True, exist_ok=True)
    plt.savefig(picture, dpi=110)
    print(f"picture: {picture}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=3000, help="time steps")
    parser.add_argument("--size", type=int, default=96, help="cells along each side")
    parser.add_argument("--iterations", type=int, default=40, help="steps of the descent")
    parser.add_argument("--out", default="out", help="folder for the picture")
    main(**vars(parser.parse_args()))
