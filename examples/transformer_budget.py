"""Trains a small transformer to continue a text, within a budget of memory.

    python examples/transformer_budget.py --memory 2MB --layers 4 --out out

The model learns to predict the next letter of a few sentences. `--memory` is what the
intermediates of one gradient step may take: `policies.fit` decides what is kept and what is
computed again. Before the training, the curve of what less memory would cost is printed and
drawn, and after its first step what the budget chose. Weights, dropout and the count of
steps are states.
"""

from __future__ import annotations

import argparse
import pathlib

import jax
import jax.numpy as jnp

import statetransform as st
from statetransform import Param, RandomState, State, policies, transform

TEXT = (
    "a state is one cell that holds a value. a transform sees the value when it runs. "
    "what is kept costs memory, what is computed again costs time. "
    "a budget says how much of the one there is, and a plan spends the other. "
)
LETTERS = sorted(set(TEXT))


class Block:
    """Attention and a feed-forward layer, each on top of what came in."""

    def __init__(self, key: jax.Array, width: int, rng: RandomState):
        names = {
            "q": (width, width),
            "k": (width, width),
            "v": (width, width),
            "o": (width, width),
        }
        names |= {"up": (width, 4 * width), "down": (4 * width, width)}
        keys = jax.random.split(key, len(names))
        for (name, shape), k in zip(names.items(), keys, strict=True):
            setattr(
                self, name, Param(jax.random.normal(k, shape) / shape[0] ** 0.5, name=name)
            )
        self.rng = rng

    def __call__(self, h: jax.Array) -> jax.Array:
        h = h + self.attend(normalized(h))
        update = jax.nn.gelu(normalized(h) @ self.up.value) @ self.down.value
        return (
            h + update * jax.random.bernoulli(self.rng.split(), 0.95, update.shape) / 0.95
        )

    def attend(self, h: jax.Array) -> jax.Array:
        q, k, v = (
            jnp.reshape(h @ w.value, (*h.shape[:2], 4, -1))
            for w in (self.q, self.k, self.v)
        )
        scores = jnp.einsum("bthd,bshd->bhts", q, k) / q.shape[-1] ** 0.5
        scores = jnp.where(jnp.tri(h.shape[1], dtype=bool), scores, -1e9)
        return (
            jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores), v).reshape(h.shape)
            @ self.o.value
        )


def normalized(h: jax.Array) -> jax.Array:
    h = h - h.mean(-1, keepdims=True)
    return h * jax.lax.rsqrt((h**2).mean(-1, keepdims=True) + 1e-5)


class Transformer:
    """A row of blocks between an embedding and its transpose."""

    def __init__(self, layers: int, width: int, time: int):
        key = jax.random.key(0)
        self.rng = RandomState(1)
        self.letters = Param(
            0.3 * jax.random.normal(key, (len(LETTERS), width)), name="letters"
        )
        self.places = Param(0.1 * jax.random.normal(key, (time, width)), name="places")
        self.blocks = [Block(k, width, self.rng) for k in jax.random.split(key, layers)]
        self.steps = State(0, name="steps")

    def loss(self, text: jax.Array) -> jax.Array:
        """The mean surprise at each next letter."""
        h = self.letters.value[text[:, :-1]] + self.places.value
        for block in self.blocks:
            h = block(h)
        self.steps.value = self.steps.value + 1
        logits = jax.nn.log_softmax(normalized(h) @ self.letters.value.T)
        return -jnp.take_along_axis(logits, text[:, 1:, None], -1).mean()


def batches(size: int, time: int):
    """Pieces of the text as numbers, from random places."""
    numbers = jnp.asarray([LETTERS.index(letter) for letter in TEXT * 4])
    key = jax.random.key(2)
    while True:
        key, used = jax.random.split(key)
        starts = jax.random.randint(used, (size,), 0, len(TEXT))
        yield numbers[starts[:, None] + jnp.arange(time + 1)]


def main(
    memory: str = "1MB",
    layers: int = 2,
    width: int = 32,
    time: int = 32,
    batch: int = 8,
    steps: int = 60,
    out: str = "out",
) -> None:
    model = Transformer(layers, width, time)
    weights = st.states(model, Param)
    data = batches(batch, time)
    curve = policies.plan(model.loss, next(data))
    print(curve)

    budget = policies.fit(memory)
    fitting = transform.checkpoint(model.loss, policy=budget)
    gradient = transform.value_and_grad(fitting, states=weights)

    @transform.jit
    def step(text: jax.Array) -> jax.Array:
        loss, gradients = gradient(text)
        st.update(
            weights, {name: weights[name].value - 0.3 * g for name, g in gradients.items()}
        )
        return loss

    for i in range(steps):
        loss = step(next(data))
        if i == 0:
            print(budget.choices[-1])
        if i % 20 == 0 or i == steps - 1:
            print(f"step {i:4}: loss {float(loss):.3f}")
    axes = curve.plot()
    axes.axvline(budget.bytes / 2**20, color="C1", label="budget")
    axes.set(title="a training step", xlabel="memory (MiB)")
    axes.legend()
    picture = pathlib.Path(out) / "transformer_budget.png"
    picture.parent.mkdir(parents=True, exist_ok=True)
    axes.figure.savefig(picture, dpi=110)
    print(f"picture: {picture}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--memory", default="1MB", help="bytes of intermediates in a step, such as 1MB"
    )
    parser.add_argument("--layers", type=int, default=2, help="transformer layers")
    parser.add_argument("--width", type=int, default=32, help="features of a letter")
    parser.add_argument("--time", type=int, default=32, help="letters in a sequence")
    parser.add_argument("--batch", type=int, default=8, help="sequences in a step")
    parser.add_argument("--steps", type=int, default=60, help="training steps")
    parser.add_argument("--out", default="out", help="folder for the picture")
    main(**vars(parser.parse_args()))
