"""What each trace of a function was made for, so that a later one can be explained.

Kept are types, static values and weak references, but no jaxpr and no array: a log outlives the traces.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from .._base.errors import show_site
from .._base.sites import user_site
from .._objects.plain import reference

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
    "jax_scan3",
    "jax_custom_vjp3",
    "jax_custom_jvp3",
    "jax_remat_barrier_no_cotangents",
)


class LogEntry(NamedTuple):
    """What one trace depended on.

    Attributes:
      arguments: `(args, kwargs)` with abstract values as leaves, and `Static` and `Reference` nodes.
      reads: the states read by position, each with its name and birthplace, the structure of its value and the abstract
        values of its leaves.
      statics: static states with their values.
      constants: states left out of the lift, with the addresses of their leaves.
      is_reusable: whether a later call could use the trace.
      why: where the objects differ from those of the trace before: the path, and what stood and stands there.
      own: the path to a function that changed a variable of its own, and what is said of it; no other takes the trace.
      settings: JAX's configuration and mesh, and the shardings that the trace depends on.
      site: file and line of the call.
      fun: gives the function that was traced; others of the same code use the trace, too.
    """

    arguments: Any
    reads: Sequence[tuple[str, Any, tuple[Any, ...]]]
    statics: Sequence[tuple[str, Any]]
    constants: Sequence[tuple[str, tuple[int, ...]]]
    is_reusable: bool
    why: tuple[str, str, str] | None
    own: tuple[str, str] | None
    settings: dict[str, Any]
    site: tuple[str, int]
    fun: Callable[[], Any]


def log_entry(trace: Any, fun: Any, why: Any = None, own: Any = None) -> LogEntry:
    """What a trace that was just made depended on; called from within the call that made it."""
    called = [
        state._name if state._name is not None else f"{type(state).__name__} of {show_site(state._created)}"
        for state in trace.states
    ]
    flat = [jax.tree.flatten(value) for value in jax.tree.unflatten(trace.read_tree, trace.read_avals)]
    settings = {name: getattr(jax.config, name, None) for name in SETTINGS}
    shardings = None if trace.shardings is None else str([place and place.spec for place in trace.shardings])
    return LogEntry(
        trace.arguments,
        [(called[i], treedef, tuple(leaves)) for i, (leaves, treedef) in enumerate(flat)],
        [(called[i], value) for i, value in trace.statics],
        [(called[i], tuple(map(id, leaves))) for i, leaves in trace.constants],
        trace.structure is not None,
        why,
        own,
        {**settings, "mesh": str(jax.sharding.get_abstract_mesh()), "shardings": shardings},
        user_site(),
        reference(fun),
    )
