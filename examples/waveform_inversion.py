"""Recovers what lies underground from waves that went through it, within a budget.

    python examples/waveform_inversion.py --memory 16MB --disk 1GB --folder . --out out

Sources around a piece of rock send out waves, receivers around it record them at every
time step. The speed of sound at every point is found by gradient descent on the
difference between recorded and simulated waves: full-waveform inversion. Its gradient
runs backwards through all time steps. Storing the wave fields of every step is what makes
this expensive; `checkpoint=st.MemoryBudget(...)` keeps what fits, in memory or on disk,
and computes the rest again. The simulator keeps its fields in states and writes them,
like any simulator.

First, the program compares ways to take one gradient through a section of `--section`
cells and `--section-steps` time steps: with all steps stored, that is gigabytes. The ways
run in turns, `--rounds` times; the table has the median of the times, the least and the
most. A way that does not fit into the memory of the process, which `ulimit -v` limits, says
so. Then a square of `--size` cells is recovered within the same budget.
"""

from __future__ import annotations

import argparse
import math
import pathlib
import time
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import statetransform as st
from statetransform import Param, State, transform

SPACING = 10.0  # m
STEP = 0.5e-3  # s; the waves go less than half a cell in it
FREQUENCY = 12.0  # Hz
BACKGROUND = 2.0  # km/s
BORDER = 8  # cells of absorbing sponge
COLUMNS = ["a gradient of a section", "memory, MB", "evaluations", "processor time, s"]


class Rock:
    """A piece of rock: its speed of sound, and the pressure now and one step before."""

    def __init__(self, speed: np.ndarray, n_shots: int):
        height, width = speed.shape
        self.speed = Param(jnp.asarray(speed), name="speed")
        self.now = State(jnp.zeros(speed.shape), name="now")
        self.before = State(jnp.zeros(speed.shape), name="before")
        row, column = np.arange(height)[:, None], np.arange(width)[None, :]
        depth = np.minimum(
            np.minimum(row, height - 1 - row), np.minimum(column, width - 1 - column)
        )
        sponge = np.exp(-((0.03 * np.maximum(BORDER - depth, 0)) ** 2))
        self.sponge = jnp.asarray(sponge, jnp.float32)
        self.inside = jnp.asarray(depth > BORDER + 2, jnp.float32)
        self.sources = around(speed.shape, n_shots)
        self.receivers = around(speed.shape, 96)

    def step(self, pressure: jax.Array, shot: jax.Array) -> jax.Array:
        """One time step, driven at a source. Gives what the receivers hear."""
        u = self.now.value
        laplacian = sum(
            weight * (jnp.roll(u, shift, axis) + jnp.roll(u, -shift, axis))
            for shift, weight in ((1, 4 / 3), (2, -1 / 12))
            for axis in (0, 1)
        )
        courant = self.speed.value * (1000 * STEP / SPACING)
        new = 2 * u - self.before.value + courant**2 * (laplacian - 5 * u)
        new = new.at[shot[0], shot[1]].add(pressure) * self.sponge
        self.before.value, self.now.value = u * self.sponge, new
        return new[self.receivers[:, 0], self.receivers[:, 1]]

    def record(self, shot: jax.Array, n_steps: int, checkpoint: object = None) -> jax.Array:
        """What the receivers hear of one shot: `[n_steps, receivers]`."""
        self.now.value = jnp.zeros_like(self.now.value)
        self.before.value = jnp.zeros_like(self.before.value)
        step = lambda pressure: self.step(pressure, shot)
        return transform.for_loop(step, ricker(n_steps), checkpoint=checkpoint)


def around(shape: tuple[int, int], n: int) -> np.ndarray:
    """`n` points on a rectangle just inside the sponge, evenly spaced on each side."""
    low, (bottom, right) = BORDER + 2, np.array(shape) - BORDER - 3
    place = np.arange(n) * 4 / n
    side, along = place.astype(int), place % 1
    y = np.choose(side, [along, 1 + 0 * along, 1 - along, 0 * along])
    x = np.choose(side, [0 * along, along, 1 + 0 * along, 1 - along])
    points = [low + (bottom - low) * y, low + (right - low) * x]
    return np.stack(points, 1).round().astype(int)


def ricker(n_steps: int) -> jax.Array:
    """The pressure of a source over time."""
    a = (np.pi * FREQUENCY * (np.arange(n_steps) * STEP - 1.2 / FREQUENCY)) ** 2
    return jnp.asarray((1 - 2 * a) * np.exp(-a), jnp.float32)


def true_speed(height: int, width: int) -> np.ndarray:
    """Rock with a fast lens and a slow one, km/s."""
    y, x = np.mgrid[:height, :width] / np.array([height, width])[:, None, None]
    lens = lambda cx, cy, r: np.exp(-((((x - cx) ** 2 + (y - cy) ** 2) / r**2) ** 2))
    speed = BACKGROUND + 0.3 * lens(0.37, 0.4, 0.13) - 0.25 * lens(0.63, 0.6, 0.12)
    return speed.astype(np.float32)


class Inversion:
    """Gradient descent on the speed of sound, with Adam's moments in states, too."""

    def __init__(self, rock: Rock, recorded: jax.Array, n_steps: int, rate: float):
        self.rock, self.recorded, self.n_steps, self.rate = rock, recorded, n_steps, rate
        self.mean = State(jnp.zeros_like(rock.speed.value), name="mean")
        self.square = State(jnp.zeros_like(rock.speed.value), name="square")
        self.count = State(0, name="count")

    def misfit(self, i: jax.Array, checkpoint: object) -> jax.Array:
        shot = jnp.asarray(self.rock.sources)[i]
        heard = self.rock.record(shot, self.n_steps, checkpoint)
        return ((heard - self.recorded[i]) ** 2).sum() / (self.recorded**2).mean(0).sum()

    def descend(self, checkpoint: object) -> jax.Array:
        """One step downhill, over all shots. Gives the relative misfit before it."""
        misfit = lambda i: self.misfit(i, checkpoint)
        gradient = transform.value_and_grad(misfit, states=self.rock.speed)
        losses, slopes = transform.for_loop(gradient, jnp.arange(len(self.recorded)))
        slope = slopes.mean(0) * self.rock.inside
        self.count.value += 1
        self.mean.value = 0.8 * self.mean.value + 0.2 * slope
        self.square.value = 0.95 * self.square.value + 0.05 * slope**2
        mean = self.mean.value / (1 - 0.8**self.count.value)
        size = jnp.sqrt((self.square.value / (1 - 0.95**self.count.value)).mean())
        self.rock.speed.value -= self.rate * mean / size
        return losses.mean()


def through_a_section(
    ways: dict, shape: tuple[int, int], n_steps: int, rounds: int
) -> list[tuple]:
    """Memory in MB, work, and processor times in s of a gradient, in each way."""
    runs, megabytes, evaluations = {}, {}, dict.fromkeys(ways, 1.0)
    for label, checkpoint in ways.items():
        rock = Rock(true_speed(*shape), 4)

        def loudness(shot: jax.Array, rock: Rock = rock, way: object = checkpoint):
            return (rock.record(shot, n_steps, way) ** 2).sum()

        gradient = transform.jit(transform.grad(loudness, states=rock.speed))
        compiled = gradient.lower(rock.sources[0]).compile()
        megabytes[label] = compiled.memory_analysis().temp_size_in_bytes / 1e6
        runs[label] = partial(gradient, rock.sources[0])
        if checkpoint is not None:
            print(checkpoint.choices[-1], flush=True)
            evaluations[label] = checkpoint.choices[-1].evaluations / n_steps
    seconds = {label: [seconds_of(label, run)] for label, run in runs.items()}  # warms up
    for _ in range(rounds):
        for label, run in runs.items():
            if not math.isnan(seconds[label][-1]):
                seconds[label].append(seconds_of(label, run))
    return [(x, megabytes[x], evaluations[x], seconds[x][1:]) for x in ways]


def seconds_of(label: str, run: Callable) -> float:
    """Processor time of a call; not a number if it runs out of memory."""
    start = time.process_time()
    try:
        jax.block_until_ready(run())
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        print(f"{label}: out of memory", flush=True)
        return math.nan
    return time.process_time() - start


def plot(true: np.ndarray, rock: Rock, history: list[float], rows: list) -> None:
    figure, axes = plt.subplots(2, 2, figsize=(7, 5.6), layout="constrained")
    axes = axes.flatten()
    kilometres = len(true) * SPACING / 1000
    look = {
        "vmin": true.min(),
        "vmax": true.max(),
        "extent": (0, kilometres, kilometres, 0),
    }
    for ax, title, speed in zip(
        axes, ("true", "recovered"), (true, rock.speed.value), strict=False
    ):
        image = ax.imshow(speed, **look)
        ax.set(title=title, xlabel="km")
    figure.colorbar(image, ax=axes[1], label="speed of sound (km/s)", shrink=0.85)
    axes[0].set_ylabel("km")
    for name, mark, size in (("sources", "w*", 8), ("receivers", "k.", 2)):
        y, x = (getattr(rock, name).T + 0.5) * SPACING / 1000
        axes[0].plot(x, y, mark, markersize=size, markeredgecolor="C0", label=name)
    axes[0].legend(
        loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2, fontsize=9, frameon=False
    )
    axes[2].semilogy(range(1, len(history) + 1), history, color="C0")
    axes[2].set(title="misfit", xlabel="iteration")
    axes[2].grid(alpha=0.3)
    labels = [row[0].replace("s ", "s\n").replace(" and ", "\nand ") for row in rows]
    colors = ["0.7", "C0", "C0"][: len(rows)]
    axes[3].set(title="memory of a gradient (MB)")
    megabytes = [row[1] for row in rows]
    bars = axes[3].bar(labels, megabytes, color=colors, width=0.6)
    text = lambda megabytes: f"{float(f'{megabytes:.3g}'):,.4g}"
    texts = [text(row[1]) if row[3] else "out of\nmemory" for row in rows]
    axes[3].bar_label(bars, labels=texts, padding=2)
    axes[3].margins(y=0.15)


def show(columns: list[str], rows: list[tuple]) -> None:
    """Prints a table in Markdown."""
    lines = [columns, [":---", *["---:"] * (len(columns) - 1)]]
    for label, megabytes, evaluations, found in rows:
        spread = (
            f"{np.median(found):.1f} ({min(found):.1f} to {max(found):.1f})"
            if found
            else "-"
        )
        lines.append([label, f"{megabytes:.1f}", f"{evaluations:.2f}", spread])
    print("\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n", flush=True)


def main(
    memory: str = "16MB",
    disk: str | None = None,
    folder: str = ".",
    section: tuple[int, int] = (200, 400),
    section_steps: int = 4000,
    rounds: int = 5,
    size: int = 80,
    steps: int = 2000,
    shots: int = 8,
    iterations: int = 40,
    out: str = "out",
) -> None:
    budget = st.MemoryBudget(memory)
    ways = {"all steps stored": None, memory: budget}
    if disk:
        ways[f"{memory} and disk"] = st.MemoryBudget(memory, disk=disk, folder=folder)
    rows = through_a_section(ways, section, section_steps, rounds)
    show(COLUMNS, rows)
    print(f"times: medians of {rounds} runs in turns (the least to the most)\n")

    true = true_speed(size, size)
    first = np.full_like(true, BACKGROUND)
    rock = Rock(true, shots)
    record = transform.jit(lambda shot: rock.record(shot, steps))
    recorded = jnp.stack([record(jnp.asarray(shot)) for shot in rock.sources])
    rock.speed.value = jnp.asarray(first)
    inversion = Inversion(rock, recorded, steps, rate=0.012)
    descend = transform.jit(lambda: inversion.descend(budget))
    history = []
    for iteration in range(1, iterations + 1):
        history.append(float(descend()))
        if iteration == 1 or iteration % 10 == 0:
            error = jnp.abs(rock.speed.value - true).mean() / np.abs(first - true).mean()
            done = f"iteration {iteration:3}: misfit {history[-1]:.2e}"
            print(f"{done}, model error {error:.2f}", flush=True)
    plot(true, rock, history, rows)
    picture = pathlib.Path(out) / "waveform_inversion.png"
    picture.parent.mkdir(parents=True, exist_ok=True)
    plt.savefig(picture, dpi=110)
    print(f"picture: {picture}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--memory", default="16MB", help="bytes that a time loop may store, such as 16MB"
    )
    parser.add_argument("--disk", help="bytes on disk, such as 1GB; default: none")
    parser.add_argument("--folder", default=".", help="folder for the files")
    parser.add_argument(
        "--section", type=int, nargs=2, default=(200, 400), help="cells down, cells across"
    )
    parser.add_argument(
        "--section-steps", type=int, default=4000, help="time steps of 0.5 ms"
    )
    parser.add_argument("--rounds", type=int, default=5, help="runs of each way, in turns")
    parser.add_argument("--size", type=int, default=80, help="cells along the square")
    parser.add_argument("--steps", type=int, default=2000, help="time steps of each shot")
    parser.add_argument("--shots", type=int, default=8, help="sources around the rock")
    parser.add_argument("--iterations", type=int, default=40, help="steps of the descent")
    parser.add_argument("--out", default="out", help="folder for the picture")
    main(**vars(parser.parse_args()))
