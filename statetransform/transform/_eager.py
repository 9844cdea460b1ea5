"""Loops and branches in eager mode: each is one compiled function, so that a call has the way in of `jit`.

A loop is a function of its body and its operands. Outside of every transform it is a `jit` of the whole, kept for the
body's code and the options, with the body as an object among the arguments. So a lambda made anew at each call finds
its program; a later call makes no trace and computes no signature.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from .._core.arguments import hide_self, is_reference, strict
from .._core.frame import stack
from .._core.jaxcompat import is_top_level
from .._core.kept import Family, anchor_of, remember
from .._core.library import is_ours, is_users_function
from .._core.traces import RefusedArgument
from .._core.wrapper import Bound
from ._entry import OTHER
from ._jit import Jitted
from ._programs import Store


class Whole(Jitted):
    """A loop or branch with given options, for functions of one code."""

    def _make_store(self) -> Store:
        return Store(Family(), warns=False)  # of retracing: the traces of the body do


class _Loop:
    """A loop with its options: an object of this package, into which no trace looks."""

    def __init__(self, where: str, loop: Callable[..., Any]) -> None:
        self.__name__ = self.__qualname__ = where
        self._loop = loop

    def __call__(self, *args: Any) -> Any:
        return self._loop(*args)


def in_eager_mode(
    where: str, functions: Sequence[Any], options: Hashable, loop: Callable[..., Any], *operands: Any
) -> Any:
    """The loop or branch as a compiled function; OTHER within a transform, or where it cannot be one.

    Args:
      where: the transform's name.
      functions: the body, or the branches.
      options: all else that the loop depends on besides the operands.
      loop: the loop as a function of these functions and the operands, for within the transform.
      *operands: the operands.
    """
    if stack.frame is not None or not is_top_level():
        return OTHER
    way = "eager", where, options, strict(options)
    try:
        compiled = _compiled(functions, way, loop)
    except TypeError:  # an option that cannot be hashed
        return OTHER
    if compiled is None:
        return OTHER
    try:
        return compiled(*functions, *operands)
    except RefusedArgument:  # the loop itself has more to say of it
        return OTHER


#: The compiled loops used last, by what they do and the identity of the body's code. Should another code have it after
#: the death of the first, it finds what it would have found the long way.
_used: dict[Any, Whole] = {}
_BOUND = 128


def _compiled(functions: Sequence[Any], way: Any, loop: Callable[..., Any]) -> Whole | None:
    """The compiled loop; None where one of the functions cannot be an argument."""
    for fun in functions:
        if not _is_followed(fun):
            return None
    key = way, id(anchor_of(functions[0]))
    compiled = _used.get(key)
    if compiled is None:
        compiled = Whole(_Loop(way[1], loop))
    remember(_used, key, compiled, _BOUND)
    return compiled


def _is_followed(fun: Any) -> bool:
    """Whether a function may be an argument: it goes by reference, and so does the instance of a method."""
    kind = type(fun)
    if kind is types.FunctionType:
        return is_users_function(fun)
    if kind is types.MethodType or kind is Bound:
        return is_reference(hide_self(fun.__self__)[0])
    return is_ours(kind) and hasattr(fun, "__wrapped__")
