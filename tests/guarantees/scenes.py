"""A function under a transform sees each change of the attributes, names, items, values and states that it uses.

A scene is what makes an object, what reads it, and what changes it. After each change, two objects are read: one
without a transform, the other under one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import pytest

from statetransform import State, transform

Scene = tuple[Callable[[], Any], Callable[[Any], Any], list[Callable[[Any], Any]]]
WAYS = ("argument", "closure", "checkpoint")


class Scenes(dict[str, Callable[[], Scene]]):
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
    return State(jnp.float32(value))


def put(name: str, value: Any) -> Callable[[Any], None]:
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


def follows(read: Callable[..., Any], changes: list[Callable[[], Any]]) -> None:
    """Each change of what a function of a number uses is seen."""
    ours = {"jit": transform.jit(read), "checkpoint": transform.checkpoint(read)}
    ours["for_loop"] = lambda x: transform.for_loop(lambda: read(x), length=1)[0]
    for change in [lambda: None, *changes]:
        change()
        for name, f in ours.items():
            for _ in range(4):
                assert float(f(3.0)) == float(read(3.0)), name


ignore_retraces = pytest.mark.filterwarnings("ignore::statetransform.RetraceWarning")


def checks_of(scenes: Scenes) -> tuple[Callable[..., None], Callable[..., None]]:
    """What a module assigns to names that start with `test`."""

    @ignore_retraces
    @pytest.mark.parametrize("way", WAYS)
    @pytest.mark.parametrize("name", scenes)
    def test_a_change_is_seen(name: str, way: str) -> None:
        assert_seen(scenes[name](), way)

    @ignore_retraces
    @pytest.mark.parametrize("name", scenes)
    def test_a_change_is_seen_by_a_call_whose_walk_over_the_object_is_written_down(name: str) -> None:
        for i in range(len(scenes[name]()[2])):
            make, read, changes = scenes[name]()
            one, two = make(), make()
            jitted: Any = transform.jit(read)
            for change in changes[:i]:
                change(one), change(two)
            for _ in range(101):
                assert float(jitted(two)) == float(read(one))
                if is_written := jitted._store.programs[0].way_in is not None:
                    break
            assert is_written or name != "layers of cells"
            changes[i](one), changes[i](two)
            for _ in range(2):
                assert float(jitted(two)) == float(read(one)), i

    return test_a_change_is_seen, test_a_change_is_seen_by_a_call_whose_walk_over_the_object_is_written_down
