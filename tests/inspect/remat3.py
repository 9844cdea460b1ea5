"""A program: prints what `residuals` lists for checkpointed functions, to compare both settings of JAX_REMAT3."""

from __future__ import annotations

import json
import sys

import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from statetransform import State, inspect, policies
from statetransform.policies._apply import checkpointed

W = State(jnp.linspace(0.1, 1.0, 16).reshape(4, 4), name="W")


def layers(w, x):
    """Two layers with names."""
    y = checkpoint_name(jnp.sin(w @ x), "a")
    return jnp.sum(jnp.exp(checkpoint_name(jnp.tanh(w @ y), "b")))


def listing() -> dict[str, list]:
    """The records by policy."""
    table = {
        "nothing": policies.nothing_saveable,
        "dots": policies.dots_saveable,
        "a": policies.save_only_these_names("a"),
        "everything": policies.everything_saveable,
    }
    return {
        name: [
            (r.kind, r.name, r.shape, r.bytes)
            for r in inspect.residuals(lambda x, p=p: checkpointed(layers, policy=p)(W.value, x), jnp.ones(4))
        ]
        for name, p in table.items()
    }


if __name__ == "__main__":
    json.dump(listing(), sys.stdout)
