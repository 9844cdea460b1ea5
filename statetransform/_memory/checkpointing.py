"""The one place that chooses who asks the policy of a checkpoint: the four ways to recompute a pure function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from .context import Context
from .loops.budget import MemoryBudget
from .plans.calls import planned
from .policies._apply import checkpointed
from .policies._loops import Loops
from .policies._policy import Policy, names_of


def checkpoint(
    fun: Callable[..., Any],
    policy: Callable[..., Any] | MemoryBudget | None = None,
    prevent_cse: Any = True,
    context: Context | None = None,
    **others: Any,
) -> Callable[..., Any]:
    """:func:`jax.checkpoint` of a pure function, with budgets and the policies of this package.

    * A budget of bytes on the device: no policy is asked, nor those of checkpoints in the function; the gradient runs
      by a plan (`plans`).
    * A budget with room far away, and `policies.loops`: the loops in the function are others (`loops`).
    * A policy of this package, or one with names: `checkpointed` binds JAX's equation, and JAX asks the policy that
      `prepare` makes. One that wants to know sources (`save_from`) is asked before, about the jaxpr, and JAX
      finds marks. Names are looked for in the jaxpr in order to warn.
    * Any other policy goes to :func:`jax.checkpoint`, which asks it.

    Args:
      fun: a function of pytrees of arrays.
      policy, prevent_cse, others: as in :func:`jax.checkpoint`.
      context: what is around the call.

    Returns:
      The function, for use inside of a trace.
    """
    if isinstance(policy, MemoryBudget):
        if not policy.host_bytes and not policy.disk_bytes:
            return planned(fun, policy, context or Context())
        policy = Loops(policy, is_shared=True)
    # For a policy that is not ours and has no names, JAX's own checkpoint will do, unless the flag is set that changes
    # what it saves. Names are looked for in the jaxpr, which that does not show.
    is_checked = isinstance(policy, Policy) or names_of(policy)
    is_plain = not is_checked and not getattr(jax.config, "jax_remat3", False)
    transform = jax.checkpoint if is_plain else checkpointed
    options = dict(others, policy=policy, prevent_cse=prevent_cse)
    return transform(fun, **options)
