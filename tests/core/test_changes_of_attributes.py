"""A function under a transform sees every change of a class, a property or another attribute."""

from __future__ import annotations

import copy
import dataclasses
import types
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import pytest

from statetransform import State, transform

from .changes import WAYS, Base, Scene, Scenes, assert_seen, put

SCENES = Scenes()


@SCENES.scene
def a_property_with_a_setter() -> Scene:
    class Model(Base):
        @property
        def k(self) -> Any:
            return self._k

        @k.setter
        def k(self, value: Any) -> None:
            self._k = value

    return lambda: Model(_k=2), lambda m: m.u.value * m.k, [put("k", 5), put("_k", 7)]


@SCENES.scene
def a_property_under_two_names() -> Scene:
    class Model(Base):
        @property
        def k(self) -> Any:
            return self._k

        also = k

    return lambda: Model(_k=2), lambda m: m.u.value * m.k * m.also, [put("_k", 7)]


@SCENES.scene
def getattr_that_delegates() -> Scene:
    class Model(Base):
        def __getattr__(self, name: str) -> Any:
            if name == "inner" or name.startswith("__"):
                raise AttributeError(name)
            return getattr(self.inner, name)

    make = lambda: Model(inner=types.SimpleNamespace(k=3))
    changes = [lambda m: setattr(m.inner, "k", 5), put("inner", types.SimpleNamespace(k=9)), put("k", 7)]
    return make, lambda m: m.u.value * m.k, changes


@SCENES.scene
def getattribute_of_its_own() -> Scene:
    class Model(Base):
        def __getattribute__(self, name: str) -> Any:
            return object.__getattribute__(self, "_order" if name == "order" else name)

    return lambda: Model(_order=3), lambda m: m.u.value * m.order, [put("_order", 5)]


@SCENES.scene
def getattr_for_an_empty_slot() -> Scene:
    class Model:
        __slots__ = ("k", "u")

        def __init__(self) -> None:
            self.u = State(jnp.float32(1))

        def __getattr__(self, name: str) -> Any:
            if name == "k":
                return 5
            raise AttributeError(name)

    return Model, lambda m: m.u.value * m.k, [put("k", 8)]


@SCENES.scene
def a_class_attribute_hidden_by_one_of_a_subclass() -> Scene:
    class Parent(Base):
        k = 3

    class Child(Parent):
        @classmethod
        def read(cls) -> Any:
            return cls.k

    return Child, lambda m: m.u.value * type(m).k * m.read(), [lambda m: setattr(Child, "k", 9)]


@SCENES.scene
def a_method_that_super_finds_first_elsewhere() -> Scene:
    class Grandparent(Base):
        def order(self) -> Any:
            return 3

    class Parent(Grandparent):
        pass

    class Child(Parent):
        def order(self) -> Any:
            return super().order() + 1

    change = lambda m: setattr(Parent, "order", lambda self: 17)
    return Child, lambda m: m.u.value * m.order(), [change, put("order", lambda: 23)]


@SCENES.scene
def static_methods_class_methods_and_properties_replaced() -> Scene:
    class Model(Base):
        @staticmethod
        def one() -> Any:
            return 2

        @classmethod
        def two(cls) -> Any:
            return 3

        @property
        def three(self) -> Any:
            return 5

    changes: list[Callable[[Any], None]] = [
        lambda m: setattr(Model, "one", staticmethod(lambda: 7)),
        lambda m: setattr(Model, "two", classmethod(lambda cls: 11)),
        lambda m: setattr(Model, "three", property(lambda self: 13)),
    ]
    return Model, lambda m: m.u.value * m.one() * m.two() * m.three, changes


@SCENES.scene
def copies_made_in_the_body() -> Scene:
    return lambda: Base(k=3), lambda m: m.u.value * copy.copy(m).k, [put("k", 5)]


@dataclasses.dataclass(slots=True)
class Slots:
    """A dataclass without `__dict__`."""

    u: State = dataclasses.field(default_factory=lambda: State(jnp.float32(1)))
    k: int = 3
    items: list[int] = dataclasses.field(default_factory=list)


@SCENES.scene
def a_dataclass_with_slots() -> Scene:
    read = lambda m: m.u.value * m.k + sum(m.items) + 100 * dataclasses.replace(m, items=[]).k
    return Slots, read, [put("k", 9), lambda m: m.items.append(3), put("u", State(jnp.float32(4)))]


@SCENES.scene
def another_class_for_the_same_object() -> Scene:
    class One(Base):
        k = 1

    class Two(One):
        k = 5

    return One, lambda m: m.u.value * m.k, [put("__class__", Two)]


@pytest.mark.filterwarnings("ignore::statetransform.RetraceWarning")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", SCENES)
def test_a_change_is_seen(name: str, way: str) -> None:
    assert_seen(SCENES[name](), way)


def test_an_empty_slot_makes_no_new_trace() -> None:
    make, read, _ = getattr_for_an_empty_slot()
    jitted: Any = transform.jit(read)
    runs = []
    for _ in range(3):
        jitted(make())
        runs.append(len(jitted.history))
    assert runs == [1, 1, 1]


def test_a_property_looked_up_in_a_nested_function_makes_not_all_attributes_count() -> None:
    class Layer(Base):
        @property
        def k(self) -> Any:
            return 2

    inner = transform.checkpoint(lambda layer: layer.u.value * layer.k)
    runs = [0]

    def outer(layer: Any) -> Any:
        runs[0] += 1
        return inner(layer)

    jitted: Any = transform.jit(outer)
    layer: Any = Layer()
    inner(layer)
    for name in ("a", "b", "c"):
        layer.unread = name
        jitted(layer)
    assert runs == [1]
