"""Tracers and traces: whose a value is, and whether a function is staged."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import jax.core

from .contexts import take_current_trace

# Exported by `jax.core`, and by no module that JAX documents.
Tracer = jax.core.Tracer


def has_tracer(value: Any) -> bool:
    """Whether a pytree has a tracer among its leaves."""
    if isinstance(value, jax.Array):
        return isinstance(value, Tracer)
    return any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(value))


def is_tracer_of(value: Any, trace: Any) -> bool:
    """Whether `value` is a tracer that `trace` itself made.

    Under a `vmap` trace that means "batched": an operation on unbatched values is left to the trace
    around it. No public function says to which trace a tracer belongs (`jex.find_top_trace` ignores
    its argument), so this reads the attribute.
    """
    return isinstance(value, Tracer) and value._trace is trace


def is_batched(value: Any, trace: Any) -> bool:
    """Whether `value` differs between the lanes of a `vmap` trace.

    What comes out of a function with a derivative rule of its own, or of `shard_map`, is a tracer of the trace even
    where no lane has a part of it. The dimension says which; no public function does.
    """
    return is_tracer_of(value, trace) and getattr(value, "batch_dim", None) is not None


def lanes_of(values: Iterable[Any]) -> list[int]:
    """The sizes of the axes that the `vmap` traces around have taken from some values, none where JAX hides them.

    A tracer of `vmap` shows an array without that axis, and no public function says how large it is. Behind a trace
    that stages nothing is known: its values get their lanes, if any, when the program is run.
    """
    found: dict[int, int] = {}
    for x in values:
        while isinstance(x, Tracer):
            if hasattr(x, "batch_dim"):
                if x.batch_dim is not None and hasattr(x._trace, "axis_data"):
                    found[id(x._trace.tag)] = x._trace.axis_data.size
                x = x.val
            else:
                x = getattr(x, "primal", None)
    return list(found.values())


#: Traces under which a function with a derivative rule runs at once. Under any other it is staged, and its rule is
#: called when the program is differentiated. None of these classes is exported.
_DIRECT = frozenset({"EvalTrace", "JVPTrace", "LinearizeTrace", "BatchTrace"})


def _chain(trace: Any) -> Iterator[Any]:
    """A trace and those around it, from the innermost."""
    while trace is not None:
        yield trace
        trace = getattr(trace, "parent_trace", None)


def vmaps_around() -> tuple[tuple[int, ...], bool]:
    """The sizes of the `vmap` around up to where JAX stages, the innermost first, and whether that is innermost of all.

    No public function says so; each of the traces of `vmap` knows its axis.
    """
    with take_current_trace() as trace:
        chain = list(itertools.takewhile(lambda each: type(each).__name__ in _DIRECT, _chain(trace)))
        sizes = tuple(each.axis_data.size for each in chain if hasattr(each, "axis_data"))
        return sizes, bool(chain) and hasattr(chain[0], "axis_data")


def belongs_to(value: Any, trace: Any) -> bool:
    """Whether `value` is a tracer of `trace`, or of one within it."""
    return isinstance(value, Tracer) and any(each is trace for each in _chain(value._trace))


def staging_trace() -> Any:
    """The innermost trace that stages, and None where functions run at once. Not to be kept."""
    with take_current_trace() as trace:
        return next((each for each in _chain(trace) if type(each).__name__ not in _DIRECT), None)


def stages(trace: Any) -> bool:
    """Whether a trace stages, or one around it."""
    return any(type(each).__name__ not in _DIRECT for each in _chain(trace))


def runs_rule_directly(args: Any) -> bool:
    """Whether JAX runs a function with a derivative rule, or its rule, at once for these arguments.

    The innermost trace that differentiates by one of them runs the rule, also where a trace around it stages. A trace
    is asked as JAX's `process_custom_vjp_call` and `process_custom_jvp_call` ask it.
    """
    leaves = jax.tree.leaves(args)
    with take_current_trace() as trace:
        for each in _chain(trace):
            kind = type(each).__name__
            if kind not in _DIRECT:
                return False
            tag = getattr(each, "tag", None)
            own = [isinstance(leaf, Tracer) and getattr(leaf._trace, "tag", None) is tag for leaf in leaves]
            if kind == "BatchTrace":
                leaves = [leaf.val if its else leaf for leaf, its in zip(leaves, own, strict=True)]
            elif kind != "EvalTrace" and any(own):
                return True
    return True


def lowered(value: Any) -> Any:
    """A pytree from a trace inside as the present trace sees it: without the tangents that it does not know.

    A rule runs outside of the traces that differentiate by it. The arguments of the function come to it as primals;
    this does the same for what it closes over. No public function does: `jax.lax.stop_gradient` takes away the tangents
    of the traces around as well, which second derivatives need.
    """
    with take_current_trace() as trace:
        known = {id(getattr(each, "tag", None)) for each in _chain(trace)}
    return jax.tree.map(lambda leaf: _lowered(leaf, known), value)


def _lowered(leaf: Any, known: set[int]) -> Any:
    while isinstance(leaf, Tracer) and hasattr(leaf, "primal") and id(getattr(leaf._trace, "tag", None)) not in known:
        leaf = leaf.primal
    if isinstance(leaf, Tracer) and hasattr(leaf, "batch_dim"):
        inner = _lowered(leaf.val, known)
        if inner is not leaf.val:
            return type(leaf)(leaf._trace, inner, leaf.batch_dim)  # type: ignore[call-arg]
    return leaf
