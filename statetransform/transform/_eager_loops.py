"""Loops and branches in eager mode: each is one compiled function, so that a call has the way in of `jit`.

A loop is a function of its body and its operands. Where no transform around stages, it is a `jit` of the whole, kept
for the body's code and the options, with the body as an object among the arguments. So a lambda made anew at each call
finds its program; a later call makes no trace and compiles nothing, in the gradient either, where JAX would compile
since it knows functions by identity.

A body may close over arrays and over traced values, such as what is differentiated. These become operands: the object
among the arguments is a copy of the function with holes in their places, which are filled for the trace. Containers are
copied for traced values only, since a body may compare or change them. Where Python looks at an array that the body
closes over, its arrays stay what they are, as constants of the trace, and so do integers.
"""

from __future__ import annotations

import enum
import functools
import types
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from .._base.library import is_ours, is_users_function
from .._jax import Tracer, concrete_array, is_jit_disabled, is_top_level, staging_trace
from .._memory import MemoryBudget, known_lanes, lanes_around
from .._objects.lookup import contents
from .._objects.plain import MISSING
from .._traces.arguments import hide_self, is_reference, strict
from .._traces.explain import RefusedArgument
from .._traces.families import Family, anchor_of, remember
from .._traces.wrapper import Bound
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
            functions = _replaced(functions, lambda leaf, _: leaf is Hole.TRACED, lambda _: next(values))
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
    if is_jit_disabled() or (not is_top_level() and staging_trace() is not None):  # nothing would be compiled
        return OTHER
    holes: list[Any] = []

    def take(leaf: Any) -> Hole:
        holes.append(leaf)
        return Hole.TRACED

    code = id(anchor_of(functions[0]))
    followed = [fun if _is_followed(fun) else Followed(fun) for fun in functions]
    emptied = _replaced(followed, _is_traced if code in _looking else _is_operand, take)
    # A plan for a budget depends on the lanes around, which the trace of the whole does not see.
    has_budget = any(isinstance(option, MemoryBudget) for option in options)
    lanes = tuple(known_lanes(jax.tree.leaves((holes, operands)))) if has_budget else ()
    key = where, options, strict(options), lanes, code
    try:
        compiled = _used.get(key)
    except TypeError:  # an option that cannot be hashed
        return OTHER
    if compiled is None:
        compiled = Whole(_EagerLoop(where, loop, len(functions), lanes))
    remember(_used, key, compiled, _BOUND)
    try:
        return compiled(holes, *emptied, *operands)
    except RefusedArgument:  # the loop itself has more to say of it
        return OTHER
    except _OF_VALUES:  # JAX gives Python no value of what is differentiated, but those of other arrays
        if all(isinstance(leaf, Tracer) for leaf in holes):
            raise
    remember(_looking, code, True, _BOUND)
    try:
        return in_eager_mode(where, functions, options, loop, *operands)
    except Exception:  # it was something else, which may not be there at the next call
        _looking.pop(code, None)
        raise


def _is_traced(leaf: Any, is_bare: bool) -> bool:
    return isinstance(leaf, Tracer)


def _is_operand(leaf: Any, is_bare: bool) -> bool:
    """Whether what a function closes over, bare or in a container, becomes an operand."""
    if type(leaf) is concrete_array():
        return is_bare and jnp.issubdtype(leaf.dtype, jnp.inexact)
    return isinstance(leaf, Tracer)


def _replaced(
    functions: Sequence[Any], is_replaced: Callable[[Any, bool], bool], put: Callable[[Any], Any]
) -> list[Any]:
    """The functions, with some of what they and the functions within them close over replaced.

    Where there is nothing to replace, a function is itself. The copies close over each other as the functions do, and
    a container that two of them have is copied once.
    """
    found: dict[int, Any] = {}
    users: dict[int, list[int]] = {}
    changed: list[int] = []
    waiting = list(functions)
    for fun in waiting:  # without recursion, since functions may close over themselves
        if id(fun) in found:
            continue
        found[id(fun)] = fun
        for value in _closed_over(fun):
            for leaf in _leaves(value):
                if is_replaced(leaf, leaf is value):
                    changed.append(id(fun))
                elif type(leaf) in _COPIED:
                    users.setdefault(id(leaf), []).append(id(fun))
                    waiting.append(leaf)
    if not changed:
        return list(functions)
    copied: set[int] = set()
    while changed:
        if (i := changed.pop()) not in copied:
            copied.add(i)
            changed += users.get(i, ())
    cells: dict[int, types.CellType] = {}
    is_changed = lambda value: any(is_replaced(x, x is value) or id(x) in copied for x in _leaves(value))
    empty = lambda cell: cells.setdefault(id(cell), types.CellType()) if is_changed(contents(cell)) else cell
    containers: dict[int, Any] = {}

    def now(value: Any, is_bare: bool = True) -> Any:
        if type(value) not in _CONTAINERS:
            return put(value) if is_replaced(value, is_bare) else copies.get(id(value), value)
        if id(value) not in containers:
            containers[id(value)] = value  # for one that is within itself
            items = [*value.values()] if type(value) is dict else value
            changed = [now(item, False) for item in items]
            if any(a is not b for a, b in zip(items, changed, strict=True)):
                copy = dict(zip(value, changed, strict=True)) if type(value) is dict else type(value)(changed)
                containers[id(value)] = copy
        return containers[id(value)]

    copies = {i: _copy(fun, empty) for i, fun in found.items() if i in copied}
    for i, copy in copies.items():
        _fill(copy, found[i], now)
    return [copies.get(id(fun), fun) for fun in functions]


def _closed_over(fun: Any) -> list[Any]:
    if type(fun) is types.FunctionType:
        values = [*map(contents, fun.__closure__ or ()), *(fun.__defaults__ or ())]
        return values if fun.__kwdefaults__ is None else [*values, *fun.__kwdefaults__.values()]
    if type(fun) is functools.partial:
        return [fun.func, *fun.args, *fun.keywords.values()]
    return [fun.__wrapped__] if type(fun) is Followed else []


def _leaves(value: Any) -> list[Any]:
    """What is in plain containers; a value that is none is its own leaf."""
    if type(value) not in _CONTAINERS:
        return [value]
    leaves, waiting, seen = [], [value], set[int]()
    for each in waiting:
        if type(each) not in _CONTAINERS:
            leaves.append(each)
        elif id(each) not in seen:
            seen.add(id(each))
            waiting += each.values() if type(each) is dict else each
    return leaves


def _copy(fun: Any, empty: Callable[[types.CellType], types.CellType]) -> Any:
    """A copy of a function, with empty cells for what is filled in."""
    if type(fun) is not types.FunctionType:
        return functools.partial(fun) if type(fun) is functools.partial else Followed(fun)
    cells = tuple(map(empty, fun.__closure__ or ()))
    copy = types.FunctionType(fun.__code__, fun.__globals__, fun.__name__, None, cells)
    return functools.update_wrapper(copy, fun)


def _fill(copy: Any, fun: Any, now: Callable[[Any], Any]) -> None:
    """Gives the copy of a function what it closes over."""
    if type(fun) is functools.partial:
        keywords = {key: now(value) for key, value in fun.keywords.items()}
        copy.__setstate__((now(fun.func), tuple(map(now, fun.args)), keywords, fun.__dict__))
    elif type(fun) is Followed:
        copy.__wrapped__ = now(fun.__wrapped__)
    else:
        for cell, other in zip(fun.__closure__ or (), copy.__closure__ or (), strict=True):
            if other is not cell and contents(other) is MISSING:  # another function may have it as well
                other.cell_contents = now(contents(cell))
        copy.__defaults__ = fun.__defaults__ and tuple(map(now, fun.__defaults__))
        copy.__kwdefaults__ = fun.__kwdefaults__ and {key: now(value) for key, value in fun.__kwdefaults__.items()}


_COPIED = (types.FunctionType, functools.partial, Followed)
_CONTAINERS = (dict, list, tuple)
_OF_VALUES = (TypeError, ValueError, AttributeError, LookupError)  # what Python says that cannot use a traced value
#: The compiled loops used last, by what they do and the identity of the body's code. Should another code have it after
#: the death of the first, it finds what it would have found the long way.
_used: dict[Any, Whole] = {}
_BOUND = 128
_looking: dict[int, bool] = {}  # codes of bodies in which Python looks at an array that they close over


def _is_followed(fun: Any) -> bool:
    """Whether a function may be an argument: it goes by reference, and so does the instance of a method."""
    kind = type(fun)
    if kind is types.FunctionType:
        return is_users_function(fun)
    if kind is types.MethodType or kind is Bound:
        return is_reference(hide_self(fun.__self__)[0])
    return is_ours(kind) and hasattr(fun, "__wrapped__")
