"""Tangents: which ones are zero, and what a value is without those of one trace."""

from __future__ import annotations

from typing import Any

import jax
from jax.interpreters import ad

from .both import Tracer, _chain, is_differentiable, is_jaxpr, opened, take_current_trace, typeof


def is_zero_tangent(dot: Any) -> bool:
    """Whether a tangent or cotangent is zero for certain, in a rule of a primitive or with `symbolic_zeros`.

    JAX hands over instances of a class whose instances answer as arrays do, so only `type` tells them.
    """
    is_symbolic = type(dot) in (ad.Zero, jax.custom_derivatives.SymbolicZero)
    return is_symbolic or getattr(dot, "dtype", None) == jax.dtypes.float0


def symbolic_zero(primal: Any) -> Any:
    """The tangent of a value that does not move, as a rule of `custom_jvp` may return it."""
    return jax.custom_derivatives.SymbolicZero(typeof(primal).to_tangent_aval())


def without_inner_tangents(value: Any) -> tuple[Any, bool]:
    """A pytree from a trace inside as the present trace sees it, and whether a tangent was taken away.

    A rule runs outside of the traces that differentiate by it. The arguments of the function come to it as primals;
    this does the same for what it closes over: it takes away the tangents that the present trace does not know. No
    public function does: `jax.lax.stop_gradient` takes away the tangents of the traces around as well, which second
    derivatives need.
    """
    with take_current_trace() as trace:
        known = {id(getattr(each, "tag", None)) for each in _chain(trace)}
    leaves, tree = jax.tree.flatten(value)
    pairs = [_lowered(leaf, known) for leaf in leaves]
    return tree.unflatten([leaf for leaf, _ in pairs]), any(is_lost for _, is_lost in pairs)


def _lowered(leaf: Any, known: set[int]) -> tuple[Any, bool]:
    is_lost = False
    while isinstance(leaf, Tracer) and hasattr(leaf, "primal") and id(getattr(leaf._trace, "tag", None)) not in known:
        is_lost = is_lost or not is_zero_tangent(leaf.tangent)
        leaf = leaf.primal
    if isinstance(leaf, Tracer) and hasattr(leaf, "batch_dim"):
        inner, within = _lowered(leaf.val, known)
        if inner is not leaf.val:
            return type(leaf)(leaf._trace, inner, leaf.batch_dim), is_lost or within  # type: ignore[call-arg]
    return leaf, is_lost


def without_tangent(x: Any, inputs: Any) -> Any:
    """What a function gave for some inputs, without tangents in the trace that differentiates the function by them.

    :func:`jax.lax.stop_gradient` takes away the tangents of the traces around, too. The inputs say which trace it is.
    """
    leaves, tree = jax.tree.flatten(x)
    moving = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tracer) and is_differentiable(leaf)]
    if moving:
        inputs = [leaf for leaf in jax.tree.leaves(inputs) if isinstance(leaf, Tracer)]
        for i, leaf in zip(moving, _standing([leaves[i] for i in moving], inputs), strict=True):
            leaves[i] = leaf
    return tree.unflatten(leaves)


@jax.custom_jvp
def _standing(xs: Any, inputs: Any) -> Any:
    del inputs
    return xs


_standing.defjvp(lambda primals, dots: (primals[0], [*map(symbolic_zero, primals[0])]), symbolic_zeros=True)


def is_without_tangent(eqn: Any) -> bool:
    """Whether what an equation gives has no tangent, whatever it is given."""
    # With `jax_custom_jvp3`, the function sits in a parameter of a primitive for all that is like it.
    traced = (getattr(param, "traced", None) for param in eqn.params.values())
    body = eqn.params.get("call_jaxpr") or next((found.jaxpr for found in traced if found is not None), None)
    if is_jaxpr(body):
        info = opened(body).debug_info
        return info.func_name == "_standing" and info.func_filename == __file__
    return eqn.primitive.name == "stop_gradient"
