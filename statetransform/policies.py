"""Policies: which intermediates of a checkpointed function are kept for the backward pass.

Every policy of the installed ``jax.checkpoint_policies`` is here under its own name:

====================================== ======================================= =====================================
name                                   keeps                                   use it when
====================================== ======================================= =====================================
``nothing_saveable``                   nothing (the default)                   memory is all that matters
``everything_saveable``                what plain differentiation keeps        to switch a checkpoint off
``dots_saveable``, ``checkpoint_dots`` matrix products and convolutions        they dominate the time
``dots_with_no_batch_dims_saveable``   matrix products without batch           products with weights are kept, those
                                       dimensions                              within attention are not; not under a
                                                                               ``vmap`` over weights
``checkpoint_dots_with_no_batch_dims`` the same                                it is JAX's other name for it
``offload_dot_with_no_batch_dims``     the same, in another memory             the link to the host is idle
``save_only_these_names``              the named values that are listed        you know what is expensive
``save_any_names_but_these``           the named values that are not listed    what is expensive has a name
``save_anything_except_these_names``   everything, as JAX implements it        never
``save_and_offload_only_these_names``  some names here, some names elsewhere   as above, with offloading
``save_from_both_policies``            what either of two policies keeps       see ``any_of``
====================================== ======================================= =====================================

The package adds:

====================================== ======================================= =====================================
name                                   keeps                                   use it when
====================================== ======================================= =====================================
``any_of``, ``all_of``, ``none_of``    a combination, offloading included      one criterion is not enough
``save_larger_than``                   values of more bytes than given         inside a combination
``save_smaller_than``                  values of fewer bytes than given        small values are expensive
``save_from``                          what a function, file or line computes  the model is not yours to put names in
====================================== ======================================= =====================================

``loops`` is for the loops in a function, those in other people's code included: each of them stores few carries, and a
``while_loop`` gets a reverse mode. ``fit`` takes a budget instead: you say how much memory there is, and
the package makes the plan; ``plan`` shows what each budget would cost.

Those that take names remember them, and a name that no value has is a :class:`PolicyWarning`.
"""

from __future__ import annotations

from typing import Any

import jax

from ._base.errors import PolicyWarning, no_attribute
from ._memory.policies import (
    Policy,
    all_of,
    any_of,
    checkpoint_name,
    fit,
    loops,
    none_of,
    offload_dot_with_no_batch_dims,
    save_and_offload_only_these_names,
    save_any_names_but_these,
    save_anything_except_these_names,
    save_from,
    save_from_both_policies,
    save_larger_than,
    save_only_these_names,
    save_smaller_than,
)
from .inspect._plan import plan

everything_saveable = jax.checkpoint_policies.everything_saveable
nothing_saveable = jax.checkpoint_policies.nothing_saveable
dots_saveable = jax.checkpoint_policies.dots_saveable
checkpoint_dots = jax.checkpoint_policies.checkpoint_dots
dots_with_no_batch_dims_saveable = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
checkpoint_dots_with_no_batch_dims = jax.checkpoint_policies.checkpoint_dots_with_no_batch_dims

__all__ = [
    "Policy",
    "PolicyWarning",
    "all_of",
    "any_of",
    "checkpoint_dots",
    "checkpoint_dots_with_no_batch_dims",
    "checkpoint_name",
    "dots_saveable",
    "dots_with_no_batch_dims_saveable",
    "everything_saveable",
    "fit",
    "loops",
    "none_of",
    "nothing_saveable",
    "offload_dot_with_no_batch_dims",
    "plan",
    "save_and_offload_only_these_names",
    "save_any_names_but_these",
    "save_anything_except_these_names",
    "save_from",
    "save_from_both_policies",
    "save_larger_than",
    "save_only_these_names",
    "save_smaller_than",
]


def __getattr__(name: str) -> Any:
    # A policy of a JAX that is newer than this package is passed on as it is.
    if not name.startswith("_") and hasattr(jax.checkpoint_policies, name):
        return getattr(jax.checkpoint_policies, name)
    raise no_attribute(__name__, name)


def __dir__() -> list[str]:
    return sorted({*__all__, *vars(jax.checkpoint_policies)})


for _object in [globals()[name] for name in __all__]:  # public objects say where they are imported from
    if getattr(_object, "__module__", "").startswith("statetransform."):
        _object.__module__ = __name__
