"""Trains a spiking network on handwritten digits, with its state in plain attributes.

    python examples/digits.py --steps 200 --hidden 128 --epochs 12 --out out

Each of the 1797 digits of scikit-learn becomes spike trains over `--steps` time steps.
The network steps through them like any simulator, by writing its membrane potentials.
`transform` makes JAX see it.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt

import common
import statetransform as st
from statetransform import Param, RandomState, State, transform

# -------------------------------------------------------------------------------- the model


@jax.custom_vjp
def spike(v):
    """1 where the membrane potential is above threshold; its gradient is made smooth."""
    return (v > 0).astype(v.dtype)


spike.defvjp(lambda v: (spike(v), v), lambda v, g: (g / (1.0 + 10.0 * jnp.abs(v)) ** 2,))


class Network:
    """Recurrent leaky integrate-and-fire neurons, in steps of 1 ms, and a leaky readout."""

    def __init__(self, n_in, n_hidden, n_out, seed):
        k_in, k_rec, k_out = jax.random.split(jax.random.key(seed), 3)
        self.w_in = Param(
            jax.random.normal(k_in, (n_in, n_hidden)) / n_in**0.5 * 3.0, name="w_in"
        )
        self.w_rec = Param(
            jax.random.normal(k_rec, (n_hidden, n_hidden)) / n_hidden**0.5 * 0.3,
            name="w_rec",
        )
        self.w_out = Param(
            jax.random.normal(k_out, (n_hidden, n_out)) / n_hidden**0.5, name="w_out"
        )
        self.leak = Param(
            jnp.full(n_hidden, 3.0), name="leak"
        )  # one learnt time constant for each neuron ...
        self.decay = Param(
            jnp.full(n_hidden, 2.2), name="decay"
        )  # ... and for its synapses
        self.noise = RandomState(seed + 1, name="noise")
        self.reset(1)

    def reset(self, batch):
        """Puts all neurons at rest."""
        n_hidden, n_out = self.w_out.value.shape
        if not hasattr(self, "v"):
            self.v = State(0.0, name="membrane potential")
            self.i = State(0.0, name="synaptic current")
            self.wait = State(0, name="refractory time")
            self.y = State(0.0, name="readout")
        self.v.value = self.i.value = jnp.zeros((batch, n_hidden))
        self.wait.value = jnp.zeros((batch, n_hidden), jnp.int8)
        self.y.value = jnp.zeros((batch, n_out))

    @transform.checkpoint
    def step(self, pixels):
        """One millisecond: bright pixels spike often, up to 200 times per second."""
        leak, decay = jax.nn.sigmoid(self.leak.value), jax.nn.sigmoid(self.decay.value)
        v = jnp.where(
            self.wait.value == 0, leak * self.v.value + (1 - leak) * self.i.value, 0.0
        )
        spikes = spike(v - 1.0)
        inputs = jax.random.bernoulli(self.noise.split(), 0.2 * pixels).astype(v.dtype)
        current = inputs @ self.w_in.value + spikes @ self.w_rec.value
        self.v.value = v
        self.i.value = decay * self.i.value + current
        self.wait.value = jnp.where(
            spikes > 0, 3, jnp.maximum(self.wait.value - 1, 0)
        ).astype(jnp.int8)
        self.y.value = 0.98 * self.y.value + 0.02 * spikes @ self.w_out.value
        return self.y.value, spikes


class Adam:
    """Adam, its moments being states like everything else."""

    def __init__(self, params, rate):
        self.params, self.rate = params, rate
        self.t = State(jnp.int32(0))
        self.m = {name: State(jnp.zeros_like(p.value)) for name, p in params.items()}
        self.s = {name: State(jnp.zeros_like(p.value)) for name, p in params.items()}

    def update(self, gradients):
        self.t.value += 1
        for name, g in gradients.items():
            self.m[name].value = m = 0.9 * self.m[name].value + 0.1 * g
            self.s[name].value = s = 0.999 * self.s[name].value + 0.001 * g**2
            m, s = m / (1 - 0.9**self.t.value), s / (1 - 0.999**self.t.value)
            self.params[name].value -= self.rate * m / (jnp.sqrt(s) + 1e-8)


# ----------------------------------------------------------------------------- the training


def make_loss(network, step, n_steps):
    """The loss of a batch, by running the network; `step` is how it is stepped."""

    def loss(pixels, labels):
        network.reset(len(pixels))
        readout = transform.for_loop(lambda: step(pixels)[0], length=n_steps)
        logits = 20.0 * readout.mean(axis=0)
        picked = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=1)
        return -picked.mean(), (logits.argmax(axis=1) == labels).mean()

    return loss


def make_train_step(loss, params, optimizer):
    """A step of training, compiled as a whole: it reads and writes the states by itself."""

    @transform.jit
    def train_step(pixels, labels):
        gradient = transform.value_and_grad(loss, has_aux=True, states=params)
        (value, accuracy), gradients = gradient(pixels, labels)
        optimizer.update(gradients)
        return value, accuracy

    return train_step


def load_digits(seed):
    """Pixels in [0, 1] and labels: a training and a held-out set."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    sets = train_test_split(
        digits.data / 16.0,
        digits.target,
        test_size=0.2,
        random_state=seed,
        stratify=digits.target,
    )
    pixels, test_pixels, labels, test_labels = (jnp.asarray(x) for x in sets)
    return (pixels.astype(jnp.float32), labels), (
        test_pixels.astype(jnp.float32),
        test_labels,
    )


def train(train_step, evaluate, data, test, epochs, batch, seed):
    """Runs the epochs; returns training and test accuracy after each."""
    from tqdm import tqdm

    history = []
    pixels, labels = data
    per_epoch = len(pixels) // batch
    with tqdm(total=epochs * per_epoch, unit="step") as bar:
        for epoch in range(epochs):
            order = jax.random.permutation(jax.random.key(seed + epoch), len(pixels))
            seen = 0.0
            for k in range(per_epoch):
                rows = order[k * batch : (k + 1) * batch]
                value, accuracy = train_step(pixels[rows], labels[rows])
                seen += float(accuracy) / per_epoch
                bar.set_postfix(loss=f"{float(value):.3f}", refresh=False)
                bar.update()
            history.append((seen, float(evaluate(*test)[1])))
            bar.set_description(f"test accuracy {history[-1][1]:.1%}")
    return history


# ---------------------------------------------------------------------------- what it costs


def residual_bytes(loss, params, pixels, labels):
    """The bytes that reverse mode keeps between the forward and the backward pass."""
    pure = transform.functionalize(loss)
    values = pure.values(pixels, labels)

    def pullback(weights):
        return jax.vjp(
            lambda weights: pure.apply({**values, **weights}, pixels, labels)[0][0], weights
        )[1]

    kept = jax.eval_shape(pullback, st.Values({p: p.value for p in params.values()}))
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(kept))


def measure(network, params, rate, pixels, labels, n_steps):
    """What a training step takes, for both ways to differentiate."""
    rows, states = [], st.states(network)
    for name, step in {
        "store everything": network.step.__wrapped__,  # the method without `checkpoint`
        "checkpoint each step": network.step,
    }.items():
        loss = make_loss(network, step, n_steps)
        train_step = make_train_step(loss, params, Adam(params, rate))
        before = st.values(states)
        temporary, seconds = common.measure(train_step, pixels, labels)
        for path, state in states.items():  # `st.update` would mind the other batch size
            state.value = before[path]
        rows.append(
            {
                "name": name,
                "residuals": residual_bytes(loss, params, pixels, labels) / 1e6,
                "temporary": temporary / 1e6,
                "milliseconds": 1e3 * seconds,
            }
        )
    return rows


def show_table(rows):
    """Prints the comparison."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title="One training step")
    for column in ("backward pass", "residuals, MB", "temporary, MB", "time, ms"):
        table.add_column(column, justify="right" if "," in column else "left")
    for name, *numbers in (row.values() for row in rows):
        table.add_row(name, *[f"{number:.1f}" for number in numbers])
    Console(width=100).print(table)


def plot(network, image, label, history, rows, n_steps):
    """Draws the spikes of one digit, the learning curve and the memory."""
    network.reset(1)
    spikes = transform.for_loop(lambda: network.step(image[None])[1][0], length=n_steps)
    _, (raster, curve, memory) = plt.subplots(1, 3, figsize=(12, 3.6), layout="constrained")
    times, neurons = jnp.nonzero(spikes)
    raster.plot(times, neurons, "|", color="black", markersize=2)
    raster.set(
        title=f"spikes for a digit {int(label)}", xlabel="time [ms]", ylabel="neuron"
    )
    raster.set(xlim=(0, n_steps), ylim=(-2, 1.3 * spikes.shape[1]))  # room for the digit
    inset = raster.inset_axes((0.79, 0.79, 0.2, 0.2))
    inset.imshow(image.reshape(8, 8), cmap="gray_r")
    inset.set(xticks=[], yticks=[])
    seen, held_out = (100 * jnp.asarray(part) for part in zip(*history, strict=True))
    epochs = range(1, len(history) + 1)
    curve.plot(epochs, seen, "o--", color="0.6", label="training batches")
    curve.plot(epochs, held_out, "s-", color="black", label="held-out test set")
    curve.set(xlabel="epoch", ylabel="accuracy [%]", title="learning", ylim=(0, 100))
    curve.grid(alpha=0.3)
    curve.legend(loc="lower right")
    for offset, (key, color) in enumerate(
        {"residuals": "0.75", "temporary": "0.25"}.items()
    ):
        places = [i + 0.4 * offset for i in range(len(rows))]
        bars = memory.bar(places, [row[key] for row in rows], 0.38, color=color, label=key)
        memory.bar_label(bars, fmt="%.0f", padding=2)
    memory.set(ylabel="MB", title="memory of a training step")
    memory.set_xticks([i + 0.2 for i in range(len(rows))], [row["name"] for row in rows])
    memory.margins(y=0.15)
    memory.legend()


def main():
    parser = common.parser(__doc__)
    parser.add_argument(
        "--steps", type=int, default=200, help="time steps of 1 ms for each digit"
    )
    parser.add_argument("--hidden", type=int, default=128, help="spiking neurons")
    parser.add_argument("--epochs", type=int, default=12)
    options = parser.parse_args()

    batch, rate, seed = 128, 3e-3, 0
    data, test = load_digits(seed)
    network = Network(64, options.hidden, 10, seed)
    params = st.states(network, Param)
    loss = make_loss(network, network.step, options.steps)
    train_step = make_train_step(loss, params, Adam(params, rate))
    rows = measure(network, params, rate, data[0][:batch], data[1][:batch], options.steps)
    evaluate = transform.jit(loss)
    history = train(train_step, evaluate, data, test, options.epochs, batch, seed)

    show_table(rows)
    print(f"test accuracy after {options.epochs} epochs: {history[-1][1]:.1%}")
    plot(network, test[0][3], test[1][3], history, rows, options.steps)
    common.save(options.out, __file__)


if __name__ == "__main__":
    main()
