"""What a policy is: something that says of each value in a checkpointed region what becomes of it.

JAX asks a policy ``policy(primitive, *input_avals, **params)`` and takes a bool or one of ``Saveable``, ``Recompute``,
``Offloadable`` of ``jax.ad_checkpoint``. :class:`Policy` is the same as an object: equal ones compare equal, so
that JAX's caches recognise a policy that was made anew; it knows the names that it speaks of; it is told where
a value was computed, which JAX tells no policy; and it reads both of JAX's ways to write down a name.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, TypeAlias, TypeVar

import jax
import numpy as np
from jax.ad_checkpoint import Offloadable, Recompute, Saveable
from jax.ad_checkpoint import checkpoint_name as _checkpoint_name
from jax.extend.core.primitives import name_p

from ..._jax import name_in_params, names_held
from ..programs.sources import Source

# bool, Saveable, Recompute or Offloadable(...)
Verdict: TypeAlias = Any
T = TypeVar("T")


UNKNOWN: Any = object()  # the source of a value when JAX asks a policy: JAX does not tell it


class Policy(abc.ABC):
    """Base of the policies that this package makes; call it as JAX does."""

    # A subclass may have `parts`, the policies that it is made from. It has no default here, because subclasses declare
    # it as a field of a data class.

    #: Whether this policy by itself has to be told where a value was computed.
    asks_source: ClassVar[bool] = False

    @abc.abstractmethod
    def decide(self, primitive: Any, avals: tuple[Any, ...], params: Any, source: Source | None) -> Verdict:
        """What becomes of the outputs of one equation."""

    def __call__(self, primitive: Any, *avals: Any, **params: Any) -> Verdict:
        """The question that JAX asks."""
        return ask(self, primitive, avals, params, UNKNOWN)

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


def ask(
    policy: Callable[..., Any], primitive: Any, avals: tuple[Any, ...], params: Any, source: Source | None
) -> Verdict:
    """What a policy, of this package or not, says of one equation: ``Saveable``, ``Recompute`` or ``Offloadable``.

    JAX asks by `Policy.__call__`, a combination asks its parts, `_apply` asks about a jaxpr before JAX does, and
    `_refuse` in order to warn. Only what `checkpointing` hands to :func:`jax.checkpoint` as it is does not come here.

    Raises:
      TypeError: The policy answers with anything else.
    """
    name = name_in_params(primitive, params)
    if name is not None:
        primitive, params = name_p, {"name": name}
    if isinstance(policy, Policy):
        verdict = policy.decide(primitive, avals, params, source)
    else:
        verdict = policy(primitive, *avals, **params)
    if isinstance(verdict, (bool, np.bool_)):
        return Saveable if verdict else Recompute
    if verdict is Saveable or verdict is Recompute or isinstance(verdict, Offloadable):
        return verdict
    raise TypeError(
        f"the policy {describe(policy)} answers {verdict!r} for a value computed by {primitive.name!r}. A policy "
        "answers True or False, or Saveable, Recompute or Offloadable(src=..., dst=...) of jax.ad_checkpoint."
    )


def is_kept(verdict: Verdict) -> bool:
    """Whether a verdict spares the recomputation, on the device or off it."""
    return verdict is Saveable or isinstance(verdict, Offloadable)


def describe(policy: Any) -> str:
    """How a message names a policy."""
    if policy is None or isinstance(policy, Policy):
        return repr(policy)
    # Some releases have functions there, some have objects, and several names may be given to one of them.
    known = [name for name, value in vars(jax.checkpoint_policies).items() if value is policy]
    name = known[0] if known else getattr(policy, "__qualname__", repr(policy))
    return name.removesuffix(".<locals>.policy")  # what JAX's own functions that make policies return


def members(policy: Any) -> list[Any]:
    """The policy and everything that it is made from."""
    parts = getattr(policy, "parts", ()) if isinstance(policy, Policy) else ()
    return [policy, *[member for part in parts for member in members(part)]]


def names_of(policy: Any) -> frozenset[str]:
    """The names of values that a policy of this package or of JAX mentions.

    >>> from statetransform import policies
    >>> sorted(names_of(policies.any_of(policies.save_only_these_names("a", "b"), policies.dots_saveable)))
    ['a', 'b']
    """
    return frozenset().union(*[names_held(m.rule if isinstance(m, Wrapped) else m) for m in members(policy)])


def asks_source(policy: Any) -> bool:
    """Whether a policy, or one that it is made from, has to be told where a value was computed."""
    return any(isinstance(m, Policy) and m.asks_source for m in members(policy))


@dataclasses.dataclass(frozen=True, repr=False)
class Wrapped(Policy):
    """Somebody else's policy, which is always asked about ``name_p`` with the parameter ``name``.

    With ``jax_remat3`` a name is another primitive than without, and JAX's own policies know one of the two.

    Attributes:
      rule: the policy.
      shown: how it is written; empty for its own name.
      memories: the kinds of memory that it speaks of.
    """

    rule: Callable[..., Any]
    shown: str = ""
    memories: tuple[str, ...] = ()

    def __eq__(self, other: object) -> bool:
        # Of two that were made by equal calls, JAX's own are not equal.
        key = lambda policy: policy.shown or policy.rule
        return isinstance(other, Wrapped) and key(self) == key(other)

    def __hash__(self) -> int:
        return hash(self.shown or self.rule)

    def decide(self, primitive: Any, avals: Any, params: Any, source: Any) -> Verdict:
        return self.rule(primitive, *avals, **params)

    def __repr__(self) -> str:
        return self.shown or describe(self.rule)


def checkpoint_name(x: T, name: str) -> T:
    """Gives every array in a pytree a name that policies can refer to: :func:`jax.ad_checkpoint.checkpoint_name`.

    Args:
      x: A pytree. Arrays of integers and random keys may be among the leaves; they are named too, although
          nothing but a derivative would ever keep them. What is not an array passes through.
      name: The name.

    Returns:
      The same pytree.

    >>> import jax.numpy as jnp
    >>> checkpoint_name({"w": jnp.ones(2), "kind": "dense"}, "layer")
    {'kind': 'dense', 'w': Array([1., 1.], dtype=float32)}
    """
    if not isinstance(name, str):
        raise TypeError(f"checkpoint_name: a name is text, not {name!r} of type {type(name).__name__}")

    def named(leaf: object) -> object:
        return _checkpoint_name(leaf, name) if isinstance(leaf, jax.Array) else leaf

    return jax.tree.map(named, x)
