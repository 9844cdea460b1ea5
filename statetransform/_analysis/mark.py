"""Making a policy that depends on where a value was computed into one that depends on names, which JAX can follow.

The policy is asked here, equation by equation, with the source; what it keeps gets a name in a re-evaluated jaxpr, and
the policy that JAX sees looks at these names only. Values that first appear in a derivative, such as the cosine in
the derivative of a sine, have no equation yet and are never kept by such a policy.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import Recompute
from jax.extend.core.primitives import name_p

from .._core.jaxcompat import is_remat
from .check import check_policy, warn, warn_unused_names
from .policy import Policy, Verdict, ask, asks_source, describe, honour, is_kept
from .rewrite import rewrite
from .sources import Source
from .walk import inner_jaxprs

MARK = "kept from "

# The derivatives of these use their output, so that a name behind them is not on the way to the derivative, and JAX
# would compute them again (and what they come from) although the named value is there.
_BY_OUTPUT: dict[str, Callable[[Any], Any]] = {
    "tanh": lambda y: 1 - y * y,
    "exp": lambda y: y,
    "exp2": lambda y: y * jnp.asarray(0.6931471805599453, y.dtype),
    "logistic": lambda y: y * (1 - y),
    "sqrt": lambda y: jnp.asarray(0.5, y.dtype) / y,
    "rsqrt": lambda y: jnp.asarray(-0.5, y.dtype) * y * y * y,
}


@dataclasses.dataclass(frozen=True)
class Marked(Policy):
    """Follows marks: the name of each, and what was decided for it."""

    verdicts: tuple[tuple[str, Verdict], ...]
    shown: str

    def decide(self, primitive: Any, avals: Any, params: Any, source: Any) -> Verdict:
        del avals, source
        return dict(self.verdicts).get(params["name"], Recompute) if primitive is name_p else Recompute

    def __repr__(self) -> str:
        return self.shown


def prepare(policy: Callable[..., Any] | None, jaxpr: Any) -> tuple[Policy | None, Any]:
    """What a checkpoint has to do with a policy before it gives it to JAX.

    Args:
        policy: Any policy, or ``None``.
        jaxpr: The closed jaxpr of the function to be checkpointed.

    Returns:
        The policy and the jaxpr to use in their places. The jaxpr is the given one unless the policy asks where values
        were computed.

    Raises:
        TypeError: The policy is none.

    Warns:
        PolicyWarning: The policy mentions a name that no value bears, or a place where nothing was computed.
    """
    check_policy(policy)
    if policy is None:
        return None, jaxpr
    warn_unused_names(policy, jaxpr)
    if not asks_source(policy):
        return honour(policy), jaxpr
    return _marked(policy, jaxpr)


def _marked(policy: Any, jaxpr: Any) -> tuple[Policy, Any]:
    verdicts: list[tuple[str, Verdict]] = []
    places: dict[str, None] = {}

    def visit(eqn: Any, inputs: Sequence[Any], source: Source | None) -> Sequence[Any] | None:
        places[source.short if source else "an unknown place"] = None
        # What is inside a call is asked about one by one; a custom rule is one value, since its inside is not used.
        if is_remat(eqn) or (inner_jaxprs(eqn) and not eqn.primitive.name.startswith("custom_")):
            return None
        verdict = ask(policy, eqn.primitive, tuple(v.aval for v in eqn.invars), eqn.params, source)
        if not is_kept(verdict):
            return None
        name = f"{MARK}{source.short if source else 'an unknown place'} #{len(verdicts)}"
        verdicts.append((name, verdict))
        return _named_outputs(eqn, inputs, name)

    new = rewrite(jaxpr, visit)
    if not verdicts:
        seen = ", ".join(list(places)[:8]) + (", ..." if len(places) > 8 else "")
        warn(
            f"the policy {describe(policy)} keeps nothing: it chooses no value of the checkpointed function. "
            f"Values were computed at {seen}."
        )
    return Marked(tuple(verdicts), describe(policy)), new


def _named_outputs(eqn: Any, inputs: Sequence[Any], name: str) -> list[Any]:
    bind = eqn.primitive.bind
    params = eqn.primitive.get_bind_params(eqn.params)
    slope = _BY_OUTPUT.get(eqn.primitive.name)
    if slope is None:
        outputs = bind(*inputs, **params)
        outputs = outputs if eqn.primitive.multiple_results else [outputs]
        return [name_p.bind(x, name=name) for x in outputs]

    def plain(x: Any) -> Any:
        return name_p.bind(bind(x, **params), name=name)

    named = jax.custom_jvp(plain)

    @named.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        # Not `named`: JAX asks no policy about what is inside a call of a function with its own rule.
        y = plain(*primals)
        return y, tangents[0] * slope(y)

    return [named(*inputs)]
