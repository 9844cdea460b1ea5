"""Landers that learn to touch down softly: episodes of unknown length, differentiated.

    python examples/landers.py --landers 64 --iterations 150 --out out

A lander falls through gusts until it reaches the ground. How many steps that takes
depends on how it steers: a `while_loop`. `checkpoint=16` stores 16 of its states,
whatever the number of steps, and gives it a reverse mode. `vmap` with `state_axes` steps
a fleet, each lander with its own state and its own gusts.
"""

from __future__ import annotations

import argparse
import pathlib

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import optax

import statetransform as st
from statetransform import Param, RandomState, State, transform

STEP, GRAVITY, LIMIT = 0.05, 1.6, 600  # s, m/s2, steps


class Craft(State):
    """The kind of state that each lander has for itself."""


class Lander:
    """One lander; a fleet, when its states have an axis more."""

    def __init__(self):
        self.height, self.speed = Craft(0.0, name="height"), Craft(0.0, name="speed")
        self.fuel, self.steps = Craft(0.0, name="fuel"), Craft(0, name="steps")
        self.gusts = RandomState(0, name="gusts")
        self.pilot = [
            Param(0.3 * jax.random.normal(key, shape), name=name)
            for key, shape, name in zip(
                jax.random.split(jax.random.key(1), 2),
                [(3, 16), (17, 1)],
                ["hidden", "out"],
                strict=True,
            )
        ]

    def thrust(self):
        """Between 0 and 4 m/s2, from height and speed."""
        hidden, out = (param.value for param in self.pilot)
        seen = jnp.stack(
            [self.height.value / 50, self.speed.value / 10, jnp.ones_like(self.speed.value)]
        )
        return 4 * jax.nn.sigmoid((jnp.append(jnp.tanh(seen @ hidden), 1.0) @ out)[0])

    def step(self):
        push = self.thrust()
        gust = 0.5 * jax.random.normal(self.gusts.split())
        self.speed.value = self.speed.value + STEP * (push - GRAVITY + gust)
        self.height.value = self.height.value + STEP * self.speed.value
        self.fuel.value = self.fuel.value + STEP * push
        self.steps.value = self.steps.value + 1

    def fly(self, checkpoint=None):
        """One episode. Gives its cost: the speed at touchdown and the fuel."""

        def body(carry):
            self.step()
            return carry

        flying = lambda _: self.height.value > 0
        transform.while_loop(flying, body, 0, max_steps=LIMIT, checkpoint=checkpoint)
        lost = jnp.maximum(self.height.value, 0.0)  # not down when the time is over
        return self.speed.value**2 + 0.5 * self.fuel.value + lost**2


def main(landers: int = 64, iterations: int = 150, out: str = "out") -> None:
    lander, n = Lander(), landers
    params = st.states(lander, Param)
    optimizer = optax.adam(0.02)
    moments = State(optimizer.init(st.values(params)), name="moments")

    def start(seed):
        """Heights and speeds of a fleet."""
        k_height, k_speed = jax.random.split(jax.random.key(seed))
        height = jax.random.uniform(k_height, (n,), minval=20.0, maxval=50.0)
        return height, jax.random.uniform(k_speed, (n,), minval=-8.0, maxval=0.0)

    def fleet(seed):
        """The costs of all landers of a fleet."""
        lander.height.value, lander.speed.value = start(seed)
        lander.fuel.value, lander.steps.value = jnp.zeros(n), jnp.zeros(n, int)
        fly = lambda: lander.fly(checkpoint=16)
        return transform.vmap(fly, state_axes={Craft: 0}, axis_size=n)()

    @transform.jit
    def improve(seed):
        cost, slopes = transform.value_and_grad(lambda: fleet(seed).mean(), states=params)()
        changes, moments.value = optimizer.update(slopes, moments.value)
        st.update(params, optax.apply_updates(st.values(params), changes))
        return cost

    def trajectory(i):
        """Height and speed of one lander until it is down, stepped from Python."""
        alone = Lander()
        alone.pilot = lander.pilot
        alone.height.value, alone.speed.value = (values[i] for values in start(0))
        step, seen = transform.jit(alone.step), []
        while float(alone.height.value) > 0 and len(seen) < LIMIT:
            seen.append((float(alone.height.value), float(alone.speed.value)))
            step()
        return seen

    before = [trajectory(i) for i in range(min(4, n))]
    history = [float(improve(seed)) for seed in range(iterations)]
    steps = lander.steps.value
    print(f"cost of a landing: {history[0]:.1f} -> {history[-1]:.1f}")
    print(f"the last fleet was down after {int(steps.min())} to {int(steps.max())} steps")
    after = [trajectory(i) for i in range(min(4, n))]

    _, (curve, paths, lengths) = plt.subplots(1, 3, figsize=(10, 3), layout="constrained")
    curve.plot(history, color="C0", linewidth=0.8)
    curve.set(title="cost of a landing", xlabel="iteration")
    curve.grid(alpha=0.3)
    for flights, color, label in ((before, "0.7", "before"), (after, "C0", "after")):
        for i, flight in enumerate(flights):
            heights, speeds = zip(*flight, strict=True)
            paths.plot(
                speeds, heights, color=color, linewidth=1, label=None if i else label
            )
    paths.set(title="four flights", xlabel="speed (m/s)", ylabel="height (m)")
    paths.legend()
    lengths.hist(steps, bins=20, color="C0")
    lengths.set(title="lengths of the episodes", xlabel="steps")
    picture = pathlib.Path(out) / "landers.png"
    picture.parent.mkdir(parents=True, exist_ok=True)
    plt.savefig(picture, dpi=110)
    print(f"picture: {picture}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--landers", type=int, default=64, help="vehicles in the fleet")
    parser.add_argument("--iterations", type=int, default=150, help="training steps")
    parser.add_argument("--out", default="out", help="folder for the picture")
    main(**vars(parser.parse_args()))
