"""A function under a transform sees each change of what it uses: how the tests say so.

A scene is what makes an object, what reads it, and what changes it. After each change, two objects are read: one
without a transform, the other under one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from statetransform import State, transform

Scene = tuple[Callable[[], Any], Callable[[Any], Any], list[Callable[[Any], Any]]]
WAYS = ("argument", "closure", "checkpoint")


class Scenes(dict[str, Callable[[], Scene]]):
    """Scenes by their names."""

    def __call__(self, make: Callable[[], Scene]) -> Callable[[], Scene]:
        """Takes a scene in that needs classes or functions of its own."""
        self[make.__name__.replace("_", " ")] = make
        return make


class Base:
    """An object with a state, and other attributes as they are given."""

    def __init__(self, **attributes: Any) -> None:
        self.u = new(1)
        vars(self).update(attributes)


def new(value: float) -> State:
    """A state."""
    return State(jnp.float32(value))


def put(name: str, value: Any) -> Callable[[Any], None]:
    """Sets an attribute."""
    return lambda obj: setattr(obj, name, value)


def put_in(place: Any, name: str, value: Any) -> Callable[[Any], None]:
    """Sets an attribute of something else than the object."""
    return lambda obj: setattr(place, name, value)


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
        change(one), change(two)
        for _ in range(4):
            assert float(ways[way]()) == float(read(one))
