"""``jax.checkpoint`` in a way that ``jax_remat3`` does not change, and with every policy honoured.

``jax_remat3`` swaps the implementation behind ``jax.checkpoint``. Measured on 0.10.2 and 0.12.0, with the new one:

* a policy is asked about dot products, convolutions and named values only, so one that looks at other primitives saves
  nothing, and one that keeps everything keeps the dot products and the named values (``everything_saveable`` itself is
  recognised, but not inside a combination). On 0.10.2 named values are asked about by JAX's own classes of
  policies only;
* ``checkpoint_name`` binds another primitive, which a policy that tests for ``name_p`` does not recognise;
* a checkpoint inside one with ``everything_saveable`` recomputes what it contains, and without the flag keeps it.

Binding ``remat_p``, which ``jax.extend`` exports, is independent of the flag; a policy from ``prepare`` is independent
of how a name was written down. Together the saved set is the same in both settings.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core.primitives import remat_p

from .._core.jaxcompat import without_constvars
from .check import check_policy
from .mark import prepare


def remat_call(
    jaxpr: Any,
    args: Sequence[Any],
    *,
    policy: Callable[..., Any] | None = None,
    prevent_cse: bool | tuple[bool, ...] = True,
) -> list[Any]:
    """Evaluates a jaxpr on flat arguments as ``jax.checkpoint`` of it would.

    Args:
        jaxpr: A closed jaxpr.
        args: One value per input.
        policy: A policy, or ``None`` to save nothing.
        prevent_cse: As in :func:`jax.checkpoint`; a tuple has one entry per input.

    Returns:
        The outputs, flat.

    Raises:
        TypeError: The policy is none.

    >>> import jax, jax.numpy as jnp
    >>> remat_call(jax.make_jaxpr(jnp.cos)(0.0), [0.0])
    [Array(1., dtype=float32...)]
    """
    policy, jaxpr = prepare(policy, jaxpr)
    body, consts = without_constvars(jaxpr)
    if isinstance(prevent_cse, tuple):
        prevent_cse = (False,) * len(consts) + prevent_cse
    return list(remat_p.bind(*consts, *args, jaxpr=body, prevent_cse=prevent_cse, differentiated=False, policy=policy))


def checkpointed(
    fun: Callable[..., Any],
    *,
    policy: Callable[..., Any] | None = None,
    prevent_cse: Any = True,
) -> Callable[..., Any]:
    """A pure function under a checkpoint: :func:`jax.checkpoint` without static arguments and without caches.

    Every call traces ``fun``, so this is for use inside a trace, as a transform has it.

    Args:
        fun: A function of pytrees of arrays.
        policy: Any policy, or ``None`` to save nothing.
        prevent_cse: As in :func:`jax.checkpoint`.

    Returns:
        The function that recomputes.

    >>> import jax, jax.numpy as jnp
    >>> float(jax.grad(checkpointed(lambda x: jnp.sin(jnp.sin(x))))(0.0))
    1.0
    """
    check_policy(policy)

    @functools.wraps(fun)
    def call(*args: Any, **kwargs: Any) -> Any:
        leaves, treedef = jax.tree.flatten((args, kwargs))
        jaxpr, out = jax.make_jaxpr(
            functools.wraps(fun, updated=())(lambda *xs: _apply(fun, treedef.unflatten(xs))),
            return_shape=True,
        )(*leaves)
        which = prevent_cse if isinstance(prevent_cse, bool) else _flags(prevent_cse, args, kwargs)
        flat = remat_call(jaxpr, leaves, policy=policy, prevent_cse=which)
        return jax.tree.unflatten(jax.tree.structure(out), flat)

    return call


def _apply(fun: Callable[..., Any], arguments: tuple[Any, Any]) -> Any:
    args, kwargs = arguments
    return fun(*args, **kwargs)


def _flags(prefix: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[bool, ...]:
    whole = (tuple(args), kwargs) if kwargs else tuple(args)
    return tuple(jax.tree.leaves(jax.tree.broadcast(prefix, whole)))
