"""The kinds of states that ship with the package: to be trained, and random keys."""

from __future__ import annotations

from typing import Any, overload

import jax
import jax.numpy as jnp
import numpy as np

from .formatting import show_item
from .state import State, T


class Param(State[T]):
    """A state that is trained: a kind to select by, as in ``st.states(model, Param)``."""

    __slots__ = ()


class RandomState(State[jax.Array]):
    """A state that holds a random key and hands out fresh ones.

    Args:
      seed_or_key: an integer seed, a typed key (``jax.random.key``) or a raw ``uint32`` key
        (``jax.random.PRNGKey``).
      name: what error messages and tables call the state.

    References:
      https://docs.jax.dev/en/latest/jax.random.html

    Example:
      >>> from statetransform import RandomState
      >>> rng = RandomState(0)
      >>> a, b = rng.split(), rng.split()
      >>> bool(a == b)
      False
      >>> rng.split(4).shape
      (4,)
    """

    __slots__ = ()
    _instead = "Write `rng.split()` for a fresh key, `rng.key` for the current one."

    def __init__(self, seed_or_key: Any, *, name: str | None = None, **metadata: Any) -> None:
        dtype = getattr(seed_or_key, "dtype", None)
        is_key = dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key)
        is_integer = dtype is not None and jnp.issubdtype(dtype, jnp.integer)
        if not is_key and not is_integer and not isinstance(seed_or_key, int):
            raise TypeError(
                f"{type(self).__name__}: expected an integer seed or a random key, not {show_item(seed_or_key)} of "
                f"type {type(seed_or_key).__name__}. Write `{type(self).__name__}(0)`, or pass `jax.random.key(0)`."
            )
        if not is_key and np.ndim(seed_or_key) == 0:
            seed_or_key = jax.random.key(seed_or_key)
        super().__init__(seed_or_key, name=name, **metadata)

    @property
    def key(self) -> jax.Array:
        """The current key. Using it and then splitting uses the same randomness twice."""
        return self.value

    @overload
    def split(self, num: None = None) -> jax.Array: ...
    @overload
    def split(self, num: int | tuple[int, ...]) -> jax.Array: ...
    def split(self, num: int | tuple[int, ...] | None = None) -> jax.Array:
        """Advances the state and returns fresh keys.

        Args:
          num: how many keys: None for a single key, or a number or shape as in :func:`jax.random.split`.

        Returns:
          A key, or an array of keys with the leading shape ``num``.
        """
        if num is None:
            self.value, fresh = jax.random.split(self.value)
            return fresh
        # `fresh` is split off first, so the keys drawn do not depend on how the rest is used.
        self.value, fresh = jax.random.split(self.value)
        return jax.random.split(fresh, num)
