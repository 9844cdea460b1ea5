"""The one place that chooses who asks the policy of a checkpoint: the three ways to recompute a program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .context import Context
from .loops.budget import MemoryBudget
from .plans.calls import planned
from .policies._apply import changed, checkpointed
from .policies._loops import Loops


def checkpoint(
    program: Any,
    policy: Callable[..., Any] | MemoryBudget | None = None,
    prevent_cse: bool | tuple[bool, ...] = True,
    context: Context | None = None,
) -> Callable[..., list[Any]]:
    """:func:`jax.checkpoint` of a closed jaxpr, with budgets and the policies of this package.

    * A budget of bytes on the device: no policy is asked, nor those of checkpoints in the program; the gradient runs
      by a plan (`plans`).
    * A budget with room far away, and `policies.loops`: the loops in the program are others (`loops`).
    * Any other policy: `checkpointed` binds JAX's equation, and JAX asks the policy that `prepare` makes. One that
      wants to know sources (`save_from`) is asked before, about the jaxpr, and JAX finds marks. Names are looked for
      in the jaxpr in order to warn.

    Args:
      program: the closed jaxpr.
      policy: as in :func:`jax.checkpoint`, or a budget.
      prevent_cse: as in :func:`jax.checkpoint`; a tuple has a flag for each input.
      context: what is around the call.

    Returns:
      A function of the inputs, for use inside of a trace.
    """
    if isinstance(policy, MemoryBudget):
        if not policy.host_bytes and not policy.disk_bytes:
            return planned(program, policy, context or Context())
        policy = Loops(policy, is_shared=True)
    if isinstance(policy, Loops):
        return changed(program, policy)
    return checkpointed(program, policy, prevent_cse)
