"""What is saved, seen from outside: shapes and dtypes of what the VJP of a function keeps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from statetransform import policies, transform

W = jnp.linspace(0.1, 1.0, 16).reshape(4, 4)
X = jnp.linspace(-1.0, 1.0, 4)


def layers(w: jax.Array, x: jax.Array) -> jax.Array:
    """Two layers with a named sine and a named hyperbolic tangent."""
    y = checkpoint_name(jnp.sin(w @ x), "a")
    z = checkpoint_name(jnp.tanh(w @ y), "b")
    return jnp.sum(jnp.exp(z))


def kept(fun: Callable[..., Any], *args: Any) -> list[str]:
    """The shapes and dtypes that reverse mode keeps besides the arguments themselves, sorted."""
    jaxpr, (_, vjp) = jax.make_jaxpr(lambda *xs: jax.vjp(fun, *xs), return_shape=True)(*args)
    count = len(jax.tree.leaves(vjp))
    residuals = [v for v in jaxpr.jaxpr.outvars[-count:] if v not in jaxpr.jaxpr.invars] if count else []
    return sorted(f"{v.aval.dtype}{list(v.aval.shape)}" for v in residuals)


def only(primitive: str) -> Callable[..., bool]:
    """A policy of the user's own, that saves what one primitive computes."""
    return lambda prim, *_, **__: prim.name == primitive


TABLE: dict[str, Any] = {
    "None": None,
    "nothing": policies.nothing_saveable,
    "everything": policies.everything_saveable,
    "dots": policies.dots_saveable,
    "dots without batch": policies.dots_with_no_batch_dims_saveable,
    "only a": policies.save_only_these_names("a"),
    "names but a": policies.save_any_names_but_these("a"),
    "anything except a": policies.save_anything_except_these_names("a"),
    "both": policies.save_from_both_policies(policies.dots_saveable, policies.save_only_these_names("a")),
    "any": policies.any_of(policies.everything_saveable, policies.save_only_these_names("b")),
    "all": policies.all_of(policies.save_any_names_but_these(), policies.save_smaller_than(32)),
    "none": policies.none_of(policies.dots_saveable),
    "own sine": only("sin"),
    "own true": lambda *_, **__: True,
    "larger": policies.save_larger_than(8),
    "from": policies.save_from(layers),
}


def saved_sets() -> dict[str, list[str]]:
    """For each policy, and for nested ones, what is kept."""
    found = {name: kept(transform.checkpoint(layers, policy=policy), W, X) for name, policy in TABLE.items()}
    for outer, inner in (("everything", "nothing"), ("nothing", "everything"), ("only a", "dots")):

        def nested(w: jax.Array, x: jax.Array, inner: str = inner) -> jax.Array:
            return transform.checkpoint(layers, policy=TABLE[inner])(w, x) * jnp.sin(x[0])

        found[f"{outer} around {inner}"] = kept(transform.checkpoint(nested, policy=TABLE[outer]), W, X)
    return found


def gradients() -> dict[str, float]:
    """For each policy, the sum of the gradient by the weights, compiled."""
    return {
        name: float(jax.jit(jax.grad(transform.checkpoint(layers, policy=policy)))(W, X).sum())
        for name, policy in TABLE.items()
    }
