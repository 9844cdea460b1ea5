"""`explain_retrace`: why a transformed function was traced again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from .._core.arguments import Ref, Static
from .._core.errors import show_site
from .._core.functional import Functionalized
from .._core.jaxcompat import type_text
from .._core.lift import Direct
from .._core.log import Traced
from .._core.wrapper import Bound, Transformed
from ._table import Report, Table
from ._view import named_arguments

_ABSENT = "not there"
_UNKNOWN = (
    "the way to a state leads elsewhere now: a name or attribute was bound anew, a container has grown, or the "
    "trace was forgotten"
)


class Change(NamedTuple):
    """One thing that was new in a trace.

    Attributes:
        what: "argument", "static argument", "object", "state", "static state", "constant", "setting" or "trace".
        name: of the argument, state or setting.
        before: what it was in the earlier trace that is closest.
        after: what it is in this one.
    """

    what: str
    name: str
    before: str
    after: str


class Retrace(NamedTuple):
    """One trace of a function.

    Attributes:
        number: 1 for the first one.
        site: file and line of the call that traced.
        compared_to: the number of the earlier trace that is closest, None for the first one.
        changes: what was new since that one; for the first trace, what it was made for.
    """

    number: int
    site: tuple[str, int]
    compared_to: int | None
    changes: tuple[Change, ...]


class Retraces(Report, Sequence[Retrace]):
    """The traces of one function, oldest first; prints as a table.

    Example:
      >>> from statetransform import inspect, transform
      >>> f = transform.jit(lambda x: x + 1)
      >>> [len(inspect.explain_retrace(f)) for x in (1.0, 2.0, 3) if f(x)]
      [1, 1, 2]
    """

    def __init__(self, name: str, traces: Sequence[Retrace]) -> None:
        self.name: str = name
        self._traces = tuple(traces)

    def __getitem__(self, index: Any) -> Any:
        return self._traces[index]

    def __len__(self) -> int:
        return len(self._traces)

    def to_dicts(self) -> list[dict[str, Any]]:
        """One dict per change."""
        return [
            {
                "trace": trace.number,
                "file": trace.site[0],
                "line": trace.site[1],
                "compared_to": trace.compared_to,
                **change._asdict(),
            }
            for trace in self
            for change in trace.changes
        ]

    def table(self) -> Table:
        """A row per change."""
        title = f"{self.name} was traced {len(self)} time{'' if len(self) == 1 else 's'}"
        rows = []
        for trace in self:
            for i, change in enumerate(trace.changes):
                head = [str(trace.number), show_site(trace.site)] if i == 0 else ["", ""]
                rows.append([*head, change.what, change.name, change.before, change.after])
        return Table(title, [">trace", "called at", "what", "name", "before", "now"], rows)


def explain_retrace(wrapped: Callable[..., Any]) -> Retraces:
    """Why a function under a transform was traced again: for each trace, what was new, from what to what.

    Tracing makes the first call slow, and a function that is traced at every call never gets fast. A new trace is made
    when an argument's shape, dtype or structure is new, a static argument or static state has a new value, a state has
    a new type or another state stands in its place, or JAX's configuration has changed. Each trace is compared with the
    earlier one from which it differs least. Wrappers of one function with the same options share their traces.

    Args:
      wrapped: what `transform.jit`, `transform.checkpoint`, `transform.named_call`, `transform.functionalize` or
        another transform that stages made of a function or method.

    Returns:
      The last 200 traces since the function was first called or its cache was cleared, oldest first.

    Raises:
      TypeError: this is no such function: `transform.grad` and `transform.vmap` run the function at every call and
        keep no trace (put `transform.jit` around them), and of `jax.jit` only JAX knows
        (set `jax_explain_cache_misses`).

    References:
      https://docs.jax.dev/en/latest/jit-compilation.html#jit-and-caching

    Example:
      >>> from statetransform import State, inspect, transform
      >>> import jax.numpy as jnp
      >>> u = State(jnp.zeros(3), name="u")
      >>> @transform.jit
      ... def step(dt):
      ...     u.value = u.value + dt
      >>> step(0.5); step(1)
      >>> u.value = jnp.zeros(5)
      >>> step(0.5)
      >>> for trace in inspect.explain_retrace(step):
      ...     print(trace.number, *[f"{c.what} {c.name}: {c.before} -> {c.after}" for c in trace.changes], sep="; ")
      1; argument dt: not there -> float32[] (weak); state u: not there -> float32[3]
      2; argument dt: float32[] (weak) -> int32[] (weak)
      3; state u: float32[3] -> float32[5]
    """
    owner = wrapped.__func__ if isinstance(wrapped, Bound) else wrapped
    name = getattr(owner, "__qualname__", None) or getattr(owner, "__name__", repr(owner))
    earlier: list[_Seen] = []
    found = []
    for number, traced in enumerate(_log_of(owner), start=1):
        new = _seen(owner, traced)
        options = [(_changes(old, new), i) for i, old in enumerate(earlier, start=1)]
        changes, closest = min(
            options,
            key=lambda pair: (len(pair[0]), -pair[1]),
            default=(_changes(_nothing(new), new, is_first=True), None),
        )
        found.append(Retrace(number, traced.site, closest, tuple(changes)))
        earlier.append(new)
    return Retraces(name, found)


def _log_of(owner: Any) -> Any:
    for holder in ("_cache", "_store"):
        log = getattr(getattr(owner, holder, None), "log", None)
        if isinstance(owner, Transformed | Functionalized) and log is not None:
            return log
    if isinstance(owner, Direct):
        raise TypeError(
            f"explain_retrace: {owner!r} runs its function at every call and keeps no trace. Put `transform.jit` "
            "around it, and ask about that."
        )
    if hasattr(owner, "lower") and hasattr(owner, "__wrapped__"):
        raise TypeError(
            f"explain_retrace: of {owner!r} only JAX knows the traces. Use `transform.jit`, or set "
            "`jax.config.update('jax_explain_cache_misses', True)`."
        )
    raise TypeError(
        f"explain_retrace takes a function under `transform.jit`, `transform.checkpoint` or another transform that "
        f"stages, not {owner!r} of type {type(owner).__name__}"
    )


class _Seen(NamedTuple):
    """One trace, ready to be compared: arguments and states with their kind, and how to show them."""

    traced: Traced
    arguments: dict[str, tuple[str, str]]
    states: dict[Any, tuple[str, str, str]]


def _seen(owner: Any, traced: Traced) -> _Seen:
    return _Seen(traced, _arguments(_function_of(owner), traced), _states(traced))


def _nothing(new: _Seen) -> _Seen:
    """What the first trace is compared with."""
    return _Seen(new.traced, {}, {})


def _changes(old: _Seen, new: _Seen, is_first: bool = False) -> list[Change]:
    """What is new in a trace."""
    found = _differences(old.arguments, new.arguments) + _different_states(old.states, new.states)
    if is_first:
        return found or [Change("trace", "first", "", "no arguments and no states")]
    was, now = dict(old.traced.constants), dict(new.traced.constants)
    found += [
        Change("constant", _called(token), "a value", "another value; list the state in `states=` to lift it")
        for token in now
        if token in was and was[token] != now[token]
    ]
    before = old.traced.settings
    for name, value in new.traced.settings.items():
        if value != before[name]:
            found.append(Change("setting", name, str(before[name]), str(value)))
    if not found and not old.traced.is_reusable:
        once = "for one call only: it stores a state that it makes, or uses a value of a trace around it"
        return [Change("trace", "earlier", once, "made again")]
    return found or [Change("trace", "earlier", "not found", _UNKNOWN)]


def _function_of(owner: Any) -> Any:
    """The function whose parameters name the arguments, with `self` among them."""
    return getattr(owner, "_fun", None) or owner.__wrapped__


def _arguments(fun: Any, traced: Traced) -> dict[str, tuple[str, str]]:
    """Each leaf, static value and object by name, with its kind and how to show it."""
    is_node = lambda node: isinstance(node, Static | Ref)
    args, kwargs = traced.arguments
    return {name: _shown(leaf) for name, leaf in named_arguments(fun, args, kwargs, is_leaf=is_node)}


def _shown(leaf: Any) -> tuple[str, str]:
    if isinstance(leaf, Static):
        return "static argument", repr(leaf.value)
    if isinstance(leaf, Ref):
        obj = leaf.value
        number = getattr(leaf.token, "serial", "")
        return "object", f"{type(obj).__name__} no. {number}" if obj is not None else f"one that is gone, no. {number}"
    return "argument", _type(leaf)


def _type(aval: Any) -> str:
    text = type_text(aval).removeprefix("~")
    return f"{text} (weak)" if getattr(aval, "weak_type", False) else text


def _differences(old: dict[str, tuple[str, str]], new: dict[str, tuple[str, str]]) -> list[Change]:
    found = []
    for name in dict.fromkeys([*new, *old]):
        if old.get(name) != new.get(name):
            what = (new.get(name) or old[name])[0]
            found.append(Change(what, name, old.get(name, ("", _ABSENT))[1], new.get(name, ("", _ABSENT))[1]))
    return found


def _states(traced: Traced) -> dict[Any, tuple[str, str, str]]:
    """By token: the kind, the name, and how to show the type or the static value."""
    found = {}
    for token, treedef, avals in traced.reads:
        shown = str(treedef.unflatten([_Text(_type(aval)) for aval in avals]))
        found[token] = ("state", _called(token), shown)
    return found | {token: ("static state", _called(token), repr(value)) for token, value in traced.statics}


class _Text(str):
    """Prints without quotes inside a container."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _called(token: Any) -> str:
    state = token.get()
    if state is None:
        return "one that is gone"
    return state.name if state.name is not None else f"{type(state).__name__} of {show_site(state._created)}"


def _different_states(old: dict[Any, tuple[str, str, str]], new: dict[Any, tuple[str, str, str]]) -> list[Change]:
    found = []
    gone = {old[token][1]: token for token in old if token not in new}
    for token, (what, name, shown) in new.items():
        if token in old:
            if old[token] != new[token]:
                found.append(Change(what, name, old[token][2], shown))
        elif name in gone:  # a state of the same name in its place
            other = gone.pop(name)
            found.append(Change(what, name, f"no. {other.serial}, {old[other][2]}", f"no. {token.serial}, {shown}"))
        else:
            found.append(Change(what, name, _ABSENT, shown))
    found += [Change(old[token][0], name, old[token][2], _ABSENT) for name, token in gone.items()]
    return found
