"""Loops and branches in eager mode: each is one compiled function, so that a call has the way in of `jit`.

A loop is a function of its body and its operands. Where no transform around stages, it is a `jit` of the whole, kept
for the body's code and the options, with the body as an object among the arguments. So a lambda made anew at each call
finds its program; a later call makes no trace and compiles nothing, in the gradient either, where JAX would compile
since it knows functions by identity.

A body may close over traced values there, such as what is differentiated. These become operands: the object among the
arguments is a copy of the function with holes in their places, which are filled for the trace.
"""

from __future__ import annotations

import enum
import functools
import operator
import types
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax

from .._jaxcompat import Tracer, is_jit_disabled, is_top_level, runs_directly
from .._loops.budget import MemoryBudget
from .._loops.lanes import known_lanes, lanes_around
from .._objects.library import is_ours, is_users_function
from .._objects.lookup import contents
from .._state import adapters
from .._trace.arguments import hide_self, is_reference, strict
from .._trace.families import Family, anchor_of, remember
from .._trace.traces import RefusedArgument
from .._trace.wrapper import Bound
from ._entry import OTHER
from ._jit import Jitted
from ._programs import Store


class Whole(Jitted):
    """A loop or branch with given options, for functions of one code."""

    def _make_store(self) -> Store:
        return Store(Family(), warns=False)  # of retracing: the traces of the body do


class _EagerLoop:
    """A loop with its options: an object of this package, into which no trace looks.

    It is called with what fills the holes of its functions, the functions and the operands.
    """

    def __init__(self, where: str, loop: Callable[..., Any], n_functions: int, lanes: tuple[int, ...]) -> None:
        self.__name__ = self.__qualname__ = where
        self._loop, self._n_functions, self._lanes = loop, n_functions, lanes

    def __call__(self, holes: list[Any], *args: Any) -> Any:
        functions, values = args[: self._n_functions], iter(holes)
        if holes:
            fill = lambda fun: _replaced(fun, lambda leaf: leaf is Hole.TRACED, lambda _: next(values))
            functions = map(fill, functions)
        with lanes_around(self._lanes):
            return self._loop(*functions, *args[self._n_functions :])


class Hole(enum.Enum):
    """In the place of a traced value that a function closes over."""

    TRACED = "traced"


class Followed:
    """A function that cannot be an argument itself, such as one of a library; a trace follows it as it does others."""

    def __init__(self, fun: Callable[..., Any]) -> None:
        self.__wrapped__ = fun
        self.__name__ = getattr(fun, "__name__", type(fun).__name__)
        self.__qualname__ = getattr(fun, "__qualname__", self.__name__)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__wrapped__(*args, **kwargs)


def in_eager_mode(
    where: str, functions: Sequence[Any], options: tuple[Hashable, ...], loop: Callable[..., Any], *operands: Any
) -> Any:
    """The loop or branch as a compiled function; OTHER within a transform that stages, or where it cannot be one.

    Args:
      options: what the loop depends on, apart from the operands.
      loop: the loop as a function of these functions and the operands, for within the transform.
    """
    if is_jit_disabled():  # nothing would be compiled
        return OTHER
    holes: list[Any] = []

    def take(leaf: Any) -> Hole:  # Python could not have decided on it: JAX gives no value of what is differentiated
        holes.append(leaf)
        return Hole.TRACED

    if not is_top_level():
        if not runs_directly():
            return OTHER
        functions = [_replaced(fun, lambda leaf: isinstance(leaf, Tracer), take) for fun in functions]
    functions = [fun if _is_followed(fun) else Followed(fun) for fun in functions]
    # A plan for a budget depends on the lanes around, which the trace of the whole does not see.
    has_budget = any(isinstance(option, MemoryBudget) for option in options)
    lanes = tuple(known_lanes(jax.tree.leaves((holes, operands)))) if has_budget else ()
    key = where, options, strict(options), lanes, id(anchor_of(functions[0]))
    try:
        compiled = _used.get(key)
    except TypeError:  # an option that cannot be hashed
        return OTHER
    if compiled is None:
        compiled = Whole(_EagerLoop(where, loop, len(functions), lanes))
    remember(_used, key, compiled, _BOUND)
    try:
        return compiled(holes, *functions, *operands)
    except RefusedArgument:  # the loop itself has more to say of it
        return OTHER


def _replaced(
    fun: Any,
    is_replaced: Callable[[Any], bool],
    put: Callable[[Any], Any],
    known: dict[int, Any] | None = None,
    depth: int = 0,
) -> Any:
    """A copy of a function with some of what it closes over replaced; the function itself where there is nothing.

    So with functions that it closes over, up to some depth. `known` has those met so far; one that closes over itself
    keeps what it has.
    """
    known = {} if known is None else known
    if id(fun) not in known and depth <= _DEPTH:
        known[id(fun)] = fun
        known[id(fun)] = _copy(fun, is_replaced, put, known, depth + 1)
    return known.get(id(fun), fun)


def _copy(
    fun: Any, is_replaced: Callable[[Any], bool], put: Callable[[Any], Any], known: dict[int, Any], depth: int
) -> Any:
    def changed_leaf(leaf: Any) -> Any:
        if is_replaced(leaf):
            return put(leaf)
        is_function = type(leaf) in (types.FunctionType, functools.partial)
        return _replaced(leaf, is_replaced, put, known, depth) if is_function else leaf

    def changed(value: Any) -> Any:
        leaves, treedef = adapters.flatten(value)
        now = [*map(changed_leaf, leaves)]
        return value if all(map(operator.is_, now, leaves)) else treedef.unflatten(now)

    def cell_of(cell: types.CellType) -> types.CellType:
        value = contents(cell)
        now = changed(value)
        return cell if now is value else types.CellType(now)

    if type(fun) is functools.partial:
        args, keywords = tuple(map(changed, fun.args)), {name: changed(arg) for name, arg in fun.keywords.items()}
        return functools.partial(_replaced(fun.func, is_replaced, put, known, depth), *args, **keywords)
    if isinstance(fun, Followed):
        return Followed(_replaced(fun.__wrapped__, is_replaced, put, known, depth))
    if type(fun) is not types.FunctionType:
        return fun
    closure = fun.__closure__ or ()
    cells, defaults = tuple(map(cell_of, closure)), changed(fun.__defaults__)
    if defaults is fun.__defaults__ and all(map(operator.is_, cells, closure)):
        return fun
    copied = types.FunctionType(fun.__code__, fun.__globals__, fun.__name__, defaults, cells)
    copied.__kwdefaults__ = fun.__kwdefaults__
    return functools.update_wrapper(copied, fun, updated=("__dict__",))


#: The compiled loops used last, by what they do and the identity of the body's code. Should another code have it after
#: the death of the first, it finds what it would have found the long way.
_used: dict[Any, Whole] = {}
_BOUND = 128
_DEPTH = 16  # of functions within functions: deeper ones keep what they close over, and are compiled at each call


def _is_followed(fun: Any) -> bool:
    """Whether a function may be an argument: it goes by reference, and so does the instance of a method."""
    kind = type(fun)
    if kind is types.FunctionType:
        return is_users_function(fun)
    if kind is types.MethodType or kind is Bound:
        return is_reference(hide_self(fun.__self__)[0])
    return is_ours(kind) and hasattr(fun, "__wrapped__")
