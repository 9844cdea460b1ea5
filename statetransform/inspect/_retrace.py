"""`explain_retrace`: why a transformed function was traced again."""

from __future__ import annotations

import itertools
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax

from .._base.table import Records, Table
from .._jax import type_text
from .._memory.programs.sources import Source
from .._traces.arguments import Static, is_hidden, named_arguments
from .._traces.functional import Functionalized
from .._traces.log import LogEntry
from .._traces.wrapper import Bound, Transformed

_ABSENT = "not there"
_SHOWN = 10  # rows of the table for one trace
_LONG = 60  # the most characters of a cell
_WEAK = " (weak)"


class Change(NamedTuple):
    """One thing that was new in a trace.

    Attributes:
      what: "argument", "static argument", "object", "structure", "state", "static state", "constant", "setting" or
          "trace".
      name: of the argument, state or setting; for "structure" the path to what is another, as in `self.order`.
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


class Retraces(Records[Retrace]):
    """The traces of one function, oldest first; prints as a table.

    Example:
      >>> from statetransform import inspect, transform
      >>> f = transform.jit(lambda x: x + 1)
      >>> [len(inspect.explain_retrace(f)) for x in (1.0, 2.0, 3) if f(x)]
      [1, 1, 2]
    """

    def __init__(self, name: str, traces: Sequence[Retrace]) -> None:
        super().__init__(traces)
        self.name: str = name

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

    @property
    def notes(self) -> tuple[str, ...]:
        """How to avoid traces that are not necessary."""
        found = [_advice(change) for trace in self for change in trace.changes]
        return tuple(dict.fromkeys(note for note in found if note))

    def table(self) -> Table:
        """A row per change; those that say the same of several leaves are one row."""
        title = f"{self.name} was traced {len(self)} time{'' if len(self) == 1 else 's'}"
        rows = []
        for trace in self:
            changes = _folded(trace.changes)
            for i, change in enumerate(changes[:_SHOWN]):
                head = [str(trace.number), Source(*trace.site, "").short] if i == 0 else ["", ""]
                rows.append([*head, change.what, change.name, _clipped(change.before), _clipped(change.after)])
            if len(changes) > _SHOWN:
                rows.append(["", "", "", f"{len(changes) - _SHOWN} more; `to_dicts()` has all", "", ""])
        return Table(title, [">trace", "called at", "what", "name", "before", "now"], rows, self.notes)


def explain_retrace(wrapped: Callable[..., Any]) -> Retraces:
    """Why a function under a transform was traced again: for each trace, what was new, from what to what.

    A function that is traced at every call is never fast. A new trace is made
    when an argument's shape, dtype or structure is new, a static argument or static state has a new value, a state has
    a new type, something that your code used has changed, or JAX's configuration has. Each trace is compared with the
    earlier one from which it differs least. Wrappers of one function with the same options share their traces.

    Args:
      wrapped: what `transform.jit`, `transform.checkpoint`, `transform.named_call`, `transform.functionalize` or
        another transform that stages made of a function or method.

    Returns:
      The last 200 traces since the function was first called or its cache was cleared, oldest first.

    Raises:
      TypeError: this is not such a function: `transform.grad` and `transform.vmap` run the function at every call and
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
      ...     changes = [f"{c.what} {c.name}: {c.before} -> {c.after}" for c in trace.changes]
      ...     print(trace.number, *changes, sep="; ")
      1; argument dt: not there -> float32[] (weak); state u: not there -> float32[3]
      2; argument dt: float32[] (weak) -> int32[] (weak)
      3; state u: float32[3] -> float32[5]
    """
    owner = wrapped.__func__ if isinstance(wrapped, Bound | types.MethodType) else wrapped
    if not isinstance(owner, Transformed | Functionalized) or owner.history is None:
        raise TypeError(
            f"explain_retrace takes a function under `transform.jit`, `transform.checkpoint` or another transform that "
            f"stages, not {owner!r} of type {type(owner).__name__}. A function that runs at every call, as under "
            "`transform.grad`, keeps no trace: put `transform.jit` around it. Of `jax.jit` only JAX knows the traces: "
            "set `jax.config.update('jax_explain_cache_misses', True)`."
        )
    name = getattr(owner, "__qualname__", None) or getattr(owner, "__name__", repr(owner))
    fun = getattr(owner, "__wrapped__", owner)
    fun = getattr(fun, "__func__", fun)  # the instance is among the arguments
    seen = [_seen(fun, entry) for entry in owner.history]
    found = []
    for n, new in enumerate(seen):
        options = [(_changes(old, new), i) for i, old in enumerate(seen[:n], start=1)]
        first = _changes(None, new), None
        changes, closest = min(options, key=lambda pair: (len(pair[0]), -pair[1]), default=first)
        found.append(Retrace(n + 1, new.entry.site, closest, tuple(changes)))
    return Retraces(name, found)


class _Seen(NamedTuple):
    """One trace in words: each array, static value and object; and what types do not show, containers and meshes.

    The keys are kind, name and number; the number tells states of one name apart.
    """

    entry: LogEntry
    parts: dict[tuple[str, str, int], str]
    others: dict[tuple[str, str, int], str]


def _seen(fun: Any, entry: LogEntry) -> _Seen:
    args, kwargs = entry.arguments
    given_leaves = [*named_arguments(fun, args, kwargs, is_leaf=is_hidden)]
    parts = [_shown(name, leaf) for name, leaf in given_leaves]
    given = jax.tree.structure(jax.tree.map(lambda _: 0, entry.arguments, is_leaf=is_hidden))
    others = [("argument", "containers", _containers(given))]
    others += [("argument", name, _mesh(leaf)) for name, leaf in given_leaves]
    for name, treedef, avals in entry.reads:
        leaves = jax.tree_util.tree_leaves_with_path(treedef.unflatten(avals))
        parts += [("state", name + jax.tree_util.keystr(path), _type(aval)) for path, aval in leaves]
        others += [("state", name, _mesh(aval)) for _, aval in leaves]
        others.append(("state", name, _containers(treedef)))
    parts += [("static state", name, repr(value)) for name, value in entry.statics]
    return _Seen(entry, _numbered(parts), _numbered(others))


def _numbered(rows: Iterable[tuple[str, str, str]]) -> dict[tuple[str, str, int], str]:
    found: dict[tuple[str, str, int], str] = {}
    for what, name, shown in rows:
        found[next(key for i in itertools.count() if (key := (what, name, i)) not in found)] = shown
    return found


def _changes(old: _Seen | None, new: _Seen) -> list[Change]:
    """What is new in a trace."""
    if old is None:
        return _differences({}, new.parts) or [Change("trace", "first", "", "no arguments and no states")]
    before, now = old.entry, new.entry
    constants, settings = dict(before.constants), before.settings
    another = "another value; list the state in `states=` to lift it"
    found = [
        *_differences(old.parts, new.parts),
        *[Change("constant", name, "a value", another) for name, at in now.constants if constants.get(name, at) != at],
        *([] if now.why is None else [Change("structure", *now.why)]),
        *[
            Change("setting", name, str(settings[name]), str(x))
            for name, x in now.settings.items()
            if x != settings[name]
        ],
    ]
    found = found or _differences(old.others, new.others)
    if before.own is not None and before.is_reusable and not found:
        return [Change("structure", *before.own, "function")]
    once = "for one call only: it stores a state that it makes, or uses a value of a trace around it"
    earlier = ("not found", "the trace was forgotten") if before.is_reusable else (once, "made again")
    return found or [Change("trace", "earlier", *earlier)]


def _shown(name: str, leaf: Any) -> tuple[str, str, str]:
    if isinstance(leaf, Static):
        return "static argument", name, repr(leaf.value)
    return ("object", name, "an object") if is_hidden(leaf) else ("argument", name, _type(leaf))


def _containers(treedef: Any) -> str:
    return str(treedef).removeprefix("PyTreeDef(").removesuffix(")")


def _mesh(aval: Any) -> str:
    return str(getattr(getattr(aval, "sharding", None), "mesh", "no array"))


def _type(aval: Any) -> str:
    text = type_text(aval).removeprefix("~")
    return f"{text} (weak)" if getattr(aval, "weak_type", False) else text


def _differences(old: dict[tuple[str, str, int], str], new: dict[tuple[str, str, int], str]) -> list[Change]:
    return [
        Change(*key[:2], old.get(key, _ABSENT), new.get(key, _ABSENT))
        for key in dict.fromkeys([*new, *old])
        if old.get(key) != new.get(key)
    ]


def _folded(changes: Sequence[Change]) -> list[Change]:
    """Changes that say the same of several leaves as one."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for what, name, before, after in changes:
        groups.setdefault((what, before, after), []).append(name)
    return [
        Change(what, names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else ""), before, after)
        for (what, before, after), names in groups.items()
    ]


def _clipped(text: str) -> str:
    return text if len(text) <= _LONG else f"{text[: _LONG - 20]} ... {text[-15:]}"


def _advice(change: Change) -> str | None:
    """What to do about a type that is the same but for being weak."""
    before, after = change.before.removesuffix(_WEAK), change.after.removesuffix(_WEAK)
    if before != after or change.before == change.after or change.what not in ("state", "argument"):
        return None
    return (
        f"The {change.what} `{change.name}` was a Python number, whose type is weak, in one trace, and an array in the "
        f"other: make it `jnp.{after.partition('[')[0]}(...)` in both."
    )
