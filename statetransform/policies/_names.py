"""Names for values."""

from __future__ import annotations

from typing import TypeVar

import jax
from jax.ad_checkpoint import checkpoint_name as _checkpoint_name

T = TypeVar("T")


def checkpoint_name(x: T, name: str) -> T:
    """Gives every array in a pytree a name that policies can refer to: :func:`jax.ad_checkpoint.checkpoint_name`.

    Args:
      x: A pytree. Arrays of integers and random keys may be among the leaves; they are named too, although
          nothing but a derivative would ever keep them. What is not an array passes through.
      name: The name.

    Returns:
      The same pytree.

    >>> import jax.numpy as jnp
    >>> checkpoint_name({"w": jnp.ones(2), "kind": "dense"}, "layer")
    {'kind': 'dense', 'w': Array([1., 1.], dtype=float32)}
    """
    if not isinstance(name, str):
        raise TypeError(f"checkpoint_name: a name is text, not {name!r} of type {type(name).__name__}")

    def named(leaf: object) -> object:
        return _checkpoint_name(leaf, name) if isinstance(leaf, jax.Array) else leaf

    return jax.tree.map(named, x)
