"""Binding equations with their rules, which JAX does not export; only the memory half needs it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.core
import jax.extend.core as jex
import numpy as np
from jax.extend import linear_util, source_info_util
from jax.extend.core import primitives
from jax.interpreters import ad, batching, mlir

from .both import (
    consts_of,
    eval_jaxpr,
    opened,
    typeof,
    varying_axes,
)
from .programs import (
    without_constvars,
)
from .tangents import is_zero_tangent


def define(
    primitive: Any,
    *,
    run: Callable[..., Any],
    types: Callable[..., Any],
    jvp: Callable[..., Any],
    batch: Callable[..., Any],
    transpose: Callable[..., Any] | None = None,
) -> None:
    """Gives a primitive with several outputs its rules, whose tables are in `jax.interpreters`.

    Args:
      primitive: the primitive.
      run: evaluates it.
      types: its abstract outputs.
      jvp: its outputs and their tangents; None where JAX has a symbolic zero, in and out.
      batch: `batch(lanes, typed, operands, axes, **params)`, where `lanes` are keyword arguments of :func:`jax.vmap`,
        and `typed` gives the abstract value of all lanes together, along a leading axis, out of that of one.
      transpose: the cotangents of its operands, if it is linear; None for zero, in and out.
    """

    def jvp_rule(primals: Sequence[Any], dots: Sequence[Any], **params: Any) -> Any:
        out, moved = jvp(primals, [None if is_zero_tangent(dot) else dot for dot in dots], **params)
        return out, [
            ad.Zero(typeof(y).to_tangent_aval()) if dot is None else dot for y, dot in zip(out, moved, strict=True)
        ]

    def transpose_rule(cotangents: Sequence[Any], *operands: Any, **params: Any) -> Any:
        assert transpose is not None
        return transpose([None if is_zero_tangent(ct) else ct for ct in cotangents], *operands, **params)

    def batch_rule(axis: Any, operands: Sequence[Any], axes: Sequence[Any], **params: Any) -> Any:
        if all(operand_axis is None for operand_axis in axes):
            out = primitive.bind(*operands, **params)
            return out, [None] * len(out)
        lanes = {"axis_size": axis.size, "axis_name": axis.name, "spmd_axis_name": axis.spmd_name}
        typed = lambda aval: jex.unmapped_aval(axis.size, 0, aval, axis.explicit_mesh_axis)
        return batch(lanes, typed, operands, axes, **params)

    primitive.multiple_results = True
    primitive.def_impl(run)
    primitive.def_abstract_eval(types)
    ad.primitive_jvps[primitive] = jvp_rule
    if transpose is not None:
        ad.primitive_transposes[primitive] = transpose_rule
    batching.fancy_primitive_batchers[primitive] = batch_rule
    mlir.register_lowering(primitive, mlir.lower_fun(run, multiple_results=True))


def run(jaxpr: Any, *args: Any) -> list[Any]:
    """The outputs of a jaxpr, closed or open and without constants. Each equation keeps its source."""
    return eval_jaxpr(opened(jaxpr), consts_of(jaxpr), *args)


def bind(primitive: Any, args: Sequence[Any], params: Any) -> list[Any]:
    """Applies a primitive with the parameters that its equations have.

    The parameters in an equation are not those of `bind` for functions with rules of their own, whose jaxprs have to
    become callables again; only the primitive knows how, and JAX's interpreters ask it by this method.
    """
    out = primitive.bind(*args, **primitive.get_bind_params(params))
    return list(out) if primitive.multiple_results else [out]


def bind_with_rules(eqn: Any, inputs: Sequence[Any], change: Callable[[Callable[..., Any]], Any]) -> list[Any]:
    """Applies a function of `jax.custom_jvp` or `jax.custom_vjp`, its rules changed.

    The rules in an equation are private in form, and no public function gives them. Those of a form that is not known
    here stay as they are.

    Args:
      eqn: the equation.
      inputs: the values.
      change: from a function of arrays that gives a list of arrays to the one in its place. It is called when the rule
        is wanted.
    """
    params = eqn.primitive.get_bind_params(eqn.params)
    fun, *rules = params.pop("subfuns", (None,))
    if fun is None:
        return list(eqn.primitive.bind(*inputs, **params))
    return list(eqn.primitive.bind(*inputs, subfuns=(fun, *[_changed(rule, change) for rule in rules]), **params))


def _changed(rule: Any, change: Callable[[Callable[..., Any]], Any]) -> Any:
    """A rule takes and gives arrays, and among them flags and symbolic zeros."""
    if not isinstance(rule, linear_util.WrappedFun):
        return rule

    def call(*args: Any) -> Any:
        given = [i for i, x in enumerate(args) if _is_array(x)]
        found: list[Any] = []

        def of_arrays(*arrays: Any) -> list[Any]:
            whole = list(args)
            for i, x in zip(given, arrays, strict=True):
                whole[i] = x
            leaves, treedef = jax.tree.flatten(rule.call_wrapped(*whole))
            found[:] = treedef, [None if _is_array(x) else x for x in leaves]
            return [x for x in leaves if _is_array(x)]

        arrays = iter(change(of_arrays)(*[args[i] for i in given]))
        treedef, leaves = found
        return treedef.unflatten([next(arrays) if x is None else x for x in leaves])

    return linear_util.wrap_init(call, debug_info=rule.debug_info)


def _is_array(x: Any) -> bool:
    return isinstance(x, jax.Array | np.ndarray) and not is_zero_tangent(x)


def bind_name(value: Any, name: str) -> Any:
    """A name for one array, in the encoding that does not depend on `jax_remat3`, as `checkpoint_name` does."""
    return primitives.name_p.bind(value, name=name)


def bind_remat(jaxpr: Any, args: Sequence[Any], prevent_cse: bool | tuple[bool, ...], policy: Any) -> list[Any]:
    """The checkpoint of a jaxpr, whose constants become inputs, in the encoding that does not depend on `jax_remat3`.

    `jax.checkpoint` asks a policy about other primitives when the flag is set, and honours fewer policies.
    """
    body, consts = without_constvars(jaxpr)
    if isinstance(prevent_cse, tuple):
        prevent_cse = (False,) * len(consts) + prevent_cse
    params = {"jaxpr": body, "prevent_cse": prevent_cse, "differentiated": False, "policy": policy}
    return list(primitives.remat_p.bind(*consts, *args, **params))


@contextlib.contextmanager
def in_place_of(eqn: Any) -> Iterator[None]:
    """What is bound in this context has the source, the name scopes and the configuration of an equation.

    The interpreters that JAX exports take over the source, but cannot be told what to do with an equation.
    """
    stack = source_info_util.current_name_stack() + eqn.source_info.name_stack
    with source_info_util.user_context(eqn.source_info.traceback, name_stack=stack), eqn.ctx.manager:
        yield


def relocated(eqn: Any, caller: Any = None, scopes: Any = None) -> Any:
    """An equation with another source, and behind the name scopes of one around it.

    Args:
      eqn: the equation.
      caller: another equation, whose source to give; None for its own. JAX traces its own functions once, so that the
        equations in them have the stack of the first call.
      scopes: another equation, whose name scopes to put in front of its own; None for none.
    """
    info = eqn.source_info
    stack = info.name_stack if scopes is None else scopes.source_info.name_stack + info.name_stack
    traceback = (eqn if caller is None else caller).source_info.traceback
    return eqn.replace(source_info=info.replace(traceback=traceback, name_stack=stack))


def barrier(tree: Any) -> Any:
    """The same values behind a :func:`jax.lax.optimization_barrier`, with the same types.

    In `shard_map`, the barrier of JAX 0.10 makes all of its operands vary if one does: there, each kind gets its own.
    """
    values, treedef = jax.tree.flatten(tree)
    varying = [varying_axes(x) for x in values]
    found = list(jax.lax.optimization_barrier(values))
    if [varying_axes(x) for x in found] != varying:
        for kind in set(varying):
            which = [i for i, its in enumerate(varying) if its == kind]
            for i, x in zip(which, jax.lax.optimization_barrier([values[i] for i in which]), strict=True):
                found[i] = x
    return treedef.unflatten(found)
