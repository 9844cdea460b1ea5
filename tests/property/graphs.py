"""Random object graphs, and changes of them between calls."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from statetransform import Param, State


class Part:
    scale = 2
    shared = State(jnp.float32(3), name="shared")

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


class Simple:
    __slots__ = ()
    doubled = 1

    def total(self, x: Any) -> Any:
        return x + self.order

    def __call__(self, x: Any) -> Any:
        return self.total(x)


class Slots(Simple):
    __slots__ = ("bias", "child", "items", "order", "table", "w")
    scale = 7


@dataclasses.dataclass(eq=False)
class Data(Simple):
    w: Any = None
    order: Any = 1
    child: Any = None
    items: Any = ()
    table: Any = None
    scale = 11


KINDS = (Part, Part, Other, Heir, Slots, Data)
PLAIN = (0, 1, 2, 3, True, 1.0, "a", "b", None, (1, 2), (1, 2.0))


def new_state(rng: random.Random) -> State:
    """A state with a small whole number, so that sums are exact in any order."""
    kind = rng.choice((State, State, Param))
    return kind(jnp.float32(rng.randrange(8)))


def new_part(rng: random.Random) -> Any:
    part: Any = object.__new__(rng.choice(KINDS))
    part.w, part.order = rng.choice((new_state(rng), new_state(rng), None)), rng.randrange(4)
    part.child, part.items, part.table = None, [], {}
    return part


def states_of(parts: list[Any]) -> list[State]:
    return [part.w for part in parts if isinstance(part.w, State)]


def anything(rng: random.Random, parts: list[Any]) -> Any:
    return rng.choice([*parts, *states_of(parts), new_state(rng), rng.choice(PLAIN), rng.choice(PLAIN)])


def set_of(chosen: list[Any]) -> set[Any]:
    return {x for x in chosen if isinstance(x, State) or not hasattr(x, "w")}


def new_graph(rng: random.Random) -> tuple[Any, list[Any]]:
    """A root, and all objects: with children, parents, aliases and cycles."""
    parts = [new_part(rng) for _ in range(rng.randrange(1, 6))]
    for part in parts:
        part.child = rng.choice([None, *parts])
        part.items = rng.choice((list, tuple, list, set_of))([anything(rng, parts) for _ in range(rng.randrange(4))])
        part.table = {rng.choice("abc"): anything(rng, parts) for _ in range(rng.randrange(3))}
    return parts[0], parts


# -- changes: each takes a random number generator, an object, all objects, and what is to be undone afterwards

Undo = list[Callable[[], None]]


def swap(rng: random.Random, part: Any, parts: list[Any], _: Undo) -> None:
    other = rng.choice(parts)
    part.w, other.w = other.w, part.w


def items(rng: random.Random, part: Any, parts: list[Any], _: Undo) -> None:
    """Another element, one more, or one less."""
    if isinstance(part.items, list):
        at, some = rng.randrange(len(part.items) + 1), rng.randrange(2)
        part.items[at : at + 1] = [anything(rng, parts) for _ in range(some)]


def class_attribute(rng: random.Random, part: Any, _: list[Any], undo: Undo) -> None:
    """Of its class, which may so far have it from another."""
    kind = type(part)
    before, was_own = kind.scale, "scale" in vars(kind)
    kind.scale = rng.randrange(20)
    undo.append(lambda: setattr(kind, "scale", before) if was_own else delattr(kind, "scale"))


def value(rng: random.Random, part: Any, *_: Any) -> None:
    if isinstance(part.w, State):
        part.w.value = jnp.float32(rng.randrange(8))


def delete(_: random.Random, part: Any, *__: Any) -> None:
    if hasattr(part, "bias"):
        del part.bias


def override(rng: random.Random, part: Any, *_: Any) -> None:
    """What so far came from the class."""
    if hasattr(part, "__dict__"):
        name, new = rng.choice((("scale", rng.randrange(20)), ("total", lambda x: x * 13)))
        setattr(part, name, new)


CHANGES: dict[str, Callable[[random.Random, Any, list[Any], Undo], None]] = {
    "nothing": lambda *_: None,
    "plain": lambda rng, part, *_: setattr(part, "order", rng.choice(PLAIN)),
    "state": lambda rng, part, *_: setattr(part, "w", new_state(rng)),
    "none": lambda rng, part, *_: setattr(part, "w", new_state(rng) if part.w is None else None),
    "swap": swap,
    "alias": lambda rng, part, parts, _: setattr(part, "w", rng.choice([p.w for p in parts])),
    "items": items,
    "set": lambda rng, part, *_: setattr(part, "items", {new_state(rng) for _ in range(rng.randrange(3))}),
    "table": lambda rng, part, parts, _: part.table.update({rng.choice("abc"): anything(rng, parts)}),
    "add": lambda rng, part, *_: setattr(part, "bias", rng.choice((new_state(rng), *PLAIN))),
    "delete": delete,
    "class attribute": class_attribute,
    "child": lambda rng, part, parts, _: setattr(part, "child", rng.choice([None, new_part(rng), *parts])),
    "override": override,
    "value": value,
}


def change(rng: random.Random, parts: list[Any], undo: Undo) -> str:
    """Changes one thing; what it changes on a class is to be undone."""
    name = rng.choice(list(CHANGES))
    CHANGES[name](rng, rng.choice(parts), parts, undo)
    return name
