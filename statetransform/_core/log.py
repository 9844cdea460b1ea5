"""What each trace of a function was made for, so that a later one can be explained.

Kept are types, static values and weak references, but no jaxpr and no array: a log outlives the traces.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

import jax

from .frame import user_site
from .values import Token

_KEPT = 200  # traces; who has more needs no list to see that something is wrong
#: What a trace depends on besides the function, its arguments and the states.
SETTINGS = (
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_threefry_partitionable",
    "jax_numpy_dtype_promotion",
    "jax_numpy_rank_promotion",
    "jax_debug_nans",
    "jax_debug_infs",
    "jax_debug_key_reuse",
    "jax_enable_checks",
    "jax_remat3",
)


class Traced(NamedTuple):
    """What one trace depended on.

    Attributes:
      arguments: `(args, kwargs)` with abstract values as leaves, and `Static` and `Ref` nodes.
      reads: the states read, each with the structure of its value and the abstract values of its leaves.
      statics: static states with their values.
      constants: states left out of the lift, with the addresses of their leaves.
      is_reusable: whether a later call could use the trace.
      settings: JAX's configuration and mesh.
      site: file and line of the call.
    """

    arguments: Any
    reads: tuple[tuple[Token[Any], Any, tuple[Any, ...]], ...]
    statics: tuple[tuple[Token[Any], Any], ...]
    constants: tuple[tuple[Token[Any], tuple[int, ...]], ...]
    is_reusable: bool
    settings: dict[str, Any]
    site: tuple[str, int]


class TraceLog:
    """The last traces of one function, oldest first."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: deque[Traced] = deque(maxlen=_KEPT)

    def __iter__(self) -> Any:
        return iter(tuple(self._entries))

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, record: Any) -> None:
        """Notes a trace that was just made; called from within the call that made it."""
        flat = map(jax.tree.flatten, jax.tree.unflatten(record.read_tree, record.read_avals))
        reads = zip(record.read_tokens, flat, strict=True)
        settings = {name: getattr(jax.config, name, None) for name in SETTINGS}
        self._entries.append(
            Traced(
                record.arguments,
                tuple((token, treedef, tuple(leaves)) for token, (leaves, treedef) in reads),
                record.statics,
                tuple((token, tuple(map(id, leaves))) for token, leaves in record.constants),
                record.is_reusable,
                {**settings, "mesh": str(jax.sharding.get_abstract_mesh())},
                user_site(),
            )
        )

    def clear(self) -> None:
        """Forgets everything."""
        self._entries.clear()
