"""A transformer that reads letter by letter: dropout, checkpointed classes, and policies.

    python examples/language_model.py --layers 4 --width 64 --steps 200 --out out

The text is this project's licence. `transform.checkpoint` is given a class, and its calls
are recomputed from then on; random states draw the same dropout again. `inspect.compare`
says what each policy keeps and costs.
"""

from __future__ import annotations

import argparse
import pathlib

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import optax

import statetransform as st
from statetransform import Param, RandomState, State, inspect, policies, transform

TEXT = (pathlib.Path(__file__).parent.parent / "LICENSE").read_text()
LETTERS = sorted(set(TEXT))


class Linear:
    """A matrix product; what comes out has a name for policies."""

    def __init__(self, rng, n_in, n_out):
        self.w = Param(jax.random.normal(rng.split(), (n_in, n_out)) * n_in**-0.5, name="w")

    def __call__(self, x):
        return transform.checkpoint_name(x @ self.w.value, "product")


class Dropout:
    """Drops a tenth of what it is given while it is training."""

    def __init__(self, rng, training):
        self.rng, self.training = rng, training

    def __call__(self, x):
        if not self.training.value:  # static: Python decides
            return x
        return jnp.where(jax.random.bernoulli(self.rng.split(), 0.9, x.shape), x / 0.9, 0.0)


class Block:
    """Attention to what came before, and two products with a nonlinearity between."""

    def __init__(self, rng, width, heads, training):
        self.heads = heads
        self.qkv, self.mix = Linear(rng, width, 3 * width), Linear(rng, width, width)
        self.up, self.down = Linear(rng, width, 4 * width), Linear(rng, 4 * width, width)
        self.drop = Dropout(rng, training)

    def __call__(self, x):
        q, k, v = jnp.split(
            self.qkv(normed(x)).reshape(*x.shape[:-1], self.heads, -1), 3, axis=-1
        )
        x = x + self.drop(
            self.mix(jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(x.shape))
        )
        return x + self.drop(self.down(jax.nn.gelu(self.up(normed(x)))))


def normed(x):
    return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)


class Reader:
    """Guesses the next letter."""

    def __init__(self, seed, layers, width, length, make_block):
        rng = RandomState(seed, name="rng")
        self.training = State(True, static=True, name="training")
        self.letters = Param(
            0.1 * jax.random.normal(rng.split(), (len(LETTERS), width)), name="letters"
        )
        self.places = Param(
            0.1 * jax.random.normal(rng.split(), (length, width)), name="places"
        )
        self.blocks = [make_block(rng, width, 4, self.training) for _ in range(layers)]
        self.out = Linear(rng, width, len(LETTERS))

    def __call__(self, text):
        x = self.letters.value[text] + self.places.value[: text.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.out(normed(x))

    def loss(self, text):
        """Bits per letter."""
        chances = jax.nn.log_softmax(self(text[:, :-1]))
        return -jnp.take_along_axis(chances, text[:, 1:, None], -1).mean() / jnp.log(2.0)


def main(
    layers: int = 4,
    width: int = 64,
    length: int = 96,
    batch: int = 16,
    steps: int = 200,
    out: str = "out",
) -> None:
    letters = jnp.asarray([LETTERS.index(letter) for letter in TEXT])
    batches = RandomState(7, name="batches")

    def draw():
        starts = jax.random.randint(
            batches.split(), (batch, 1), 0, len(letters) - length - 1
        )
        return letters[starts + jnp.arange(length + 1)]

    def reader(policy=None, *, again=True):
        make = transform.checkpoint(Block, policy=policy) if again else Block
        return Reader(0, layers, width, length, make)

    text = draw()
    table = inspect.compare(
        {
            "store everything": reader(again=False).loss,
            "nothing": reader().loss,
            "products": reader(policies.dots_with_no_batch_dims_saveable).loss,
            "named, if small": reader(
                policies.all_of(
                    policies.save_only_these_names("product"),
                    policies.save_smaller_than("512 KiB"),
                )
            ).loss,
        },
        text,
    )
    print(table)

    model = reader(policies.dots_with_no_batch_dims_saveable)
    params = st.states(model, Param)
    optimizer = optax.adamw(optax.cosine_decay_schedule(3e-3, steps))
    moments = State(optimizer.init(st.values(params)), name="moments")

    @transform.jit(donate_states=True)
    def train():
        loss, slopes = transform.value_and_grad(model.loss, states=params)(draw())
        changes, moments.value = optimizer.update(slopes, moments.value, st.values(params))
        st.update(params, optax.apply_updates(st.values(params), changes))
        return loss

    history = [float(train()) for _ in range(steps)]
    print(f"bits per letter: {history[0]:.2f} -> {history[-1]:.2f}")

    model.training.value = False  # a static state: what is compiled next has no dropout
    guess = transform.jit(lambda text: model(text)[0])
    said = TEXT[: length // 2]
    for _ in range(length // 2):
        padded = jnp.asarray(
            [[LETTERS.index(letter) for letter in said] + [0] * (length - len(said))]
        )
        said += LETTERS[int(guess(padded)[len(said) - 1].argmax())]
    print(f"text that the model continues: {said!r}")

    _, (curve, costs) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    curve.plot(history, color="C0", linewidth=0.8)
    curve.set(title="learning", xlabel="step", ylabel="bits per letter")
    curve.grid(alpha=0.3)
    table.plot(costs)
    picture = pathlib.Path(out) / "language_model.png"
    picture.parent.mkdir(parents=True, exist_ok=True)
    plt.savefig(picture, dpi=110)
    print(f"picture: {picture}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=4, help="transformer layers")
    parser.add_argument("--width", type=int, default=64, help="features of a letter")
    parser.add_argument("--length", type=int, default=96, help="letters in a sequence")
    parser.add_argument("--batch", type=int, default=16, help="sequences in a step")
    parser.add_argument("--steps", type=int, default=200, help="training steps")
    parser.add_argument("--out", default="out", help="folder for the picture")
    main(**vars(parser.parse_args()))
