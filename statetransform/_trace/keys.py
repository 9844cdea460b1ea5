"""Random keys under recomputation.

`jax.debug_key_reuse` takes the second run of a checkpointed body for a second use of its keys, and
complains about programs that are right (JAX does so for its own `checkpoint`, too). The checker follows
typed keys only. So while it is on, keys cross the border of a checkpointed body as plain numbers, and are
keys again inside, where reuse is still found.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from .._jaxcompat import typeof


class _Checking(threading.local):
    is_postponed = False


_checking = _Checking()


def is_checking() -> bool:
    """Whether JAX looks, now or later, for keys that are used twice."""
    return _checking.is_postponed or jax.config.jax_debug_key_reuse  # type: ignore[attr-defined]


@contextlib.contextmanager
def check_later() -> Iterator[None]:
    """For the time of one trace: its inputs are not inputs yet, and the checker would not know them.

    What is traced is checked when it is re-bound.
    """
    if not jax.config.jax_debug_key_reuse:  # type: ignore[attr-defined]
        yield
        return
    _checking.is_postponed = True
    try:
        with jax.debug_key_reuse(False):
            yield
    finally:
        _checking.is_postponed = False


def unwrap(tree: Any) -> tuple[Any, Callable[[Any], Any]]:
    """A pytree with its typed keys as numbers, and the function that makes keys of them again."""
    leaves, treedef = jax.tree.flatten(tree)
    impls = {i: jax.random.key_impl(leaf) for i, leaf in enumerate(leaves) if _is_key(leaf)}
    numbers = [jax.random.key_data(leaf) if i in impls else leaf for i, leaf in enumerate(leaves)]

    def rewrap(tree: Any) -> Any:
        leaves = jax.tree.leaves(tree)
        keys = [jax.random.wrap_key_data(x, impl=impls[i]) if i in impls else x for i, x in enumerate(leaves)]
        return treedef.unflatten(keys)

    return treedef.unflatten(numbers), rewrap


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(typeof(leaf).dtype, jax.dtypes.prng_key)
