"""Loops of unknown length under `vmap`: all lanes take the steps of the longest one, and those that are done stay.

`vmap` of a loop whose condition depends on the lane selects between the old and the new value of everything that
the loop carries: in a sweep, all stored carries in every step. So no condition of a sweep depends on the lane. It goes
on while any lane does, and only the carry is selected. Where carries are stored and which step runs next is then the
same for all lanes, and what a step costs does not depend on how many carries are stored.

All this is for lanes alone: without them, these functions are identities, or constants that the compiler removes.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap

from ..._jax import typeof
from .linear import Linear


@custom_vmap
def largest_of_lanes(x: Any) -> Any:
    """The largest of what the lanes have, the same in all: of a number of steps, or whether any of them goes on."""
    return x


@largest_of_lanes.def_vmap
def _largest_of_lanes(axis_size: int, is_batched: list[bool], x: Any) -> tuple[Any, bool]:
    del axis_size
    return largest_of_lanes(jnp.max(x, 0) if is_batched[0] else x), False


def lanes_first(values: Any) -> Any:
    """The same values; lanes get their axis in front. For what a `custom_jvp` and its rule return.

    Under `vmap` and `jit`, JAX believes that the rule gives lanes the axis that the function gives them. Where it is
    another one, derivatives are wrong: a scan gives the lanes of stacked outputs axis 1, a sweep axis 0.
    """
    return one_by_one(values, _same)


def _same(_: Any, xs: Any) -> Any:
    return xs


def one_by_one(values: Any, transpose: Callable[[Any, Any], Any]) -> Any:
    """The same values, whose cotangents go through `transpose`.

    Each is handed on by itself: in a derivative rule some are tangents, to be transposed, and the others are not.
    """
    return jax.tree.map(lambda x: Linear(_same, transpose, (typeof(x),), 0)([], [x])[0], values)


def is_for_lanes(eqn: Any) -> bool:
    """Whether an equation is one of the identities that `lanes_first` and `noticed` add.

    They matter to later derivatives only, so the planner leaves them out.
    """
    rule = eqn.params.get("rule")
    return getattr(eqn.params.get("linear"), "fun", None) is _same or getattr(rule, "__wrapped__", rule) in _rules


@custom_vmap
def is_left_out(is_done: Any) -> Any:
    """Whether this lane is done while others go on. Without lanes, none is: the loop would have ended."""
    return jnp.zeros_like(is_done)


@is_left_out.def_vmap
def _is_left_out(axis_size: int, is_batched: list[bool], is_done: Any) -> tuple[Any, bool]:
    del axis_size
    return (is_done, True) if is_batched[0] else (is_left_out(is_done), False)


_rules = weakref.WeakSet[Any]()  # those of `noticed` for lanes


def noticed(known: int, notice: Callable[[int], None]) -> Callable[[Any], Any]:
    """An identity that calls `notice` with the lanes that come after `known` axes of them."""
    # Reverse mode does not go through `custom_vmap`, so only primals do, at each order of differentiation.
    seen = jax.custom_jvp(_noticed(known, notice))
    seen.defjvp(lambda primals, dots: (seen(primals[0]), dots[0]), symbolic_zeros=True)
    return seen


def _noticed(known: int, notice: Callable[[int], None], count: int = 1) -> Any:
    same = custom_vmap(lambda args: args)

    @same.def_vmap
    def _of_lanes(size: int, is_batched: list[Any], args: Any) -> tuple[Any, Any]:
        if known:
            return _noticed(known - 1, notice)(args), is_batched[0]
        notice(count * size)
        return _noticed(0, notice, count * size)(args), is_batched[0]

    _rules.add(_of_lanes)
    return same
