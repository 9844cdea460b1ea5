"""Trains on eight devices: data are split, and the states know where they are.

    python examples/data_parallel.py --steps 300 --batch 1024 --out out

The devices are eight virtual ones of this computer's CPU, or its accelerators if it has
some. A network with batch normalization tells two spirals apart. Its running means are
states that every step writes; they agree on all devices, and with a run on one.
"""

from __future__ import annotations

import argparse
import os
import pathlib

os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
)

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

import statetransform as st
from statetransform import Param, State, transform


class Network:
    """Two hidden layers with batch normalization."""

    def __init__(self, width):
        keys = jax.random.split(jax.random.key(0), 3)
        shapes = [(2, width), (width, width), (width, 1)]
        self.w = [
            Param(jax.random.normal(key, shape) * (2 / shape[0]) ** 0.5, name=f"w{i}")
            for i, (key, shape) in enumerate(zip(keys, shapes, strict=True))
        ]
        self.mean = [State(jnp.zeros(width), name=f"mean{i}") for i in range(2)]
        self.var = [State(jnp.ones(width), name=f"var{i}") for i in range(2)]

    @transform.checkpoint(static_argnums=(1, 2))
    def layer(self, x, i, training):
        x = x @ self.w[i].value
        if (
            training
        ):  # means over all devices: the array is one array, wherever its rows are
            mean, var = x.mean(0), x.var(0)
            self.mean[i].value = 0.95 * self.mean[i].value + 0.05 * mean
            self.var[i].value = 0.95 * self.var[i].value + 0.05 * var
        else:
            mean, var = self.mean[i].value, self.var[i].value
        return jax.nn.relu((x - mean) * jax.lax.rsqrt(var + 1e-5))

    def __call__(self, x, training=False):
        for i in range(2):
            x = self.layer(x, i, training)
        return (x @ self.w[2].value)[:, 0]


def spirals(n, seed):
    """Points on two spirals, and which."""
    rng = np.random.default_rng(seed)
    which, turn = rng.integers(0, 2, n), np.sqrt(rng.uniform(0.02, 1, n))
    angle = 3 * np.pi * turn + np.pi * which
    points = np.stack([turn * np.cos(angle), turn * np.sin(angle)], -1) + rng.normal(
        0, 0.03, (n, 2)
    )
    return points.astype(np.float32), which.astype(np.float32)


def train(devices, steps, batch, width):
    """A trained network, its losses, and where its states are."""
    mesh = jax.sharding.Mesh(np.array(devices), ("data",))
    everywhere, split = (
        jax.NamedSharding(mesh, jax.P()),
        jax.NamedSharding(mesh, jax.P("data")),
    )
    network = Network(width)
    params = st.states(network, Param)
    optimizer = optax.adam(optax.cosine_decay_schedule(0.02, steps))
    moments = State(optimizer.init(st.values(params)), name="moments")
    states = {**st.states(network), "moments": moments}
    st.update(
        states, jax.device_put(st.values(states), everywhere)
    )  # each state is on all devices from now on

    def loss(points, which):
        return optax.sigmoid_binary_cross_entropy(
            network(points, training=True), which
        ).mean()

    @transform.jit(donate_states=True)
    def step(points, which):
        value, slopes = transform.value_and_grad(loss, states=params)(points, which)
        changes, moments.value = optimizer.update(slopes, moments.value)
        st.update(params, optax.apply_updates(st.values(params), changes))
        return value

    history = []
    for i in range(steps):
        points, which = (
            jax.device_put(part, split) for part in spirals(batch, i)
        )  # a share for each device
        history.append(float(step(points, which)))
    return network, history, points.addressable_shards


def main(steps: int = 300, batch: int = 1024, width: int = 64, out: str = "out") -> None:
    together, history, shards = train(jax.devices(), steps, batch, width)
    print(f"{len(shards)} devices, {shards[0].data.shape[0]} points on each")
    print(f"loss {history[0]:.3f} -> {history[-1]:.3f}")
    _, alone, _ = train(jax.devices()[:1], steps, batch, width)
    apart = max(abs(a - b) for a, b in zip(history[:20], alone[:20], strict=True))
    print(f"the losses of the first steps on one device differ by {apart:.0e}")

    points, which = spirals(2000, seed=10**6)
    classify = transform.jit(together)
    accuracy = float(((classify(jnp.asarray(points)) > 0) == which).mean())
    print(f"accuracy on new points: {accuracy:.1%}")

    _, (curve, plane, places) = plt.subplots(1, 3, figsize=(10, 3.2), layout="constrained")
    curve.semilogy(alone, color="0.7", linewidth=2.5, label="one device")
    curve.semilogy(history, color="C0", linewidth=0.8, label="eight devices")
    curve.set(title="loss", xlabel="step")
    curve.legend()
    y, x = np.mgrid[-1.2:1.2:150j, -1.2:1.2:150j]
    image = jax.nn.sigmoid(
        classify(jnp.stack([x.ravel(), y.ravel()], -1, dtype=jnp.float32))
    ).reshape(x.shape)
    plane.imshow(
        image, extent=(-1.2, 1.2, -1.2, 1.2), origin="lower", cmap="RdBu_r", alpha=0.7
    )
    plane.scatter(
        points[::4, 0],
        points[::4, 1],
        c=which[::4],
        cmap="RdBu_r",
        s=4,
        edgecolor="C0",
        linewidth=0.2,
    )
    plane.set(title="prediction", xticks=[], yticks=[])
    for shard in shards:
        part = np.asarray(shard.data)
        places.scatter(part[:, 0], part[:, 1], s=3, label=f"{shard.device.id}")
    places.set(title="points by device", xticks=[], yticks=[], aspect="equal")
    picture = pathlib.Path(out) / "data_parallel.png"
    picture.parent.mkdir(parents=True, exist_ok=True)
    plt.savefig(picture, dpi=110)
    print(f"picture: {picture}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300, help="training steps")
    parser.add_argument("--batch", type=int, default=1024, help="points in a step")
    parser.add_argument("--width", type=int, default=64, help="units of a layer")
    parser.add_argument("--out", default="out", help="folder for the picture")
    main(**vars(parser.parse_args()))
