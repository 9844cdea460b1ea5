"""Options: the parameters of JAX's functions, and what is said of arguments and states one by one.

A function names the parameters that it uses itself; the others are in its `**options`, which it passes on. So the
options of a newer JAX need no change here, and `inspect.signature` and the reference show them.
"""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import jax

from .._base.errors import describe
from .._base.functions import name_of
from .._base.sites import warn
from .._objects.hooks import not_recorded
from .._states.adapters import as_state
from .._states.find import selects, walk
from .._states.formatting import show_types
from .._states.state import State
from .._traces.arguments import StaticArguments, positional_parameters

F = TypeVar("F", bound=Callable[..., Any])
KEYWORD_ONLY = inspect.Parameter.KEYWORD_ONLY
VAR_KEYWORD = inspect.Parameter.VAR_KEYWORD
_WALK_LIMIT = 100_000  # objects to look through for states of a kind


def as_in(theirs: Callable[..., Any]) -> Callable[[F], F]:
    """Shows the parameters of a JAX function, too; those that ours does not name, by keyword only.

    Calls stay what they are, so this is for functions that are called often.
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

    An option with JAX's own default counts as not given; ours may have others. Binding takes a few microseconds, so
    this is for functions that decorate others.
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
                unknown = next((name for name in kwargs if name not in parameters), "")
                close = difflib.get_close_matches(unknown, parameters, n=1)
                meant = f". Did you mean `{close[0]}`?" if close else ""
                raise TypeError(f"{ours.__name__}: {error}{meant}") from None
            is_said = lambda name: name in named or given[name] is not parameters[name].default
            return ours(**{name: given[name] for name in given if is_said(name)})

        bound.__signature__ = signature  # type: ignore[attr-defined]
        return bound

    return decorate


def _named(fun: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    parameters = inspect.signature(fun).parameters
    return {name: parameter for name, parameter in parameters.items() if parameter.kind is not VAR_KEYWORD}


def _signature(parameters: Mapping[str, inspect.Parameter]) -> inspect.Signature:
    return inspect.Signature(sorted(parameters.values(), key=lambda parameter: parameter.kind))


def check_arguments(fun: Any, static_argnums: Any, static_argnames: Any, options: dict[str, Any]) -> None:
    """Lets JAX say what is wrong with names and numbers of arguments; numbers of a method do not count `self`."""
    named = {"static_argnames": static_argnames, "donate_argnames": options.get("donate_argnames")}
    numbered = {"static_argnums": static_argnums, "donate_argnums": options.get("donate_argnums")}
    parameters, _ = positional_parameters(fun)
    if parameters[:1] not in (("self",), ("cls",)):
        named |= numbered
    given = {name: value for name, value in named.items() if value is not None}
    if given and not isinstance(fun, functools.partial):
        jax.jit(fun, **given)


def entries(where: str, option: str, given: Any, static: StaticArguments, n_args: int, has_self: bool) -> list[Any]:
    """What an option says of each argument by position, None for static ones, which it does not count.

    It has one entry for each argument that is not static, or one for all.
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


class ByState:
    """An option that says something of states: a mapping from states, kinds and predicates.

    Args:
      example: an entry as one writes it, for messages.
      check: takes a key and its entry, gives the entry, and raises if that is of a wrong kind.
      nothing: the entry that asks for nothing; it is among `groups`, the distinct entries.
    """

    def __init__(
        self, where: str, option: str, given: Any, example: str, check: Callable[[Any, Any], Any], nothing: Any = None
    ) -> None:
        if not isinstance(given, Mapping | None):
            raise TypeError(
                f"{where}: `{option}` is a mapping from states, kinds or predicates, `{option}={{u: {example}}}`; "
                f"it cannot be {given!r} of type {type(given).__name__}"
            )
        self._label, self._nothing = f"{where}: `{option}`", nothing
        self._entries = [(as_state(key), check(key, entry)) for key, entry in (given or {}).items()]
        self.states = {key: entry for key, entry in self._entries if isinstance(key, State)}
        self.kinds = [(selects(key), entry) for key, entry in self._entries if not isinstance(key, State)]
        self.groups = list(dict.fromkeys([nothing, *[entry for _, entry in self._entries]]))

    def of(self, state: State) -> Any:
        """What is said of a state: by its name, or else by the first kind that it is of; of a setting, nothing."""
        if state.static:
            return self._nothing
        if state in self.states:
            return self.states[state]
        return next((entry for is_kind, entry in self.kinds if is_kind(state)), self._nothing)

    def lists(self, state: State) -> bool:
        """Whether anything is said of a state."""
        return state in self.states or any(is_kind(state) for is_kind, _ in self.kinds)

    def found_in(self, roots: Iterable[Any], through_globals: bool = False) -> dict[State, Any]:
        """What is said of states by name, and then of those of a kind that can be reached from some objects."""
        found = dict(self.states)
        if any(entry != self._nothing for _, entry in self.kinds):
            with not_recorded():
                reached = [state for _, state in walk(roots, through_globals=through_globals, limit=_WALK_LIMIT)]
            for state in reached:
                found.setdefault(state, self.of(state))
        return found

    def warn_unmatched(self, fun: Any, used: Iterable[State]) -> None:
        """Says which kinds and predicates select none of the states that a function uses."""
        used = list(dict.fromkeys(used))
        for key, entry in self._entries:
            if not isinstance(key, State) and entry != self._nothing and not any(map(selects(key), used)):
                there = f"It uses {', '.join(map(describe, used))}" if used else "It uses no state"
                shown = getattr(key, "__name__", None) or repr(key)
                text = f"{self._label} lists {shown}, but {name_of(fun)} uses no state of this kind. {there}."
                warn(text, UserWarning)

    def grouped(self, pairs: Iterable[tuple[Any, Any]]) -> list[dict[int, Any]]:
        """Pairs of entry and value as a dict for each of `groups`, from position to value."""
        found: dict[Any, dict[int, Any]] = {entry: {} for entry in self.groups}
        for i, (entry, value) in enumerate(pairs):
            found[entry][i] = value
        return list(found.values())


def check_sharding(label: str, state: State, value: Any, sharding: Any, mesh: Any) -> None:
    """Refuses a sharding that the value of a state cannot have. JAX's message does not know the state, if there is one.

    Args:
      label: the transform and its option.
      sharding: a sharding, or a partition spec for the mesh.
    """
    try:
        whole = jax.sharding.NamedSharding(mesh, sharding) if isinstance(sharding, jax.P) else sharding
        for leaf in jax.tree.leaves(value):
            whole.shard_shape(jax.numpy.shape(leaf))
    except (ValueError, IndexError) as error:
        raise ValueError(
            f"{label} gives {describe(state)} the sharding {sharding}, but its value is {show_types(value)}. Name axes "
            f"of the mesh {dict(getattr(mesh, 'shape', {}))} that divide those of the value evenly."
        ) from error


def ungrouped(groups: Iterable[Mapping[int, Any]]) -> list[Any]:
    """The values by their positions."""
    values = {i: value for group in groups for i, value in group.items()}
    return [values[i] for i in range(len(values))]
