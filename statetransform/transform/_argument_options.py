"""Options that speak of the arguments of the user's function, one by one."""

from __future__ import annotations

import functools
from typing import Any

import jax

from .._trace.arguments import StaticArguments, positional_parameters


def check_arguments(fun: Any, static_argnums: Any, static_argnames: Any, options: dict[str, Any]) -> None:
    """Lets JAX say what is wrong with names and numbers of arguments; numbers of a method do not count `self`."""
    named = {"static_argnames": static_argnames, "donate_argnames": options.get("donate_argnames")}
    numbered = {"static_argnums": static_argnums, "donate_argnums": options.get("donate_argnums")}
    parameters = positional_parameters(fun)
    if parameters is None or parameters[:1] not in (("self",), ("cls",)):
        named |= numbered
    given = {name: value for name, value in named.items() if value is not None}
    if given and not isinstance(fun, functools.partial):
        jax.jit(fun, **given)


def entries(where: str, option: str, given: Any, static: StaticArguments, n_args: int, has_self: bool) -> list[Any]:
    """What an option says of each argument by position, None for static ones, which it does not count.

    Args:
      where, option: the transform and the option, for messages.
      given: one entry for each argument that is not static, or one for all.
      static: which are static.
      n_args: how many arguments the call has by position, without `self`.
      has_self: whether the function's first parameter is `self`.

    Raises:
      ValueError: it has more entries than there are arguments, or fewer.
    """
    positions = static.positions(n_args, has_self) if static else set()
    counted = [i for i in range(n_args) if i not in positions]
    if isinstance(given, tuple | list):
        if len(given) != len(counted):
            raise ValueError(
                f"{where}: `{option}` has {len(given)} entries, but the call has {len(counted)} arguments by position "
                "that are not static. Give one for each of them, or one for all, without a tuple around it."
            )
    elif given is None or jax.tree_util.all_leaves([given]):
        given = [given] * len(counted)
    else:
        raise ValueError(
            f"{where}: `{option}` must be a tuple with an entry for each argument, or one entry for all, not {given!r}"
        )
    said = dict(zip(counted, given, strict=True))
    return [said.get(i) for i in range(n_args)]
