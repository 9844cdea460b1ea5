"""Trains a spiking network on handwritten digits, with its state in attributes.

    python examples/digits.py --steps 200 --hidden 128 --epochs 12 --out out

Each of the 1797 digits of scikit-learn becomes spike trains over `--steps` time steps.
The network steps through them like any simulator, by writing its membrane potentials.
`transform` makes JAX see it.
"""

from __future__ import annotations

import argparse
import pathlib

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import optax
from sklearn import datasets, model_selection
from tqdm import tqdm

import statetransform as st
from measuring import measure, show
from statetransform import Param, RandomState, State, inspect, transform

BATCH, SEED = 128, 0
COLUMNS = ["backward pass", "residuals, MB", "temporary, MB", "time"]


@jax.custom_vjp
def spike(v):
    """1 where the membrane potential is above threshold; its gradient is made smooth."""
    return (v > 0).astype(v.dtype)


spike.defvjp(lambda v: (spike(v), v), lambda v, g: (g / (1.0 + 10.0 * jnp.abs(v)) ** 2,))


class Network:
    """Recurrent leaky integrate-and-fire neurons, in steps of 1 ms, and a leaky readout."""

    def __init__(self, n_in, n, n_out):
        draw = lambda key, *shape: jax.random.normal(key, shape) / shape[0] ** 0.5
        k_in, k_rec, k_out = jax.random.split(jax.random.key(SEED), 3)
        self.w_in = Param(3.0 * draw(k_in, n_in, n), name="w_in")
        self.w_rec = Param(0.3 * draw(k_rec, n, n), name="w_rec")
        self.w_out = Param(draw(k_out, n, n_out), name="w_out")
        # Each neuron learns a time constant of its own, and one for its synapses.
        self.leak = Param(jnp.full(n, 3.0), name="leak")
        self.decay = Param(jnp.full(n, 2.2), name="decay")
        self.noise = RandomState(SEED + 1, name="noise")
        self.v = State(0.0, name="membrane potential")
        self.i = State(0.0, name="synaptic current")
        self.wait = State(0, name="refractory time")
        self.y = State(0.0, name="readout")

    def reset(self, batch):
        """Puts all neurons at rest."""
        n, n_out = self.w_out.value.shape
        self.v.value = self.i.value = jnp.zeros((batch, n))
        self.wait.value = jnp.zeros((batch, n), jnp.int8)
        self.y.value = jnp.zeros((batch, n_out))

    @transform.checkpoint
    def step(self, pixels):
        """One millisecond: bright pixels spike often, up to 200 times per second."""
        leak, decay = jax.nn.sigmoid(self.leak.value), jax.nn.sigmoid(self.decay.value)
        charged = leak * self.v.value + (1 - leak) * self.i.value
        self.v.value = v = jnp.where(self.wait.value == 0, charged, 0.0)
        spikes = spike(v - 1.0)
        inputs = jax.random.bernoulli(self.noise.split(), 0.2 * pixels).astype(v.dtype)
        current = inputs @ self.w_in.value + spikes @ self.w_rec.value
        self.i.value = decay * self.i.value + current
        wait = jnp.where(spikes > 0, 3, jnp.maximum(self.wait.value - 1, 0))
        self.wait.value = wait.astype(jnp.int8)
        self.y.value = 0.98 * self.y.value + 0.02 * spikes @ self.w_out.value
        return self.y.value, spikes


def make_loss(network, step, n_steps):
    """The loss of a batch, by running the network; `step` is how it is stepped."""

    def loss(pixels, labels):
        network.reset(len(pixels))
        readout = transform.for_loop(lambda: step(pixels)[0], length=n_steps)
        logits = 20.0 * readout.mean(axis=0)
        values = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        return values.mean(), (logits.argmax(axis=1) == labels).mean()

    return loss


def make_train_step(loss, params):
    """A step of training, compiled as a whole: it reads and writes the states by itself."""
    optimizer = optax.adam(3e-3)
    moments = State(optimizer.init(st.values(params)), name="moments")

    @transform.jit
    def train_step(pixels, labels):
        gradient = transform.value_and_grad(loss, has_aux=True, states=params)
        (value, accuracy), slopes = gradient(pixels, labels)
        changes, moments.value = optimizer.update(slopes, moments.value)
        st.update(params, optax.apply_updates(st.values(params), changes))
        return value, accuracy

    return train_step


def load_digits():
    """Pixels in [0, 1] and labels: a training and a held-out set."""
    digits = datasets.load_digits()
    pixels, labels = jnp.asarray(digits.data / 16, jnp.float32), jnp.asarray(digits.target)
    parts = model_selection.train_test_split(
        jnp.arange(len(labels)), test_size=0.2, random_state=SEED, stratify=digits.target
    )
    return [(pixels[part], labels[part]) for part in parts]


def compare(n_hidden, n_steps, batch):
    """What a training step takes, for both ways to differentiate."""
    kept, jitted = {}, {}
    print("compiling and measuring a training step", flush=True)
    for name in ("store everything", "checkpoint each step"):
        network = Network(64, n_hidden, 10)
        # `__wrapped__` is the method without its decorator.
        step = network.step if "each" in name else network.step.__wrapped__
        loss, params = make_loss(network, step, n_steps), st.states(network, Param)
        kept[name] = inspect.residuals(loss, *batch, states=params).bytes / 1e6
        jitted[name] = make_train_step(loss, params)
    measured = measure(jitted, *batch)
    return [(name, kept[name], size, time) for name, (size, time) in measured.items()]


def train(train_step, evaluate, data, test, epochs):
    """Runs the epochs; returns training and test accuracy after each."""
    history, (pixels, labels) = [], data
    per_epoch = len(pixels) // BATCH
    with tqdm(total=epochs * per_epoch, unit="step") as bar:
        for epoch in range(epochs):
            order, seen = jax.random.permutation(jax.random.key(epoch), len(pixels)), 0.0
            for rows in order[: per_epoch * BATCH].reshape(per_epoch, BATCH):
                value, accuracy = train_step(pixels[rows], labels[rows])
                seen += float(accuracy) / per_epoch
                bar.set_postfix(loss=f"{float(value):.3f}", refresh=False)
                bar.update()
            history.append((seen, float(evaluate(*test)[1])))
            bar.set_description(f"test accuracy {history[-1][1]:.1%}")
    return history


def plot(spikes, image, label, history, rows):
    """Draws the spikes of one digit, the learning curve and the memory."""
    _, (raster, curve, memory) = plt.subplots(1, 3, figsize=(12, 3.6), layout="constrained")
    raster.plot(*jnp.nonzero(spikes), "|", color="C0", markersize=2)
    raster.set(title=f"spikes for a digit {label}", xlabel="time [ms]", ylabel="neuron")
    raster.set(xlim=(0, len(spikes)), ylim=(-2, 1.3 * spikes.shape[1]))
    inset = raster.inset_axes((0.79, 0.79, 0.2, 0.2))
    inset.imshow(image.reshape(8, 8), cmap="gray_r")
    inset.set(xticks=[], yticks=[])
    epochs, percent = range(1, len(history) + 1), 100 * jnp.asarray(history)
    curve.plot(epochs, percent[:, 0], "o--", color="0.7", label="training batches")
    curve.plot(epochs, percent[:, 1], "s-", color="C0", label="held-out test set")
    curve.set(xlabel="epoch", ylabel="accuracy [%]", title="learning", ylim=(0, 100))
    curve.grid(alpha=0.3)
    curve.legend(loc="lower right")
    names, *sizes, _ = zip(*rows, strict=True)
    for i, what in enumerate(("residuals", "temporary")):
        places, color = (i / 2.5, 1 + i / 2.5), ("0.7", "C0")[i]
        bars = memory.bar(places, sizes[i], 0.38, color=color, label=what)
        memory.bar_label(bars, fmt="%.3g", padding=2)
    memory.set(ylabel="MB", title="memory of a training step")
    memory.set_xticks([0.2, 1.2], names)
    memory.margins(y=0.15)
    memory.legend()


def main(steps: int = 200, hidden: int = 128, epochs: int = 12, out: str = "out") -> None:
    data, test = load_digits()
    rows = compare(hidden, steps, [part[:BATCH] for part in data])
    network = Network(64, hidden, 10)
    loss = make_loss(network, network.step, steps)
    train_step = make_train_step(loss, st.states(network, Param))
    evaluate = transform.jit(loss)
    show(COLUMNS, rows)
    print(f"training for {epochs} epochs; the first steps compile", flush=True)
    history = train(train_step, evaluate, data, test, epochs)
    print(f"test accuracy after {epochs} epochs: {history[-1][1]:.1%}")

    image, label = test[0][3], test[1][3]
    network.reset(1)
    step = lambda: network.step(image[None])[1][0]
    spikes = transform.for_loop(step, length=steps)
    plot(spikes, image, label, history, rows)
    picture = pathlib.Path(out) / "digits.png"
    picture.parent.mkdir(parents=True, exist_ok=True)
    plt.savefig(picture, dpi=110)
    print(f"picture: {picture}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--steps", type=int, default=200, help="time steps of 1 ms for each digit"
    )
    parser.add_argument("--hidden", type=int, default=128, help="spiking neurons")
    parser.add_argument("--epochs", type=int, default=12, help="passes over the digits")
    parser.add_argument("--out", default="out", help="folder for the picture")
    main(**vars(parser.parse_args()))
