"""Guards: whether a function still reaches the states with which it was traced.

A compiled function is called without running its Python code, so nobody looks up `self.u` or the global
`model` any more. A guard remembers by which path each state was reached, and follows the paths again on
each call. A rebound name or attribute, or a container that has grown, gives other states: re-trace. Names
that the function itself imports when it runs are not followed.

This is on the hot path, so a guard writes the walk down as one Python function, as `dataclasses` does for
`__init__`: attribute look-ups in straight-line code cost a few nanoseconds each, composed getters of
`operator` about twice that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Any

from .find import Step, walk
from .state import State
from .values import Token

_UNROLLED = 16  # states that are compared one by one; more in one list comparison
_SHORT_WALK = 200  # the same for containers that are empty, but may get states
_WALK_LIMIT = 100_000  # objects; states farther away are not guarded against rebinding


class Guard:
    """Finds given states again from given roots.

    Args:
      roots: where the paths start: a function, and the objects among its arguments.
      states: the states to find.

    Attributes:
      tokens: of the states, in the order in which `resolve` returns them.
      find: `find(roots)` gives what stands where the states stood, in that order; None or any exception
        when the paths have gone.
    """

    __slots__ = ("_aliases", "_lengths", "_loose", "_paths", "find", "tokens")

    def __init__(self, roots: Sequence[Any], states: Iterable[State]) -> None:
        wanted = {id(state): state for state in states}
        paths: dict[tuple[Step, ...], State] = {}
        lengths: dict[tuple[Step, ...], int] = {}
        if wanted:
            for _, steps, state in walk(roots, through_globals=True, limit=_WALK_LIMIT):
                if id(state) in wanted and _reaches(roots, steps, state, lengths):
                    paths[steps] = wanted.pop(id(state))
                    if not wanted:
                        break
        # What lies a little farther on: containers that may get states, and other ways to the same things.
        empty: list[tuple[Step, ...]] = []
        aliases: list[tuple[tuple[Step, ...], tuple[Step, ...]]] = []
        deque(walk(roots, through_globals=True, limit=_SHORT_WALK, empty=empty, aliases=aliases), maxlen=0)
        lengths.update({path: 0 for path in empty if _leads_to_nothing(roots, path)})
        self._aliases = [
            (other, first)
            for other, first in aliases
            if other[: len(first)] != first  # a pointer back to where one came from tells nothing new
            and any(path[: len(first)] == first for path in paths)
            and _follow(roots, other) is _follow(roots, first)
        ]
        # States that no path leads to (made inside the function, kept in a registry) cannot be rebound.
        loose = list(wanted.values())
        self._paths = {steps: state._token for steps, state in paths.items()}
        self._loose = [state._token for state in loose]
        self._lengths = lengths
        writer = _Writer(self._lengths, self._aliases)
        self.tokens: list[Token[State]] = writer.walk(self._paths, self._loose)
        self.find: Callable[[Sequence[Any]], Any] = writer.compile("roots", f"return [{', '.join(writer.items)}]")

    def values_finder(self, states: Sequence[State], passed: Sequence[int]) -> Callable[[Any, Any], list[Any] | None]:
        """`finder(fun, obj)` gives the values of some of the states; None when others are found than these.

        Unlike the guard it holds the states. Its roots are the function and, for a method, the instance.

        Args:
          states: those found now.
          passed: the positions of those whose values are wanted.
        """
        writer = _Writer(self._lengths, self._aliases, {("item", 0): "fun", ("item", 1): "obj"})
        writer.walk(self._paths, self._loose)
        if len(states) <= _UNROLLED and not any(item.startswith("*") for item in writer.items):
            names = [f"s{i}" for i in range(len(states))]
            lines = [f"{name} = {item}" for name, item in zip(names, writer.items, strict=True)]
            tests = [f"{name} is not {writer.constant(s)}" for name, s in zip(names, states, strict=True)]
            if tests:
                lines.append(f"if {' or '.join(tests)}: return None")
            wanted = [f"{names[i]}._value" for i in passed]
            return writer.compile("fun, obj", *lines, f"return [{', '.join(wanted)}]")
        lines = [
            f"states = [{', '.join(writer.items)}]",
            f"if states != {writer.constant(list(states))}: return None",
        ]
        if list(passed) != list(range(len(states))):
            lines.append(f"states = {writer.constant(itemgetter(*passed, 0))}(states)[:-1]")
        return writer.compile("fun, obj", *lines, "return [state._value for state in states]")

    @property
    def is_alive(self) -> bool:
        """Whether all the states still exist; a guard that lost one never resolves again."""
        return all(token.get() is not None for token in self.tokens)

    def resolve(self, roots: Sequence[Any]) -> list[State] | None:
        """The states, in the order of `tokens`; None when the paths lead elsewhere now."""
        try:
            found = self.find(roots)
            return found if [state._token for state in found] == self.tokens else None
        except Exception:  # whatever fails on the path, in user code too, says the same: it leads elsewhere
            return None


class _Writer:
    """Writes the source of a function that follows paths.

    Args:
      lengths: of the containers at some paths, which must stay.
      aliases: pairs of paths that must lead to the same object.
      roots: names of roots that are not looked up in `roots`.
    """

    def __init__(
        self,
        lengths: dict[tuple[Step, ...], int],
        aliases: list[tuple[tuple[Step, ...], tuple[Step, ...]]],
        roots: dict[Step, str] | None = None,
    ) -> None:
        self._lengths = lengths
        self._aliases = aliases
        self._roots = roots or {}
        self._names: dict[str, Any] = {}
        self._lines: list[str] = []
        self._found: list[Any] = []
        self.items: list[str] = []

    def walk(self, paths: dict[tuple[Step, ...], Any], loose: list[Any]) -> list[Any]:
        """Writes the walk; `items` are the expressions for what it finds. Gives the tokens in that order."""
        tree: dict[Step, Any] = {}
        for steps in self._lengths:  # containers without states are visited as well
            node = tree
            for step in steps:
                node = node.setdefault(step, {})
        for steps, token in paths.items():
            node = tree
            for step in steps[:-1]:
                node = node.setdefault(step, {})
            node[steps[-1]] = token
        self._emit(tree, "roots", ())
        self._lines += [f"if {self._path(a)} is not {self._path(b)}: return None" for a, b in self._aliases]
        self.items += [f"{self.constant(token)}.get()" for token in loose]
        return [*self._found, *loose]

    def compile(self, parameters: str, *lines: str) -> Callable[..., Any]:
        """The function: the walk, and what follows it."""
        body = "\n ".join([*self._lines, *lines])
        exec(compile(f"def find({parameters}):\n {body}\n", "<guard>", "exec"), self._names)
        return self._names.pop("find")

    def _emit(self, node: Any, expression: str, path: tuple[Step, ...]) -> None:
        """Appends what evaluates one node of the tree of paths: a state, or a container of nodes."""
        if not isinstance(node, dict):
            self.items.append(expression)
            self._found.append(node)
            return
        name = expression
        if path:
            name = expression if expression.isidentifier() else f"v{len(self._lines)}"
            if name != expression:
                self._lines.append(f"{name} = {expression}")
        length = self._lengths.get(path)
        if length is not None:
            self._lines.append(f"if len({name}) != {length}: return None")
        if (
            length
            and list(node) == [("item", i) for i in range(length)]
            and (not any(isinstance(child, dict) for child in node.values()))
        ):
            self.items.append(f"*{name}")
            self._found.extend(node.values())
            return
        for step, child in node.items():
            self._emit(child, self._after(name, path, step), (*path, step))

    def _after(self, expression: str, path: tuple[Step, ...], step: Step) -> str:
        """The expression for one more step."""
        if not path and step in self._roots:
            return self._roots[step]
        kind, key = step
        if kind == "attr":
            plain = isinstance(key, str) and key.isidentifier()
            return f"{expression}.{key}" if plain else f"getattr({expression}, {self.constant(key)})"
        return f"{expression}[{key}]" if type(key) is int else f"{expression}[{self.constant(key)}]"

    def _path(self, path: tuple[Step, ...]) -> str:
        """The expression for a whole path."""
        expression = "roots"
        for i, step in enumerate(path):
            expression = self._after(expression, path[:i], step)
        return expression

    def constant(self, value: Any) -> str:
        """A name for an object in the function."""
        name = f"c{len(self._names)}"
        self._names[name] = value
        return name


def _leads_to_nothing(roots: Sequence[Any], path: Sequence[Step]) -> bool:
    """Whether a path really leads to an empty container."""
    found = _follow(roots, path)
    return isinstance(found, list | dict) and not found


def _follow(roots: Sequence[Any], path: Sequence[Step]) -> Any:
    """What a path leads to; something new for each path that leads nowhere."""
    obj: Any = roots
    try:
        for kind, key in path:
            obj = getattr(obj, key) if kind == "attr" else obj[key]
    except Exception:
        return object()
    return obj


def _reaches(roots: Sequence[Any], steps: Sequence[Step], state: State, lengths: dict[tuple[Step, ...], int]) -> bool:
    """Whether following the steps really gives the state; classes may compute their attributes.

    Notes the lengths of the containers on the way, but not of a function's globals.
    """
    obj: Any = roots
    passed: dict[tuple[Step, ...], int] = {}
    try:
        for i, (kind, key) in enumerate(steps):
            if i and isinstance(obj, list | dict) and steps[i - 1] != ("attr", "__globals__"):
                passed[tuple(steps[:i])] = len(obj)
            obj = getattr(obj, key) if kind == "attr" else obj[key]
    except Exception:
        return False
    if obj is state:
        lengths.update(passed)
    return obj is state
