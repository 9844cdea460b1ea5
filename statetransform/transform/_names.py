"""Names in compiled programs: states under their own, arguments under those of the user's parameters.

JAX names the inputs of a program by the signature of the function that it compiles. So the function behind `jit` has
one parameter for each state, named like the state, and those of the user's arguments.
"""

from __future__ import annotations

import inspect
import keyword
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any


def name_inputs(fun: Callable[..., Any], names: Sequence[str], keywords: Iterable[str]) -> Callable[..., Any]:
    """Gives a function of ours the signature with these names of positional parameters, as far as they are free."""
    is_name = lambda name: name.isidentifier() and not keyword.iskeyword(name)
    keywords, parameters = tuple(keywords), []
    taken = {*keywords}
    for name in names:
        wanted = re.sub(r"\W", "_", name)
        wanted = wanted if is_name(wanted) else f"_{wanted}"
        free, number = wanted, 1
        while free in taken:
            free, number = f"{wanted}_{number}", number + 1
        taken.add(free)
        parameters.append(inspect.Parameter(free, inspect.Parameter.POSITIONAL_ONLY))
    rest = "_" * (1 + max(map(len, taken), default=0))
    parameters += [
        inspect.Parameter(rest, inspect.Parameter.VAR_POSITIONAL),
        *[inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in keywords if is_name(name)],
    ]
    if not all(map(is_name, keywords)):  # `f(**{"a-b": 1})`
        parameters.append(inspect.Parameter(f"{rest}_", inspect.Parameter.VAR_KEYWORD))
    fun.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return fun
