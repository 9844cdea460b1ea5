"""Guards: whether a function still reaches the states with which it was traced.

A compiled function is called without running its Python code, so nobody looks up `self.u` or the global
`model` any more. A guard remembers by which path each state was reached, and follows the paths again on
each call, a few C calls for a whole model. A rebound name or attribute gives other states: re-trace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter, itemgetter
from typing import Any

from .find import Step, walk
from .state import State
from .values import Token

_WALK_LIMIT = 100_000  # objects; states farther away are not guarded against rebinding


class Guard:
    """Finds given states again from given roots.

    Attributes:
      tokens: of the states, in the order in which `resolve` returns them.
    """

    __slots__ = ("_groups", "_lengths", "_loose", "tokens")

    def __init__(self, roots: Sequence[Any], states: Iterable[State]) -> None:
        wanted = {id(state): state for state in states}
        groups: dict[tuple[tuple[Step, ...], str], list[tuple[Any, State]]] = {}
        lengths: dict[tuple[Step, ...], int] = {}
        if wanted:
            for _, steps, state in walk(roots, through_globals=True, limit=_WALK_LIMIT):
                if id(state) in wanted and _reaches(roots, steps, state, lengths):
                    *prefix, (kind, key) = steps
                    groups.setdefault((tuple(prefix), kind), []).append((key, state))
                    del wanted[id(state)]
                    if not wanted:
                        break
        self._groups = [
            (_chain(prefix), _getter(kind, [key for key, _ in members]), len(members) == 1)
            for (prefix, kind), members in groups.items()
        ]
        # A container that has grown may hold states that the function would use as well.
        self._lengths = [(_chain(path), length) for path, length in lengths.items()]
        # States that no path leads to (made inside the function, kept in some registry) cannot be rebound.
        self._loose = [state._token for state in wanted.values()]
        self.tokens = [state._token for members in groups.values() for _, state in members] + self._loose

    @property
    def is_alive(self) -> bool:
        """Whether all the states still exist; a guard that lost one never resolves again."""
        return all(token.get() is not None for token in self.tokens)

    def resolve(self, roots: Sequence[Any]) -> list[State] | None:
        """The states, in the order of `tokens`; None when the paths lead elsewhere now."""
        found: list[Any] = []
        try:
            for chain, getter, is_single in self._groups:
                obj: Any = roots
                for get in chain:
                    obj = get(obj)
                if is_single:
                    found.append(getter(obj))
                else:
                    found.extend(getter(obj))
            for chain, length in self._lengths:
                obj = roots
                for get in chain:
                    obj = get(obj)
                if len(obj) != length:
                    return None
            if self._loose:
                found.extend([token.get() for token in self._loose])
            return found if [state._token for state in found] == self.tokens else None
        except Exception:  # any failure of user code on the path says the same: it leads elsewhere
            return None


def _chain(steps: Sequence[Step]) -> list[Callable[[Any], Any]]:
    """Getters for a path; neighbouring attributes become one call."""
    getters: list[Callable[[Any], Any]] = []
    names: list[str] = []
    for kind, key in steps:
        if kind == "attr":
            names.append(key)
            continue
        if names:
            getters.append(attrgetter(".".join(names)))
            names = []
        getters.append(itemgetter(key))
    if names:
        getters.append(attrgetter(".".join(names)))
    return getters


def _getter(kind: str, keys: list[Any]) -> Callable[[Any], Any]:
    return attrgetter(*keys) if kind == "attr" else itemgetter(*keys)


def _reaches(
    roots: Sequence[Any], steps: Sequence[Step], state: State, lengths: dict[tuple[Step, ...], int]
) -> bool:
    """Whether following the steps really gives the state; classes may compute their attributes."""
    obj: Any = roots
    passed: dict[tuple[Step, ...], int] = {}
    try:
        for i, step in enumerate(steps):
            if isinstance(obj, list | dict) and obj is not roots and steps[i - 1] != ("attr", "__globals__"):
                passed[tuple(steps[:i])] = len(obj)
            (get,) = _chain([step])
            obj = get(obj)
    except Exception:
        return False
    lengths.update(passed)
    return obj is state
