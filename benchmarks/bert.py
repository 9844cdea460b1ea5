"""BERT of transformers, planned for a card that is not there: `python -m benchmarks.bert`.

Its gradient step in half precision, plain, with the model's own checkpoints, and within a budget: temporary bytes as
the compiler says, and FLOPs over those of the plain step, counted before compilation. Nothing runs. Needs flax and
`transformers<5`; later versions have no flax models.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from transformers import BertConfig, FlaxBertForMaskedLM

from statetransform import inspect, policies, transform

from . import report

TOKENS = 512


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--card", default="H100")
    parser.add_argument("--budget", default="16GB")
    parser.add_argument("--batch", type=int, default=64, help="sequences of 512 tokens")
    parser.add_argument("--layers", type=int, default=12)
    options = parser.parse_args()

    config = BertConfig(num_hidden_layers=options.layers)
    half = {"dtype": jnp.bfloat16, "_do_init": False}
    model = FlaxBertForMaskedLM(config, **half)
    own = FlaxBertForMaskedLM(config, gradient_checkpointing=True, **half)
    key = jax.eval_shape(lambda: jax.random.key(0))
    params = jax.eval_shape(lambda key: model.init_weights(key, (1, TOKENS)), key)
    tokens = jax.ShapeDtypeStruct((options.batch, TOKENS), jnp.int32)

    def loss_of(model: Any) -> Callable[..., jax.Array]:
        def loss(params: Any, tokens: jax.Array, targets: jax.Array, key: jax.Array) -> jax.Array:
            logits = model(tokens, params=params, dropout_rng=key, train=True).logits
            found = jax.nn.log_softmax(logits.astype(jnp.float32))
            return -jnp.take_along_axis(found, targets[..., None], -1).mean()

        return loss

    budget = policies.fit(options.budget, target=options.card)
    ways = {
        "plain": loss_of(model),
        "`gradient_checkpointing=True`": loss_of(own),
        f'`policies.fit("{options.budget}")`': transform.checkpoint(loss_of(model), policy=budget),
    }
    rows, plain = [], 0.0
    for name, loss in ways.items():
        start = time.perf_counter()
        found = inspect.compare({name: loss}, params, tokens, tokens, key, argnums=0, target=options.card)[name]
        plain = plain or found.flops
        seconds = f"{time.perf_counter() - start:.0f}"
        rows.append([name, f"{found.temporary_bytes / 1e9:.1f}", f"{found.flops / plain:.3f}", seconds])
        print(rows[-1], flush=True)
    title = f"BERT, {options.batch} sequences, {options.card}"
    report.keep(title, [title, "temporary GB", "FLOPs", "planned and compiled in, s"], rows)
    print("\n".join(report.lines_of(report.tables[title])))


if __name__ == "__main__":
    main()
