"""Guarantee 2, attributes: those of objects, classes, functions and rules, and methods."""

from __future__ import annotations

import copy
import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

import jax
import pytest

from statetransform import transform

from .scenes import Base, Scene, Scenes, checks_of, follows, ignore_retraces, new, put, put_in

scene = Scenes()


factor = 3


def put_global(name: str, value: Any) -> Callable[[Any], None]:
    return lambda obj: globals().update({name: value})


@scene
def a_property_with_a_setter_under_two_names() -> Scene:
    class Model(Base):
        @property
        def k(self) -> Any:
            return self._k

        @k.setter
        def k(self, value: Any) -> None:
            self._k = value

        also = k

    return lambda: Model(_k=2), lambda m: m.u.value * m.k * m.also, [put("k", 5), put("_k", 7)]


class OfClass:
    """A descriptor that asks the class."""

    def __get__(self, obj: Any, cls: Any = None) -> Any:
        return cls.scale


class Scaled(Base):
    """Looks into its own class by the name of that."""

    scale = 2.0

    def method(self) -> Any:
        return Scaled.scale

    @property
    def by_property(self) -> Any:
        return Scaled.scale

    @staticmethod
    def static() -> Any:
        return Scaled.scale


@scene
def a_class_by_its_name_that_was_known_as_the_class_of_an_instance() -> Scene:
    read = lambda model: model.u.value * model.method() + model.by_property * 10 + model.static() * 100
    return Scaled, read, [lambda _: setattr(Scaled, "scale", 3.0), lambda _: setattr(Scaled, "scale", 2.0)]


@scene
def class_attributes_that_a_metaclass_reads() -> Scene:
    class Meta(type):
        twice, factor = property(lambda cls: 2 * cls.scale), 3.0

        def __call__(cls, *args: Any) -> Any:
            made = super().__call__(*args)
            made.rate = cls.rate_at_first
            return made

        def total(cls) -> Any:
            return sum(cls.parts) * cls.factor

    class Model(metaclass=Meta):
        scale, rate_at_first, parts = 2.0, 1.0, [1.0]

    read = lambda m: m.u.value * Model.twice + Model().rate * 10 + Model.total() * 100  # type: ignore[attr-defined]
    changes = [put_in(Model, "scale", 3.0), put_in(Model, "rate_at_first", 2.0), put_in(Meta, "factor", 5.0)]
    return Base, read, [*changes, lambda _: Model.parts.append(4.0), put_in(Model, "parts", [7.0])]


@scene
def a_class_that_a_class_method_or_a_descriptor_gets() -> Scene:
    class Model(Base):
        scale, described = 2.0, OfClass()

        @classmethod
        def of_class(cls) -> Any:
            return cls.scale

    read = lambda model: model.u.value * model.of_class() + model.described * 10
    return Model, read, [lambda _: setattr(Model, "scale", 3.0)]


@scene
def getattr_that_delegates() -> Scene:
    class Model(Base):
        def __getattr__(self, name: str) -> Any:
            if name == "inner" or name.startswith("__"):
                raise AttributeError(name)
            return getattr(self.inner, name)

    make = lambda: Model(inner=types.SimpleNamespace(k=3))
    changes = [lambda m: setattr(m.inner, "k", 5), put("inner", types.SimpleNamespace(k=9)), put("k", 7)]
    return make, lambda m: m.u.value * m.k, changes


@scene
def getattribute_of_its_own() -> Scene:
    class Model(Base):
        def __getattribute__(self, name: str) -> Any:
            return object.__getattribute__(self, "_order" if name == "order" else name)

    return lambda: Model(_order=3), lambda m: m.u.value * m.order, [put("_order", 5)]


class EmptySlot:
    """What is not in a slot is computed."""

    __slots__ = ("k", "u")

    def __init__(self) -> None:
        self.u = new(1)

    def __getattr__(self, name: str) -> Any:
        if name == "k":
            return 5
        raise AttributeError(name)


scene.update({
    "an empty slot": lambda: (EmptySlot, lambda m: m.u.value * m.k, [put("k", 8)]),
    "a copy made in the body": lambda: (lambda: Base(k=3), lambda m: m.u.value * copy.copy(m).k, [put("k", 5)]),
})  # fmt: skip


@scene
def class_attributes_and_those_that_hide_them() -> Scene:
    class Parent(Base):
        k, shared = 3, new(2)

    class Child(Parent):
        @classmethod
        def read(cls) -> Any:
            return cls.k

    read = lambda m: m.u.value * m.k * type(m).k * m.read() * m.shared.value
    changes = [put_in(Parent, "k", 5), put_in(Parent, "shared", new(7)), put("shared", new(11)), put("k", 13)]
    return Child, read, [*changes, put_in(Child, "k", 9)]


@scene
def class_attributes_under_computed_names() -> Scene:
    key = "order_" + "2"

    class Parent(Base):
        order_2 = 2.0

    class Child(Parent):
        pass

    read = lambda m: (
        m.u.value * getattr(type(m), key) + getattr(m.__class__, key) * vars(Parent)[key] + Parent.__dict__[key]
    )
    return Child, read, [put_in(Parent, key, 5.0), put_in(Parent, key, True), put_in(Child, key, 9.0)]


@scene
def a_method_that_super_finds_first_elsewhere() -> Scene:
    class Grandparent(Base):
        def order(self) -> Any:
            return 3

    class Parent(Grandparent):
        pass

    class Child(Parent):
        def order(self) -> Any:
            return super().order() + 1

    changes = [put_in(Grandparent, "order", lambda self: 5), put_in(Parent, "order", lambda self: 17)]
    return Child, lambda m: m.u.value * m.order(), [*changes, put("order", lambda: 23)]


@scene
def methods_and_descriptors_that_are_replaced() -> Scene:
    class Model(Base):
        def times(self, k: Any) -> Any:
            return k * factor

        one = staticmethod(lambda: 2)
        two = classmethod(lambda cls: 3)
        three = property(lambda self: 5)
        twice = functools.partialmethod(times, 2)

        def __len__(self) -> int:
            return 4

    changes = [
        put_in(Model, "one", staticmethod(lambda: 7)),
        put_in(Model, "two", classmethod(lambda cls: 11)),
        put_in(Model, "three", property(lambda self: 13)),
        put_global("factor", 17),
        put_in(Model, "twice", functools.partialmethod(lambda self, k: k, 5)),
        put_in(Model, "__len__", lambda self: 6),
    ]
    return Model, lambda m: m.u.value * m.one() * m.two() * m.three * m.twice() * len(m), changes


@scene
def another_class_for_the_same_object() -> Scene:
    class One(Base):
        k = 1

    class Two(One):
        k = 5

    return One, lambda m: m.u.value * m.k, [put("__class__", Two)]


@scene
def attributes_of_functions_and_partials() -> Scene:
    def read(model: Any) -> Any:
        return model.u.value * read.scale * held.scale()  # type: ignore[attr-defined]

    held = functools.partial(lambda: held.k)
    make = lambda: (put("scale", 3)(read), put("scale", held)(held), put("k", 5)(held), Base())[-1]
    return make, read, [put_in(read, "scale", 9), put_in(held, "k", 11)]


@scene
def a_derivative_rule_of_raw_jax() -> Scene:
    held = types.SimpleNamespace(scale=3)
    rule = jax.custom_vjp(lambda x: x)
    rule.defvjp(lambda x: (x, None), lambda residuals, ct: (ct * held.scale,))
    read = lambda m: transform.grad(lambda x: rule(x) * m.u.value)(1.0)
    return lambda: (put("scale", 3)(held), Base())[1], read, [put_in(held, "scale", 9)]


@pytest.fixture(autouse=True)
def factor_as_before() -> Iterator[None]:
    yield
    globals().update(factor=3)


test_a_change_is_seen, test_a_change_is_seen_by_a_written_walk = checks_of(scene)


@ignore_retraces
@pytest.mark.parametrize("place", ["default", "closure", "container", "attribute"])
def test_what_the_function_changes_in_an_argument_counts_though_it_has_the_object_elsewhere_as_well(place: str) -> None:
    inner = Base(t=1)
    m = Base(t=1, inner=inner)
    kept = {"closure": m, "container": [m], "attribute": inner}.get(place)
    seen = m if place == "default" else None

    def count(m: Any, seen: Any = seen) -> Any:
        _ = kept, seen
        for one in (m, m.inner):
            one.t += 1
        return m.u.value * m.t * m.inner.t

    jitted = transform.jit(count)
    assert [float(jitted(m)) for _ in range(6)] == [4, 9, 16, 25, 36, 49]


WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "a function": lambda f: f,
    "jit of JAX": jax.jit,
    "lru_cache": functools.lru_cache,
    "custom_jvp": lambda f: with_rule(jax.custom_jvp(f)),
    "checkpoint": transform.checkpoint,
    "jit": transform.jit,
    "grad": transform.grad,
    "discard_writes": transform.discard_writes,
}


def with_rule(f: Any) -> Any:
    f.defjvp(lambda primals, tangents: (primals[0], tangents[0]))
    return f


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_an_attribute_of_a_wrapped_function_that_was_none_is_followed(wrapper: str) -> None:
    wrapped = WRAPPERS[wrapper](lambda x: x)
    wrapped.scale = None
    changes = [functools.partial(put("scale", k), wrapped) for k in (2, None)]
    follows(lambda x: x if wrapped.scale is None else x * wrapped.scale, changes)


def test_the_parts_of_a_property_that_were_none_are_followed() -> None:
    class Model:
        pass

    model, get = Model(), lambda self: 3.0
    kinds = [property(None), property(get), property(get, lambda self, x: None), property(None)]

    def read(x: Any) -> Any:
        x = x if Model.scale.fset is None else 7 * x  # type: ignore[attr-defined]
        try:
            return x * model.scale  # type: ignore[attr-defined]
        except AttributeError:
            return x

    Model.scale = kinds[0]  # type: ignore[attr-defined]
    follows(read, [functools.partial(put("scale", kind), Model) for kind in kinds[1:]])


def test_another_rule_that_is_no_function_is_followed() -> None:
    def rule(k: float, primals: Any, tangents: Any) -> Any:
        return primals[0], k * tangents[0]

    f = jax.custom_jvp(lambda x: x)
    f.defjvp(functools.partial(rule, 2.0))
    changes = [functools.partial(f.defjvp, functools.partial(rule, k)) for k in (3.0, 4.0)]
    follows(lambda x: jax.grad(f)(x), changes)
