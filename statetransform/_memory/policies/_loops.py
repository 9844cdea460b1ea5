"""Few stored carries for the loops in a function, whoever wrote them."""

from __future__ import annotations

import dataclasses
from typing import Any

from ..loops.budget import MemoryBudget
from ..loops.options import check_carries
from ..loops.others import Rewriter, number_of_loops
from ._policy import Policy


@dataclasses.dataclass(frozen=True, repr=False)
class Loops(Policy):
    """The policy that `loops` makes: it changes the function, and keeps all else.

    Attributes:
      checkpoint: what each loop stores.
      is_shared: whether the loops share a budget; otherwise each has its bytes on the device for itself.
    """

    checkpoint: int | str | MemoryBudget
    is_shared: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.checkpoint, MemoryBudget):
            check_carries("policies.loops", self.checkpoint)

    def changed(self, jaxpr: Any) -> Any:
        """A closed jaxpr with its loops treated."""
        n = max(number_of_loops(jaxpr), 1)
        return Rewriter(self.checkpoint, (n if self.is_shared else 1, n)).changed(jaxpr)

    def decide(self, primitive: Any, avals: Any, params: Any, source: Any) -> Any:
        raise TypeError(
            f"policies.{self!r} changes the loops of a function and cannot decide about single values. Use it as "
            f"`transform.checkpoint(f, policy=policies.{self!r})`, not in `jax.checkpoint`, `any_of`, `all_of` or "
            "`none_of`. To keep less outside of loops, checkpoint parts of `f` with another policy."
        )

    def __repr__(self) -> str:
        given = self.checkpoint
        return f"loops({given.spelled if isinstance(given, MemoryBudget) else repr(given)})"


def loops(checkpoint: int | str | MemoryBudget) -> Policy:
    """Stores only a few carries of each loop in a function, and makes each `while_loop` differentiable in reverse mode.

    Each `jax.lax.scan`, `jax.lax.while_loop` and `jax.lax.fori_loop` in the function is treated as
    :func:`statetransform.transform.scan` and :func:`statetransform.transform.while_loop` are with `checkpoint=`.
    Neither the function nor the libraries that it calls need to change: loops are found in its program, also in other
    loops, in `jit`, `cond`, `checkpoint` and `shard_map`, and in the rules of a `custom_vjp` or `custom_jvp`, but for
    those of tangents, which are linear. What is outside of loops is differentiated as without the policy: it is kept,
    but for what checkpoints in the function compute again. A loop of this package with a `checkpoint=` of its own stays
    as it is, with the loops in its step. To treat those, give the policy to the step:
    `transform.scan(transform.checkpoint(step, policy=policies.loops(20)), ..., checkpoint=30)`.

    A `while_loop` stores the carries of a schedule for a length that is not known in advance. Reverse mode works once,
    and forward mode over it, as in `hessian`. A `scan` with an effect that must not be repeated, such as
    `jax.debug.print(..., ordered=True)`, stays as it is, with a :class:`PolicyWarning`.

    Args:
      checkpoint: what each loop stores, as `checkpoint=` of :func:`statetransform.transform.scan`: a number of carries,
        "step", "sqrt", "log", or a :class:`statetransform.MemoryBudget`. Each loop has that for itself, and the loops
        in its step share half of it; all share the room in host memory or on disk. The names need a number of steps
        that is known in advance, so they are not for a `while_loop`.

    Returns:
      A policy for `transform.checkpoint(f, policy=...)` alone.

    Raises:
      TypeError, ValueError: `checkpoint` is not one of these. When the function is called: a `while_loop` has an effect
        that must not be repeated, or uses a `jax.Ref`. When it is differentiated in reverse mode: a `while_loop` and a
        name.

    References:
      Griewank and Walther, *Algorithm 799: revolve*, ACM Transactions on Mathematical Software 26, 2000.
      Stumm and Walther, *New algorithms for optimal online checkpointing*, SIAM Journal on Scientific Computing 32,
      2010.

    Example:
      A Newton iteration as in a library, which JAX can differentiate in forward mode only:

      >>> import jax, jax.numpy as jnp
      >>> from statetransform import policies, transform
      >>> def square_root(a):
      ...     is_far = lambda x: jnp.abs(x * x - a) > 1e-5 * a
      ...     return jax.lax.while_loop(is_far, lambda x: (x + a / x) / 2, a)
      >>> differentiable = transform.checkpoint(square_root, policy=policies.loops(20))
      >>> round(float(transform.grad(differentiable)(4.0)), 4)
      0.25
    """
    return Loops(checkpoint)
