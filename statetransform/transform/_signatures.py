"""Signatures from JAX's own: a transform takes what JAX's function takes, and what it adds.

A function names the parameters that it uses itself; the others are in its `**options`, which it passes on. So the
options of a newer JAX need no change here, and `inspect.signature` and the reference show them.
"""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
KEYWORD_ONLY = inspect.Parameter.KEYWORD_ONLY
VAR_KEYWORD = inspect.Parameter.VAR_KEYWORD


def as_in(theirs: Callable[..., Any]) -> Callable[[F], F]:
    """Shows the parameters of a JAX function, too; those that ours does not name, by keyword only.

    Calls stay what they are, so this is for functions that are called often.

    Args:
      theirs: the JAX function.
    """

    def decorate(ours: F) -> F:
        others = {
            name: parameter.replace(kind=KEYWORD_ONLY) if parameter.kind is not VAR_KEYWORD else parameter
            for name, parameter in inspect.signature(theirs).parameters.items()
        }
        ours.__signature__ = _signature({**others, **_named(ours)})  # type: ignore[attr-defined]
        return ours

    return decorate


def bound_as_in(theirs: Callable[..., Any]) -> Callable[[Callable[..., Any]], Any]:
    """Lets a function be called as a JAX function is, by position too; it gets by keyword what was given.

    An option with JAX's own default counts as not given. Binding takes a few microseconds, so this is for functions
    that decorate others.

    Args:
      theirs: the JAX function. Ours may have other defaults.
    """

    def decorate(ours: Callable[..., Any]) -> Any:
        named, parameters = _named(ours), dict(inspect.signature(theirs).parameters)
        for name, parameter in named.items():
            known = parameters.get(name)
            parameters[name] = parameter if known is None else known.replace(default=parameter.default)
        signature = _signature(parameters)

        @functools.wraps(ours)
        def bound(*args: Any, **kwargs: Any) -> Any:
            try:
                given = signature.bind(*args, **kwargs).arguments
            except TypeError as error:
                raise TypeError(f"{ours.__name__}: {error}{_meant(kwargs, parameters)}") from None
            is_said = lambda name: name in named or given[name] is not parameters[name].default
            return ours(**{name: given[name] for name in given if is_said(name)})

        bound.__signature__ = signature  # type: ignore[attr-defined]
        return bound

    return decorate


def _meant(given: Mapping[str, Any], parameters: Mapping[str, inspect.Parameter]) -> str:
    """The option that a misspelt one is closest to, as a question."""
    unknown = next((name for name in given if name not in parameters), None)
    close = difflib.get_close_matches(unknown, parameters, n=1) if unknown is not None else []
    return f". Did you mean `{close[0]}`?" if close else ""


def _named(fun: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    parameters = inspect.signature(fun).parameters
    return {name: parameter for name, parameter in parameters.items() if parameter.kind is not VAR_KEYWORD}


def _signature(parameters: Mapping[str, inspect.Parameter]) -> inspect.Signature:
    return inspect.Signature(sorted(parameters.values(), key=lambda parameter: parameter.kind))
