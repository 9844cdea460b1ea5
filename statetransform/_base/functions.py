"""Functions of the user's: their code, and the names that errors call them by."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any


def all_that(works: Callable[[list[Any]], bool], items: list[Any]) -> list[Any]:
    """The items of a list that work, where some work together if each works alone.

    >>> all_that(lambda items: 3 not in items, [1, 2, 3, 4])
    [1, 2, 4]
    """
    if not items or works(items):
        return items
    half = len(items) // 2
    return [*all_that(works, items[:half]), *all_that(works, items[half:])] if half else []


def code_of(fun: Any) -> Any:
    """The code of a function below its wrappers; None where there is none."""
    fun = inspect.unwrap(fun)
    while isinstance(fun, functools.partial):
        fun = inspect.unwrap(fun.func)
    return getattr(fun, "__code__", None)


def name_of(fun: Any) -> str:
    """How errors call a function."""
    while isinstance(fun, functools.partial):
        fun = fun.func
    return getattr(fun, "__qualname__", None) or type(fun).__qualname__


def named_like(fun: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """JAX's messages and profiles name the user's function and its arguments, not ours."""
    return functools.wraps(fun, assigned=("__name__", "__qualname__", "__doc__", "__module__"), updated=())
