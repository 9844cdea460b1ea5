"""``jax.checkpoint`` with every policy honoured: JAX asks the one that `prepare` makes, whatever ``jax_remat3`` is.

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

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp
from jax.ad_checkpoint import Recompute
from jax.extend.core.primitives import name_p

from ..._base.errors import PolicyWarning
from ..._base.sites import warn
from ..._jax import bind, bind_name, bind_remat, function_of, is_array_type, is_remat
from ..loops.others import number_of_loops
from ..programs.rewrite import rewrite
from ..programs.sources import Place
from ..programs.walk import MARK, inner_jaxprs
from ._loops import Loops
from ._policy import Policy, Verdict, Wrapped, ask, asks_source, describe, is_kept
from ._refuse import check_memories, warn_not_offloaded, warn_unused_names

# tanh' = 1 - tanh^2 uses the output. A name that is put after such a function is not on the path to its derivative, so
# JAX would compute the function again although the named value is there. These are differentiated through the
# named value.
_BY_OUTPUT: dict[str, Callable[[Any], Any]] = {
    "tanh": lambda y: 1 - y * y,
    "exp": lambda y: y,
    "exp2": lambda y: y * jnp.asarray(0.6931471805599453, y.dtype),
    "logistic": lambda y: y * (1 - y),
    "sqrt": lambda y: jnp.asarray(0.5, y.dtype) / y,
    "rsqrt": lambda y: jnp.asarray(-0.5, y.dtype) * y * y * y,
}


@dataclasses.dataclass(frozen=True, repr=False)
class Marked(Policy):
    """Follows marks: the name of each, and what was decided for it."""

    verdicts: tuple[tuple[str, Verdict], ...]

    def decide(self, primitive: Any, avals: Any, params: Any, source: Any) -> Verdict:
        return dict(self.verdicts).get(params["name"], Recompute) if primitive is name_p else Recompute


def prepare(policy: Callable[..., Any] | None, jaxpr: Any) -> tuple[Callable[..., Any] | None, Any]:
    """The policy and the closed jaxpr that JAX gets; another jaxpr where the policy asks where values were computed.

    Raises if it names a memory that the device lacks. Warns of what it cannot do here.
    """
    if policy is None:
        return None, jaxpr
    check_memories(policy, jaxpr)
    warn_unused_names(policy, jaxpr)
    if asks_source(policy):
        return _marked(policy, jaxpr)
    if not isinstance(policy, Policy):
        policy = Wrapped(policy)
    warn_not_offloaded(policy, jaxpr)
    return policy, jaxpr


def _marked(policy: Any, jaxpr: Any) -> tuple[Policy, Any]:
    verdicts: list[tuple[str, Verdict]] = []
    places: dict[str, None] = {}

    def visit(eqn: Any, inputs: Sequence[Any], place: Place) -> Sequence[Any] | None:
        source = place.source
        places[source.short if source else "an unknown place"] = None
        # What is inside a call is asked about one by one; a custom rule is one value, since its inside is not used.
        if is_remat(eqn) or (inner_jaxprs(eqn) and not eqn.primitive.name.startswith("custom_")):
            return None
        if not all(is_array_type(var.aval) for var in eqn.outvars):
            return None  # a reference cannot be kept
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
            f"Values were computed at {seen}.",
            PolicyWarning,
        )
    return Marked(tuple(verdicts)), new


def _named_outputs(eqn: Any, inputs: Sequence[Any], name: str) -> list[Any]:
    slope = _BY_OUTPUT.get(eqn.primitive.name)
    if slope is None:
        return [bind_name(x, name) for x in bind(eqn.primitive, inputs, eqn.params)]

    def plain(x: Any) -> Any:
        return bind_name(bind(eqn.primitive, [x], eqn.params)[0], name)

    named = jax.custom_jvp(plain)

    @named.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        # Not `named`: JAX asks no policy about what is inside a call of a function with its own rule.
        y = plain(*primals)
        return y, tangents[0] * slope(y)

    return [named(*inputs)]


def checkpointed(
    program: Any, policy: Callable[..., Any] | None = None, prevent_cse: bool | tuple[bool, ...] = True
) -> Callable[..., list[Any]]:
    """The checkpoint of a closed jaxpr as a function of its inputs.

    >>> import jax, jax.numpy as jnp
    >>> f = checkpointed(jax.make_jaxpr(lambda x: jnp.sin(jnp.sin(x)))(0.0))
    >>> float(jax.grad(lambda x: f(x)[0])(0.0))
    1.0
    """
    chosen, program = prepare(policy, program)
    return lambda *inputs: bind_remat(program, inputs, prevent_cse, chosen)


def changed(program: Any, policy: Loops) -> Callable[..., list[Any]]:
    """A closed jaxpr with other loops, as a function of its inputs. All else is kept, as by no checkpoint of JAX."""
    inner = jex.jaxpr_as_fun(policy.changed(program))
    if not number_of_loops(program):
        return inner

    def run(*inputs: Any) -> list[Any]:
        return inner(*inputs)

    # One program: in an eager gradient JAX would compile each loop at each call, by the identity of its parts.
    run.__name__ = function_of(program)[0] or run.__name__
    return jax.jit(run)
