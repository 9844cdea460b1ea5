"""A function under a transform sees every change that it would see without: Python's less common ways, one by one."""

from __future__ import annotations

import argparse
import array
import builtins
import collections
import configparser
import contextlib
import copy
import dataclasses
import decimal
import enum
import functools
import queue
import types
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest

from statetransform import State, transform

Scene = tuple[Callable[[], Any], Callable[[Any], Any], list[Callable[[Any], Any]]]
SCENES: dict[str, Callable[[], Scene]] = {}
factor = 3


def scene(make: Callable[[], Scene]) -> Callable[[], Scene]:
    """What makes an object, what reads it, and changes."""
    SCENES[make.__name__.strip("_").replace("_", " ")] = make
    return make


class Base:
    """An object with a state, and other attributes as they are given."""

    def __init__(self, **attributes: Any) -> None:
        self.u = State(jnp.float32(1))
        vars(self).update(attributes)


def put(name: str, value: Any) -> Callable[[Any], None]:
    """Sets an attribute."""
    return lambda obj: setattr(obj, name, value)


def put_global(value: Any) -> Callable[[Any], None]:
    """Sets a global name of this module."""
    return lambda obj: globals().update(factor=value)


@scene
def a_property_with_a_setter() -> Scene:
    class Model(Base):
        @property
        def k(self) -> Any:
            return self._k

        @k.setter
        def k(self, value: Any) -> None:
            self._k = value

    return lambda: Model(_k=2), lambda m: m.u.value * m.k, [put("k", 5), put("_k", 7)]


@scene
def a_property_under_two_names() -> Scene:
    class Model(Base):
        @property
        def k(self) -> Any:
            return self._k

        also = k

    return lambda: Model(_k=2), lambda m: m.u.value * m.k * m.also, [put("_k", 7)]


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


@scene
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


@scene
def a_metaclass_with_attributes() -> Scene:
    class Meta(type):
        scale = 4

        def __setattr__(cls, name: str, value: Any) -> None:
            raise TypeError("nothing is to be set")

    class Model(Base, metaclass=Meta):
        pass

    changes = [put("k", 5), lambda m: type.__setattr__(Meta, "scale", 6), lambda m: type.__setattr__(Model, "scale", 9)]
    return lambda: Model(k=2), lambda m: m.u.value * type(m).scale * m.k, changes


@scene
def a_class_attribute_hidden_by_one_of_a_subclass() -> Scene:
    class Parent(Base):
        k = 3

    class Child(Parent):
        @classmethod
        def read(cls) -> Any:
            return cls.k

    return Child, lambda m: m.u.value * type(m).k * m.read(), [lambda m: setattr(Child, "k", 9)]


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

    change = lambda m: setattr(Parent, "order", lambda self: 17)
    return Child, lambda m: m.u.value * m.order(), [change, put("order", lambda: 23)]


@scene
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


@scene
def partial_methods() -> Scene:
    class Model(Base):
        def times(self, k: Any) -> Any:
            return k * factor

        twice = functools.partialmethod(times, 2)

    change = lambda m: setattr(Model, "twice", functools.partialmethod(lambda self, k: k, 5))
    return Model, lambda m: m.u.value * m.twice(), [put_global(17), change]


@functools.singledispatch
def dispatched(x: Any) -> Any:
    """Reads a global name for states only."""
    return 3


@dispatched.register
def _(x: State) -> Any:
    return factor


@contextlib.contextmanager
def scope() -> Any:
    """Reads a global name, behind a decorator of the standard library."""
    yield factor


@scene
def single_dispatch() -> Scene:
    return Base, lambda m: m.u.value * dispatched(m.u), [put_global(9)]


@scene
def a_decorator_of_a_library() -> Scene:
    def read(model: Any) -> Any:
        with scope() as k:
            return model.u.value * k

    return Base, read, [put_global(9)]


@scene
def a_global_name_that_comes_later() -> Scene:
    def read(model: Any) -> Any:
        try:
            return model.u.value * later  # type: ignore[name-defined]
        except NameError:
            return model.u.value

    def make() -> Any:
        globals().pop("later", None)
        return Base()

    return make, read, [lambda m: globals().update(later=9), lambda m: globals().pop("later", None)]


@scene
def a_closure_variable_that_is_bound_later() -> Scene:
    def make() -> Any:
        def read() -> Any:
            try:
                return k
            except NameError:
                return 3

        def bind() -> None:
            nonlocal k
            k = 9

        if not builtins:
            k = 1
        return Base(read=read, bind=bind)

    return make, lambda m: m.u.value * m.read(), [lambda m: m.bind()]


@scene
def a_module_as_an_attribute() -> Scene:
    module = types.ModuleType("a_module_of_the_user")

    def make() -> Any:
        module.k = 3  # type: ignore[attr-defined]
        return Base(module=module)

    return make, lambda m: m.u.value * m.module.k, [lambda m: setattr(module, "k", 8)]


@scene
def copies_made_in_the_body() -> Scene:
    return lambda: Base(k=3), lambda m: m.u.value * copy.copy(m).k, [put("k", 5)]


@scene
def bound_methods_of_containers() -> Scene:
    make = lambda: Base(count=[3, 3].count)
    return make, lambda m: m.u.value * m.count(3), [lambda m: m.count.__self__.append(3), put("count", (3,).count)]


class Order(int):
    """A number with attributes."""

    scale = 1


def order(number: int, scale: int) -> Order:
    """One of them."""
    made = Order(number)
    made.scale = scale
    return made


@scene
def a_number_with_attributes() -> Scene:
    changes = [lambda m: setattr(m.order, "scale", 5), put("order", order(3, 7)), put("order", order(4, 7))]
    return lambda: Base(order=order(3, 2)), lambda m: m.u.value * m.order * m.order.scale, changes


class Pair(NamedTuple):
    """A state and a number."""

    u: State
    k: int


@scene
def named_tuples() -> Scene:
    changes = [put("pair", Pair(State(jnp.float32(4)), 2)), put("pair", Pair(State(jnp.float32(4)), 5))]
    return lambda: Base(pair=Pair(State(jnp.float32(1)), 3)), lambda m: m.pair.u.value * m.pair.k, changes


@dataclasses.dataclass(slots=True)
class Slots:
    """A dataclass without `__dict__`."""

    u: State = dataclasses.field(default_factory=lambda: State(jnp.float32(1)))
    k: int = 3
    items: list[int] = dataclasses.field(default_factory=list)


@scene
def a_dataclass_with_slots() -> Scene:
    read = lambda m: m.u.value * m.k + sum(m.items) + 100 * dataclasses.replace(m, items=[]).k
    return Slots, read, [put("k", 9), lambda m: m.items.append(3), put("u", State(jnp.float32(4)))]


@scene
def containers_with_settings_of_their_own() -> Scene:
    make = lambda: Base(d=collections.defaultdict(lambda: 3), q=collections.deque([1], maxlen=2))
    changes = [
        lambda m: setattr(m.d, "default_factory", lambda: 8),
        put("q", collections.deque([1], maxlen=3)),
        lambda m: m.q.append(1),
    ]
    return make, lambda m: m.u.value * m.d.default_factory() * m.q.maxlen * len(m.q), changes


@scene
def containers_of_the_standard_library() -> Scene:
    def make() -> Any:
        below = {"q": 3}
        return Base(
            below=below,
            ordered=collections.OrderedDict(a=1, b=2),
            proxy=types.MappingProxyType(below),
            user=collections.UserDict(k=3),
            chain=collections.ChainMap({"a": 1}, {"b": 2}),
        )

    def read(m: Any) -> Any:
        ordered = sum(10**i * v for i, v in enumerate(m.ordered.values()))
        return m.u.value * ordered + m.proxy["q"] * 100 + m.user["k"] * 1000 + m.chain["b"] * 10000

    changes = [
        lambda m: m.ordered.move_to_end("a"),
        lambda m: m.below.update(q=8),
        lambda m: m.user.update(k=9),
        lambda m: m.chain.update(b=7),
    ]
    return make, read, changes


@scene
def weak_containers() -> Scene:
    def make() -> Any:
        model: Any = Base(others=weakref.WeakSet())
        model.table = weakref.WeakKeyDictionary({model: 4})
        return model

    changes = [lambda m: m.table.__setitem__(m, 7), lambda m: m.others.add(m)]
    return make, lambda m: m.u.value * m.table[m] + len(m.others), changes


@scene
def buffers() -> Scene:
    def make() -> Any:
        held = array.array("i", [1, 2])
        table = np.array([(1.0, 2)], dtype=[("a", "f4"), ("b", "i4")]).view(np.recarray)
        return Base(held=held, raw=bytearray(b"ab"), view=memoryview(held), table=table, masked=np.ma.array([1.0, 2.0]))

    def read(m: Any) -> Any:
        return m.u.value * (m.held[0] + 10 * m.raw[1] + 1e4 * m.view[1] + 1e6 * m.table.a[0]) + m.masked[0]

    def through_the_view(m: Any) -> None:
        m.view[1] = 7

    changes = [
        lambda m: m.held.__setitem__(0, 5),
        lambda m: m.raw.__setitem__(1, 0),
        through_the_view,
        put("held", array.array("d", [5, 7])),
        lambda m: m.table.a.__setitem__(0, 3.0),
        lambda m: m.masked.__setitem__(0, 4.0),
    ]
    return make, read, changes


@scene
def views_of_dicts() -> Scene:
    def make() -> Any:
        held, ordered = {"a": 1}, collections.OrderedDict(b=2)
        return Base(held=held, ordered=ordered, keys=held.keys(), values=held.values(), items=ordered.items())

    def read(m: Any) -> Any:
        return m.u.value * (sum(m.values) + 100 * len(m.keys) + 1000 * sum(v for _, v in m.items))

    return make, read, [lambda m: m.held.update(a=3), lambda m: m.held.update(b=4), lambda m: m.ordered.update(b=5)]


@scene
def settings_and_queues() -> Scene:
    def make() -> Any:
        parser = configparser.ConfigParser()
        parser.read_dict({"heat": {"k": "3"}})
        waiting: Any = queue.Queue()
        waiting.put(2)
        return Base(options=argparse.Namespace(rate=0.5), parser=parser, waiting=waiting)

    def read(m: Any) -> Any:
        return m.u.value * (m.options.rate + 10 * m.parser.getint("heat", "k") + 100 * m.waiting.queue[0])

    changes = [
        lambda m: setattr(m.options, "rate", 0.25),
        lambda m: m.parser.set("heat", "k", "4"),
        lambda m: m.waiting.queue.appendleft(6),
    ]
    return make, read, changes


class Mode(enum.IntEnum):
    """A choice."""

    A = 1
    B = 2


@scene
def enums_and_numbers_equal_to_them() -> Scene:
    return (
        lambda: Base(mode=Mode.A),
        lambda m: m.u.value * m.mode + isinstance(m.mode, Mode),
        [
            put("mode", Mode.B),
            put("mode", 2),
        ],
    )


def shown(value: Any) -> Any:
    """What equal values do not have in common."""
    if isinstance(value, range):
        return value.stop
    if isinstance(value, set | frozenset):
        return sum(10**i * (v + isinstance(v, float)) for i, v in enumerate(value))
    return float(len(str(value)))


@scene
def values_that_are_equal_and_not_the_same() -> Scene:
    values = [
        range(0, 4, 2), decimal.Decimal("1.0"), decimal.Decimal("1.00"), frozenset({1, 2.0}), frozenset({1.0, 2}),
        {0, 8}, {8, 0}, slice(1, 2), slice(True, 2), 1, 1.0, True,
    ]  # fmt: skip
    return lambda: Base(x=range(0, 3, 2)), lambda m: m.u.value * shown(m.x), [put("x", value) for value in values]


@scene
def another_class_for_the_same_object() -> Scene:
    class One(Base):
        k = 1

    class Two(One):
        k = 5

    return One, lambda m: m.u.value * m.k, [put("__class__", Two)]


@pytest.mark.filterwarnings("ignore::statetransform.RetraceWarning")
@pytest.mark.parametrize("way", ["argument", "closure", "checkpoint"])
@pytest.mark.parametrize("name", list(SCENES))
def test_a_change_is_seen(name: str, way: str) -> None:
    make, read, changes = SCENES[name]()
    one, two = make(), make()
    jitted, checkpointed = transform.jit(read), transform.checkpoint(read)
    ways = {
        "argument": lambda: jitted(two),
        "closure": lambda: transform.jit(lambda: read(two))(),
        "checkpoint": lambda: checkpointed(two),
    }
    try:
        for change in [lambda obj: None, *changes]:
            change(one)
            change(two)
            for _ in range(4):  # the later ones through the generated match
                assert float(ways[way]()) == float(read(one))
    finally:
        put_global(3)(None)


def test_what_the_function_counts_in_a_closure_makes_no_new_trace() -> None:
    runs = [0]

    def body(model: Any, other: Any) -> Any:
        runs[0] += 1
        return model.u.value * other.u.value

    jitted, model = transform.jit(body), Base()
    for _ in range(3):
        jitted(model, Base())
    assert runs == [1]


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
