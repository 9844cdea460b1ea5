"""Recovers what lies underground from waves that went through it, within a budget.

    python examples/waveform_inversion.py --memory 4MB --steps 2000 --out out

Sources around a square of rock send out waves, receivers around it record them for
`--steps` time steps. The speed of sound at every point is found by gradient descent on
the difference between recorded and simulated waves: full-waveform inversion. Its gradient
runs backwards through all time steps. Storing the wave fields of every step is what makes
this expensive; `checkpoint=st.MemoryBudget(...)` keeps what fits, and computes the rest
again. The simulator keeps its fields in states and writes them, like any simulator.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import common
import statetransform as st
from statetransform import Param, State, transform

SPACING = 10.0  # m
STEP = 0.5e-3  # s; the waves go less than half a cell in it
FREQUENCY = 12.0  # Hz
BACKGROUND = 2.0  # km/s
BORDER = 8  # cells of absorbing sponge


class Rock:
    """A square of rock: its speed of sound, and the pressure now and one step before."""

    def __init__(self, speed: np.ndarray, n_shots: int):
        self.size = len(speed)
        self.speed = Param(jnp.asarray(speed), name="speed")
        self.now = State(jnp.zeros(speed.shape), name="now")
        self.before = State(jnp.zeros(speed.shape), name="before")
        depth = np.minimum(np.arange(self.size), np.arange(self.size)[::-1])
        depth = np.minimum(depth[:, None], depth[None, :])
        sponge = np.exp(-((0.03 * np.maximum(BORDER - depth, 0)) ** 2))
        self.sponge = jnp.asarray(sponge, jnp.float32)
        self.inside = jnp.asarray(depth > BORDER + 2, jnp.float32)
        self.sources = around(self.size, n_shots)
        self.receivers = around(self.size, 96)

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


def around(size: int, n: int) -> np.ndarray:
    """`n` points on a square just inside the sponge, evenly spaced."""
    low, high = BORDER + 2, size - BORDER - 3
    place = np.arange(n) * 4 / n
    side, along = place.astype(int), low + (high - low) * (place % 1)
    x = np.choose(side, [along, np.full(n, high), low + high - along, np.full(n, low)])
    y = np.choose(side, [np.full(n, low), along, np.full(n, high), low + high - along])
    return np.stack([x, y], 1).round().astype(int)


def ricker(n_steps: int) -> jax.Array:
    """The pressure of a source over time."""
    a = (np.pi * FREQUENCY * (np.arange(n_steps) * STEP - 1.2 / FREQUENCY)) ** 2
    return jnp.asarray((1 - 2 * a) * np.exp(-a), jnp.float32)


def true_speed(size: int) -> np.ndarray:
    """Rock with a fast lens and a slow one, km/s."""
    y, x = np.mgrid[:size, :size] / size
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


def plot(true: np.ndarray, rock: Rock, history: list[float], rows: list) -> None:
    figure, axes = plt.subplots(
        1, 4, figsize=(11, 3), layout="constrained", width_ratios=[1, 1.22, 1, 1]
    )
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
        axes[0].plot(x, y, mark, markersize=size, markeredgecolor="k", label=name)
    axes[0].legend(
        loc="upper center", bbox_to_anchor=(0.5, -0.25), ncols=2, fontsize=8, frameon=False
    )
    axes[2].semilogy(range(1, len(history) + 1), history, color="k")
    axes[2].set(title="misfit", xlabel="iteration")
    axes[2].grid(alpha=0.3)
    labels = [row[0].replace("s ", "s\n").replace(" of ", "\nof ") for row in rows]
    sizes, colors = [row[1] for row in rows], ["0.7", "tab:blue"]
    bars = axes[3].bar(labels, sizes, color=colors, width=0.6)
    axes[3].bar_label(bars, fmt="%.1f", padding=2)
    axes[3].set(title="memory (MB)")
    axes[3].margins(y=0.15)


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--memory", default="4MB", help="for the time loop to remember in")
    parser.add_argument("--steps", type=int, default=2000, help="time steps of 0.5 ms")
    parser.add_argument("--size", type=int, default=80, help="cells along each side")
    parser.add_argument("--shots", type=int, default=8)
    parser.add_argument("--iterations", type=int, default=40)
    options = parser.parse_args()

    true = true_speed(options.size)
    first = np.full_like(true, BACKGROUND)
    rock = Rock(true, options.shots)
    record = transform.jit(lambda shot: rock.record(shot, options.steps))
    recorded = jnp.stack([record(jnp.asarray(shot)) for shot in rock.sources])
    rock.speed.value = jnp.asarray(first)

    inversion = Inversion(rock, recorded, options.steps, rate=0.012)
    budget = st.MemoryBudget(options.memory)
    states, rows = st.states(inversion), []
    before = st.values(states)
    ways = {"all steps stored": None, f"a budget of {options.memory}": budget}
    for label, checkpoint in ways.items():
        descend = transform.jit(lambda checkpoint=checkpoint: inversion.descend(checkpoint))
        # Temporary memory, the recordings of a shot included.
        rows.append((label, *common.measure(descend, times=2)))
        st.update(states, before)
    print(budget.choices[-1])
    common.show(["a step of the descent", "memory, MB", "time, ms"], rows)

    history = []
    for iteration in range(1, options.iterations + 1):
        history.append(float(descend()))
        if iteration == 1 or iteration % 10 == 0:
            error = jnp.abs(rock.speed.value - true).mean() / np.abs(first - true).mean()
            done = f"iteration {iteration:3}: misfit {history[-1]:.2e}"
            print(f"{done}, model error {error:.2f}", flush=True)
    plot(true, rock, history, rows)
    common.save(options.out, __file__)


if __name__ == "__main__":
    main()
