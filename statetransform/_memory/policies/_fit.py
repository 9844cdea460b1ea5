"""A memory budget as a policy. `checkpointing` hands the function to `plans`, where `choose` decides what is kept."""

from __future__ import annotations

from typing import Any

from ..loops.budget import MemoryBudget


def fit(size: int | str, *, compile: bool = True, progress: bool = False, target: Any = None) -> MemoryBudget:
    """Keeps the intermediates of a function within a number of bytes.

    A plan decides what is kept, what is recomputed, and when. In the plan, the bytes alive at the same time never
    exceed the budget. If the plain function meets the budget, as compiled, it stays the plain program.

    Args:
      size: bytes, or a text such as "512 MiB".
      compile: compile the gradient step, and correct the plan by what the compiler needs. The first step then takes
        2.5 to 15 times as long as without a budget, least for large models. With False the plan is trusted, and
        nothing is compiled for it.
      progress: show a bar of `tqdm` while planning takes long.
      target: the devices that the plan is for, if they are not there: a :class:`statetransform.Target`, its name
        ("H100"), or devices of a topology. Default: where the arguments are, or what JAX runs on.

    Returns:
      A :class:`statetransform.MemoryBudget`, for `transform.checkpoint(f, policy=...)`. Its `choices` say what was
      chosen.

    Raises:
      TypeError, ValueError: `size` is not a size, or there is no such `target`.
      ImportError, RuntimeError: the compiler of `target` cannot be had.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from statetransform import policies, transform
      >>> def loss(x, ws):
      ...     for w in ws:
      ...         x = jnp.tanh(x @ w)
      ...     return (x**2).sum()
      >>> x, ws = jnp.ones((256, 32)), [jnp.ones((32, 32))] * 8
      >>> budget = policies.fit("1 MiB")
      >>> fitting = transform.checkpoint(loss, policy=budget)
      >>> gradients = transform.grad(fitting, argnums=1)(x, ws)
      >>> print(budget.choices[-1])
      the gradient of loss within 1 MiB: ... as planned, ... as compiled, ...
    """
    return MemoryBudget(size, compile=compile, progress=progress, target=target)
