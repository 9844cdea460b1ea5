"""The differences between JAX releases that reading a jaxpr meets, each with its reason.

Nothing here looks at a version number: what is asked is what the object at hand can do, so that a release between
two tested ones works too. No JAX internal is imported.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Sequence
from typing import Any

import jax
import jax.core
import jax.extend.core as jex
from jax.extend.core import primitives

# JAX unified `Jaxpr` and `ClosedJaxpr` in 0.11. Before, a closed jaxpr wraps an open one in `.jaxpr`.
Jaxpr = (jex.Jaxpr, jex.ClosedJaxpr)  # pyright: ignore[reportPrivateImportUsage]

# Exported by `jax.core`, and by no module that JAX documents.
eval_jaxpr = jax.core.eval_jaxpr
Tracer = jax.core.Tracer

# With `jax_remat3`, `checkpoint_name` does not bind `name_p` but a "high" primitive whose identity sits in a
# parameter. Both classes are private, so they are recognised by the name that a printed jaxpr shows.
_NAMING_CLASSES = frozenset({"CheckpointName", "CheckpointNameFwd"})


def is_jaxpr(value: object) -> bool:
    """Whether ``value`` is a jaxpr, open or closed."""
    return isinstance(value, Jaxpr)


def opened(jaxpr: Any) -> Any:
    """What a closed jaxpr wraps, which alone may stand in the parameters of an equation; any other jaxpr itself."""
    return getattr(jaxpr, "jaxpr", jaxpr)


def consts_of(jaxpr: Any) -> Sequence[Any]:
    """The values of a jaxpr's constants; empty for an open jaxpr of the older releases."""
    return getattr(jaxpr, "consts", ())


def name_in_params(primitive: Any, params: Any) -> str | None:
    """The name that an application of ``checkpoint_name`` gives, in either of JAX's two encodings."""
    if primitive is primitives.name_p:
        return params["name"]
    high = params.get("_prim")
    if high is not None and type(high).__name__ in _NAMING_CLASSES:
        return high.name
    return None


def name_of(eqn: Any) -> str | None:
    """The name that an equation gives to its output, or ``None`` for any other equation.

    >>> import jax
    >>> from jax.ad_checkpoint import checkpoint_name
    >>> jaxpr = jax.make_jaxpr(lambda x: checkpoint_name(x * 2, "twice"))(1.0)
    >>> [name_of(eqn) for eqn in opened(jaxpr).eqns]
    [None, 'twice']
    """
    return name_in_params(eqn.primitive, eqn.params)


def names_held(policy: Any) -> frozenset[str]:
    """The names of values that one of JAX's own policies holds: no policy of theirs can be asked for them.

    They are the only sets of texts that such a policy refers to, be it a function or, in other releases, an object.

    >>> sorted(names_held(jax.checkpoint_policies.save_only_these_names("a", "b")))
    ['a', 'b']
    """
    if not (getattr(policy, "__module__", None) or "").startswith("jax."):
        return frozenset()
    if isinstance(policy, types.FunctionType):
        held = inspect.getclosurevars(policy).nonlocals
    else:
        held = getattr(policy, "__dict__", {})
    found: set[str] = set()
    for value in held.values():
        if callable(value):
            found |= names_held(value)
        elif isinstance(value, set | frozenset | tuple | list) and all(isinstance(name, str) for name in value):
            found |= set(value)
    return frozenset(found)


def is_remat(eqn: Any) -> bool:
    """Whether an equation is a call of ``jax.checkpoint``, in either of JAX's two encodings."""
    if eqn.primitive is primitives.remat_p:
        return True
    return type(eqn.params.get("_prim")).__name__ == "RematTraced"


def remat_params(eqn: Any) -> tuple[Any, Any]:
    """The jaxpr and the policy of a ``jax.checkpoint`` equation."""
    if eqn.primitive is primitives.remat_p:
        return eqn.params["jaxpr"], eqn.params["policy"]
    high = eqn.params["_prim"].params
    return high["jaxpr"], high["policy"]


def without_constvars(jaxpr: Any) -> tuple[Any, tuple[Any, ...]]:
    """An open jaxpr whose constants are its first inputs, and the values of these constants.

    Goes through a new trace, since `replace` on a jaxpr would also have to rewrite its debug information, whose form
    is not the same in any two releases. Re-evaluation keeps every equation's source.
    """
    consts = tuple(consts_of(jaxpr))
    if not consts:
        return opened(jaxpr), ()
    avals = [*(jax.typeof(c) for c in consts), *(v.aval for v in opened(jaxpr).invars)]
    body = opened(jaxpr)

    def call(*args: Any) -> list[Any]:
        return eval_jaxpr(body, args[: len(consts)], *args[len(consts) :])

    return opened(jax.make_jaxpr(call)(*avals)), consts
