"""Refuses what is not a policy, and warns of policies that cannot have an effect."""

from __future__ import annotations

import contextlib
import difflib
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.extend.core as jex
from jax.ad_checkpoint import Offloadable

from ..._base.errors import PolicyWarning
from ..._base.sites import warn
from ..._jax import bind_remat, given_name, is_in_loop, without_constvars
from ..loops.budget import MemoryBudget
from ..programs.sizes import parse_bytes
from ..programs.walk import names_in, walk
from ..targets import refuse_offloading, target_of
from ._policy import UNKNOWN, Policy, ask, describe, members, names_of

_EXAMPLES = (
    "Write for example policy=policies.dots_saveable, policy=policies.any_of(p, q) for what either of two policies "
    'keeps, or policy=policies.fit("2GiB") for a budget of memory.'
)


def check_policy(policy: Any) -> None:
    """Refuses what is neither a policy nor ``None``.

    Raises:
      TypeError: This is not a policy; the message shows how to write what was probably meant.

    >>> check_policy("dots_savable")
    Traceback (most recent call last):
    TypeError: a policy is a function, not the text 'dots_savable'. Write policy=policies.dots_saveable ...
    """
    if policy is None:
        return
    if isinstance(policy, MemoryBudget):
        policy()  # raises, and says where it belongs
    if not callable(policy):
        what = f"the text {policy!r}" if isinstance(policy, str) else f"{policy!r} of type {type(policy).__name__}"
        raise TypeError(f"a policy is a function, not {what}. {_instead(policy)}")
    if policy is MemoryBudget:
        raise TypeError('st.MemoryBudget is not a budget yet. Call it with a size: policy=st.MemoryBudget("2GiB").')
    is_ours = getattr(policy, "__module__", "") == "statetransform.policies"
    is_known = is_ours or any(policy is one for one in vars(jax.checkpoint_policies).values())
    if is_known and _makes_policies(policy):
        needed = [p.name for p in inspect.signature(policy).parameters.values() if p.default is p.empty]
        name = policy.__name__
        raise TypeError(
            f"policies.{name} makes a policy and is not one itself. Call it: "
            f"policy=policies.{name}({', '.join(needed)}). {_EXAMPLES}"
        )


def _makes_policies(fun: Any) -> bool:
    # A policy itself takes any parameters of any primitive by keyword.
    return all(p.kind is not p.VAR_KEYWORD for p in inspect.signature(fun).parameters.values())


def _instead(value: Any) -> str:
    """What to write instead of a value that is not a policy."""
    with contextlib.suppress(TypeError, ValueError):
        parse_bytes(value)
        return (
            f"For a budget of memory write policy=policies.fit({value!r}) (from statetransform import policies); to "
            f"keep the values that have more bytes each, write policy=policies.save_larger_than({value!r})."
        )
    if not isinstance(value, str):
        return _EXAMPLES
    names = [name for name, fun in vars(jax.checkpoint_policies).items() if not _makes_policies(fun)]
    close = difflib.get_close_matches(value, names, n=1) or ["dots_saveable"]
    return (
        f"Write policy=policies.{close[0]} (from statetransform import policies); to keep the values that "
        f"checkpoint_name calls {value!r}, write policy=policies.save_only_these_names({value!r})."
    )


def check_memories(policy: Any, jaxpr: Any) -> None:
    """Refuses to offload from or to a memory that the default device lacks; JAX ignores that on some backends.

    In loops also where the compiler of the devices is known to read what was offloaded in the wrong order.
    """
    asked = [kind for member in members(policy) for kind in getattr(member, "memories", ())]
    if asked and (is_in_loop() or any(site.primitive in ("scan", "while") for site in walk(jaxpr))):
        refuse_offloading(f"the policy {describe(policy)}", target_of(None, *jaxpr.in_avals))
    known = {memory.kind for memory in jax.devices()[0].addressable_memories()} if asked else set()
    for kind in asked:
        if known and kind not in known:
            raise ValueError(
                f"the policy {describe(policy)} cannot be honoured: {jax.devices()[0].platform!r} devices have no "
                f"memory {kind!r}. They have {', '.join(map(repr, sorted(known)))}."
            )


def warn_unused_names(policy: Callable[..., Any] | None, jaxpr: Any) -> None:
    """Warns when a policy of this package or of JAX mentions a name that no value of a jaxpr has."""
    asked = names_of(policy)
    if asked <= set(seen := names_in(jaxpr)) or asked <= set(seen := (*seen, *_names_in_rules(jaxpr))):
        return
    missing = sorted(asked - set(seen))
    names = ", ".join(map(repr, missing))
    if seen:
        have = "The names seen are " + ", ".join(map(repr, seen)) + "."
        close = difflib.get_close_matches(missing[0].lower(), [s.lower() for s in seen], n=1)
        meant = next((s for s in seen if close and s.lower() == close[0]), None)
        have += f" Did you mean {meant!r}?" if meant else ""
    else:
        have = "No value has a name; give one with checkpoint_name(value, name)."
    warn(
        f"the policy {describe(policy)} has no effect for {names}: no value of the checkpointed function bears "
        f"{'this name' if len(missing) == 1 else 'these names'}. {have}",
        PolicyWarning,
    )


def _names_in_rules(jaxpr: Any) -> tuple[str, ...]:
    """The names that custom derivatives give, as those of attention kernels do: a checkpoint meets them only then."""
    if not any(site.primitive.startswith("custom_") for site in walk(jaxpr)):
        return ()
    run = jex.jaxpr_as_fun(jaxpr)
    return names_in(jax.make_jaxpr(lambda *xs: jax.vjp(run, *xs)[1])(*jaxpr.in_avals))


def warn_not_offloaded(policy: Policy, jaxpr: Any) -> None:
    """Warns when a policy offloads a value with a name, but no derivative needs that value, so that none is kept.

    For example, what is only an output of the function may be kept by a loop around it whose carry it is. The policy
    does not reach that (https://github.com/jax-ml/jax/issues/23869).
    """
    mentioned = names_of(policy)
    named = [site.eqn for site in walk(jaxpr) if given_name(site.eqn) in mentioned]
    verdict = lambda eqn: ask(policy, eqn.primitive, tuple(v.aval for v in eqn.invars), eqn.params, UNKNOWN)
    offloaded = dict.fromkeys(given_name(eqn) for eqn in named if isinstance(verdict(eqn), Offloadable))
    if not offloaded:
        return
    body, consts = without_constvars(jaxpr)
    run = lambda *xs: bind_remat(body, list(xs), True, policy)
    forward = jax.make_jaxpr(lambda *xs: jax.vjp(run, *xs)[1])(*consts, *[v.aval for v in body.invars[len(consts) :]])
    made = {var: given_name(site.eqn) for site in walk(forward) for var in site.eqn.outvars}
    moved = {made.get(site.eqn.invars[0]) for site in walk(forward) if site.primitive == "device_put"}
    for name in offloaded.keys() - moved:
        warn(
            f"the policy {describe(policy)} offloads nothing for {name!r}: no derivative of the checkpointed function "
            "needs this value, so the checkpoint does not keep it. If it is the carry of a loop around the checkpoint, "
            "the loop keeps it. Then give the name to an input of the step, as in "
            f"`x = checkpoint_name(x, {name!r})` on its first line.",
            PolicyWarning,
        )
