"""Random object graphs, and changes of them between calls; some of their code is installed."""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from statetransform import Param, State

from .installed import install

package: Any = install()


class Part:
    scale = 2
    shared = State(jnp.float32(3), name="shared")

    def __init__(self, rng: random.Random) -> None:
        fill(self, rng)

    @property
    def doubled(self) -> Any:
        return self.order * 2

    def total(self, x: Any) -> Any:
        return x * self.order + (self.w.value if isinstance(self.w, State) else 0)

    def __call__(self, x: Any) -> Any:
        return self.total(x) + self.scale


class Other(Part):
    """Another class with the same attributes."""

    scale = 5

    def total(self, x: Any) -> Any:
        return super().total(x) - 1


class Heir(Part):
    """A class that has all of its attributes from another."""


class Slots:
    __slots__ = ("bias", "child", "items", "order", "table", "w")
    scale = 7
    doubled = 1

    def __init__(self, rng: random.Random) -> None:
        fill(self, rng)

    def total(self, x: Any) -> Any:
        return x + self.order

    def __call__(self, x: Any) -> Any:
        return self.total(x)


def with_fields(cls: type) -> type:
    """The fields of both dataclasses, of which neither can derive from the other."""
    defaults = {"w": None, "order": 1, "child": None, "items": (), "table": dataclasses.field(default_factory=dict)}
    cls.__annotations__ = dict.fromkeys(defaults, Any)
    for name, default in defaults.items():
        setattr(cls, name, default)
    return cls


@dataclasses.dataclass(eq=False)
@with_fields
class Data:
    scale = 11
    doubled = 2

    def total(self, x: Any) -> Any:
        return x - self.order

    def __call__(self, x: Any) -> Any:
        return self.total(x)


@dataclasses.dataclass(frozen=True, eq=False)
@with_fields
class Frozen:
    scale = 13
    doubled = 3

    def total(self, x: Any) -> Any:
        return x + 2 * self.order

    def __call__(self, x: Any) -> Any:
        return self.total(x) + self.scale


class Theirs(package.Module):
    """A class whose base somebody else has written."""

    scale = 17

    def __init__(self, rng: random.Random) -> None:
        super().__init__(fill, rng)

    def total(self, x: Any) -> Any:
        return super().total(x) + 1


KINDS = (Part, Part, Other, Heir, Slots, Data, Frozen, Theirs, Theirs)
PLAIN = (0, 1, 2, 3, True, 1.0, "a", "b", None, (1, 2), (1, 2.0))


def new_state(rng: random.Random) -> State:
    """A state with a small whole number, so that sums are exact in any order."""
    kind = rng.choice((State, State, Param))
    return kind(jnp.float32(rng.randrange(8)))


def fill(obj: Any, rng: random.Random) -> None:
    put(obj, "w", rng.choice((new_state(rng), new_state(rng), None)))
    put(obj, "order", rng.randrange(4))
    put(obj, "child", None)
    put(obj, "items", [])
    put(obj, "table", {})


def put(obj: Any, name: str, value: Any) -> None:
    """Sets an attribute, also of a frozen dataclass."""
    object.__setattr__(obj, name, value)


def new_part(rng: random.Random) -> Any:
    kind = rng.choice(KINDS)
    if issubclass(kind, Data | Frozen):
        part = kind()
        fill(part, rng)
        return part
    return kind(rng)


def new_graph(rng: random.Random) -> tuple[Any, list[Any]]:
    """A root, and all objects: with children, parents, aliases and cycles."""
    parts = [new_part(rng) for _ in range(rng.randrange(1, 6))]
    states = [part.w for part in parts if part.w is not None]
    for part in parts:
        put(part, "child", rng.choice([None, *parts]))
        pool = [*parts, *states, new_state(rng), rng.choice(PLAIN), rng.choice(PLAIN)]
        chosen = [rng.choice(pool) for _ in range(rng.randrange(4))]
        put(part, "items", rng.choice((list, tuple, list, _set_of))(chosen))
        put(part, "table", {rng.choice("abc"): rng.choice(pool) for _ in range(rng.randrange(3))})
    return parts[0], parts


def _set_of(chosen: list[Any]) -> set[Any]:
    return {x for x in chosen if isinstance(x, State) or not hasattr(x, "w")}


# -- changes


def change(rng: random.Random, parts: list[Any], undo: list[Callable[[], None]]) -> str:
    """Changes one thing; what it changes on a class is to be undone."""
    part = rng.choice(parts)
    what = rng.choice((
        "plain", "element", "state", "none", "swap", "alias", "grow", "shrink", "add", "delete", "class attribute",
        "child", "override", "value", "table", "nothing", "set", "method", "hide", "their global", "their dict",
        "their class",
    ))  # fmt: skip
    states = [p.w for p in parts if isinstance(p.w, State)]
    pool = [*parts, *states, new_state(rng), rng.choice(PLAIN)]
    if what == "plain":
        put(part, "order", rng.choice(PLAIN))
    elif what == "element" and isinstance(part.items, list) and part.items:
        part.items[rng.randrange(len(part.items))] = rng.choice(pool)
    elif what == "state":
        put(part, "w", new_state(rng))
    elif what == "none":
        put(part, "w", None if part.w is not None else new_state(rng))
    elif what == "swap":
        other = rng.choice(parts)
        one, two = part.w, other.w
        put(part, "w", two), put(other, "w", one)
    elif what == "alias":
        put(part, "w", rng.choice([p.w for p in parts]))
    elif what == "grow" and isinstance(part.items, list):
        part.items.append(rng.choice(pool))
    elif what == "shrink" and isinstance(part.items, list) and part.items:
        part.items.pop()
    elif what == "add":
        if not isinstance(part, Data | Frozen):
            put(part, "bias", rng.choice((new_state(rng), *PLAIN)))
    elif what == "delete" and hasattr(part, "bias"):
        object.__delattr__(part, "bias")
    elif what == "class attribute" and "scale" in vars(type(part)):
        kind, before = type(part), type(part).scale
        type.__setattr__(kind, "scale", rng.randrange(20))
        undo.append(lambda: type.__setattr__(kind, "scale", before))
    elif what == "their global":
        undo.append(functools.partial(setattr, package, "SCALE", package.SCALE))
        package.SCALE = rng.randrange(20)
    elif what == "their dict":
        undo.append(functools.partial(package.TABLE.update, a=package.TABLE["a"]))
        package.TABLE["a"] = rng.choice((1, 2, 2.0))
    elif what == "their class":
        undo.append(functools.partial(setattr, package.Module, "factor", package.Module.factor))
        package.Module.factor = rng.randrange(5)
    elif what == "hide" and "scale" not in vars(Heir):
        type.__setattr__(Heir, "scale", rng.randrange(20))
        undo.append(lambda: type.__delattr__(Heir, "scale"))
    elif what == "child":
        put(part, "child", rng.choice([None, new_part(rng), *parts]))
    elif what == "override" and hasattr(part, "__dict__"):
        put(part, "scale", rng.randrange(20))
    elif what == "value" and part.w is not None:
        part.w.value = jnp.float32(rng.randrange(8))
    elif what == "table":
        part.table[rng.choice("abc")] = rng.choice(pool)
    elif what == "set":
        put(part, "items", {new_state(rng) for _ in range(rng.randrange(3))})
    elif what == "method" and hasattr(part, "__dict__"):
        put(part, "total", lambda x: x * 13)
    else:
        return "nothing"
    return what
