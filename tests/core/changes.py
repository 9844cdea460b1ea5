"""Objects that change between two calls of a function, which is to see what it would see without a transform."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from statetransform import State, transform

#: What makes an object, what reads it, and what changes it.
Scene = tuple[Callable[[], Any], Callable[[Any], Any], list[Callable[[Any], Any]]]
WAYS = ("argument", "closure", "checkpoint")


class Scenes(dict[str, Callable[[], Scene]]):
    """Scenes by their names."""

    def scene(self, make: Callable[[], Scene]) -> Callable[[], Scene]:
        """A decorator that takes a scene in."""
        self[make.__name__.strip("_").replace("_", " ")] = make
        return make


class Base:
    """An object with a state, and other attributes as they are given."""

    def __init__(self, **attributes: Any) -> None:
        self.u = State(jnp.float32(1))
        vars(self).update(attributes)


def put(name: str, value: Any) -> Callable[[Any], None]:
    """Sets an attribute."""
    return lambda obj: setattr(obj, name, value)


def assert_seen(scene: Scene, way: str) -> None:
    """Each change of an object shows in the result under a transform as in that without."""
    make, read, changes = scene
    one, two = make(), make()
    jitted, checkpointed = transform.jit(read), transform.checkpoint(read)
    ways = {
        "argument": lambda: jitted(two),
        "closure": lambda: transform.jit(lambda: read(two))(),
        "checkpoint": lambda: checkpointed(two),
    }
    for change in [lambda obj: None, *changes]:
        change(one)
        change(two)
        for _ in range(4):  # the later ones through the generated match
            assert float(ways[way]()) == float(read(one))
