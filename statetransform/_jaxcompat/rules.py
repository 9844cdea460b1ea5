"""Functions with derivative rules of their own: their rules, changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import linear_util

from .arrays import is_zero_tangent


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
