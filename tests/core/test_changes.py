"""A function under a transform sees each change of the attributes, names, items, values and states that it uses.

A scene is what makes an object, what reads it, and what changes it. After each change, two objects are read: one
without a transform, the other under one.
"""

from __future__ import annotations

import argparse
import builtins
import collections
import contextlib
import contextvars
import copy
import decimal
import enum
import functools
import pathlib
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
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


scene = Scenes()


def put_global(name: str, value: Any) -> Callable[[Any], None]:
    return lambda obj: globals().update({name: value})


# -- attributes


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


# -- names

factor = 3


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
def a_global_behind_decorators_of_the_standard_library() -> Scene:
    def read(model: Any) -> Any:
        with scope() as k:
            return model.u.value * k * dispatched(model.u)

    return Base, read, [put_global("factor", 9)]


@scene
def names_that_are_bound_later() -> Scene:
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

    def read(model: Any) -> Any:
        try:
            return model.u.value * model.read() * later  # type: ignore[name-defined]
        except NameError:
            return model.u.value * model.read()

    return make, read, [lambda m: m.bind(), put_global("later", 9), lambda m: globals().pop("later", None)]


@scene
def the_last_of_more_names_than_one_byte_can_count() -> Scene:
    exec("def read(m): return m.u.value * (" + " + ".join(f"n{i}" for i in range(300)) + ")", globals())
    globals().update({f"n{i}": i for i in range(300)})
    return Base, globals()["read"], [put_global("n299", 7)]


def in_a_list(module: Any) -> Any:
    held = [module]
    return lambda: held[0]


def as_a_default(module: Any) -> Any:
    return lambda module=module: module


@pytest.mark.parametrize(
    "hold",
    [lambda m: lambda: m, in_a_list, as_a_default, lambda m: lambda: (lambda given: given)(m)],
    ids=["closure", "list", "default", "argument"],
)
def test_a_module_is_followed_however_it_is_held(hold: Any, module: types.ModuleType) -> None:
    module.times, module.table = (lambda x: x * module.k), {"a": 3}  # type: ignore[attr-defined]
    get = hold(module)
    changes = [lambda: put("k", 8)(module), lambda: module.table.update(a=5), lambda: put("times", abs)(module)]
    follows(lambda x: get().times(x) * get().table["a"] * get().k, changes)


@pytest.fixture
def module() -> Iterator[types.ModuleType]:
    package, inner = types.ModuleType("somebodys"), types.ModuleType("somebodys.inner")
    vars(package).update(inner=inner, k=2.0, s=new(2), __path__=[])
    inner.k = 3.0  # type: ignore[attr-defined]
    sys.modules.update({"somebodys": package, "somebodys.inner": inner})
    yield package
    del sys.modules["somebodys"], sys.modules["somebodys.inner"]


def by_from(x: Any) -> Any:
    from somebodys import k, s  # type: ignore[import-not-found]

    return k * s.value * x


def by_import(x: Any) -> Any:
    import somebodys.inner  # type: ignore[import-not-found]

    return somebodys.k * somebodys.inner.k * x


def by_import_elsewhere(x: Any) -> Any:
    def package() -> Any:
        import somebodys

        return somebodys

    def inner() -> Any:
        from somebodys import inner as found

        return found

    return inner().k * package().k * package().s.value * x


@pytest.mark.parametrize("read", [by_from, by_import, by_import_elsewhere])
def test_a_name_imported_in_the_body_is_followed(read: Any, module: Any) -> None:
    changes = [put("k", 5.0), put("k", 5), put("s", new(7)), lambda m: put("k", 7.0)(m.inner)]
    follows(read, [functools.partial(change, module) for change in changes])


def test_a_name_of_a_module_counts_in_each_module_that_has_it(module: Any) -> None:
    first, second = types.ModuleType("first"), types.ModuleType("second")
    for user in (first, second):
        user.somebodys = module  # type: ignore[attr-defined]
        exec("def k(): return somebodys.k", vars(user))
    other = types.ModuleType("another")
    other.k = 5.0  # type: ignore[attr-defined]
    follows(lambda x: first.k() * second.k() * x, [lambda: put("somebodys", other)(second)])


def follows(read: Callable[..., Any], changes: list[Callable[[], Any]]) -> None:
    """Each change of what a function of a number uses is seen."""
    ours = {"jit": transform.jit(read), "checkpoint": transform.checkpoint(read)}
    ours["for_loop"] = lambda x: transform.for_loop(lambda: read(x), length=1)[0]
    for change in [lambda: None, *changes]:
        change()
        for name, f in ours.items():
            for _ in range(4):
                assert float(f(3.0)) == float(read(3.0)), name


variable: contextvars.ContextVar[Any] = contextvars.ContextVar("variable", default=2.0)


def test_context_variables_are_followed(recwarn: pytest.WarningsRecorder) -> None:
    def run() -> None:
        follows(lambda x: variable.get() * x, [lambda: variable.set(2.0), lambda: variable.set(5.0)])
        other = transform.jit(lambda x: variable.get().u.value * x)
        for k in (1.0, 2.0):
            variable.set(types.SimpleNamespace(u=new(k)))
            assert [float(other(3.0)) for _ in range(3)] == [3.0 * k] * 3
        assert len(other.history) == 1 and not recwarn.list  # type: ignore[attr-defined]

    contextvars.copy_context().run(run)


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


# -- items, values and states


class Pair(NamedTuple):
    u: State
    k: int


class Mode(enum.IntEnum):
    A = 1
    B = 2


def containers() -> Scene:
    """Those of the standard library."""

    def make() -> Any:
        below = {"q": 3}
        return Base(
            below=below,
            ordered=collections.OrderedDict(a=1, b=2),
            proxy=types.MappingProxyType(below),
            user=collections.UserDict(k=3),
            chain=collections.ChainMap({"a": 1}, {"b": 2}),
            made=collections.defaultdict(lambda: 3),
            queue=collections.deque([1], maxlen=2),
            count=[3, 3].count,
        )

    def read(m: Any) -> Any:
        ordered = sum(10**i * v for i, v in enumerate(m.ordered.values()))
        settings = m.made.default_factory() * m.queue.maxlen * len(m.queue) * m.count(3)
        return m.u.value * ordered * settings + m.proxy["q"] * 100 + m.user["k"] * 1000 + m.chain["b"] * 10000

    changes = [
        lambda m: m.ordered.move_to_end("a"),
        lambda m: m.below.update(q=8),
        lambda m: m.user.update(k=9),
        lambda m: m.chain.update(b=7),
        lambda m: setattr(m.made, "default_factory", lambda: 8),
        put("queue", collections.deque([1], maxlen=3)),
        lambda m: m.queue.append(1),
        lambda m: m.count.__self__.append(3),
    ]
    return make, read, changes


def shown(value: Any) -> Any:
    """What equal values do not have in common."""
    if isinstance(value, range):
        return value.stop
    if isinstance(value, set | frozenset):
        return sum(10**i * (v + isinstance(v, float)) for i, v in enumerate(value))
    return float(len(str(value)))


EQUAL = [
    range(0, 4, 2), decimal.Decimal("1.0"), decimal.Decimal("1.00"), frozenset({1, 2.0}), frozenset({1.0, 2}),
    {0, 8}, {8, 0}, slice(1, 2), slice(True, 2), 1, 1.0, True,
]  # fmt: skip


def function_with(**attributes: Any) -> Callable[[Any], Any]:
    """Functions of the same code."""
    f = lambda x: x
    vars(f).update(attributes)
    return f


def pointer(of_objects: bool) -> Scene:
    """A pointer into a list of buffers."""

    def make() -> Any:
        held = [Base(), Base()]
        held[1].u = new(10)
        buffers = held if of_objects else [one.u for one in held]
        return Base(buffers=buffers, first=buffers[0], second=buffers[1], current=buffers[0])

    def read(m: Any) -> Any:
        state = m.current.u if of_objects else m.current
        state.value = state.value + 1
        return state.value * m.first.u.value if of_objects else state.value * m.first.value

    point = lambda i: lambda m: setattr(m, "current", m.buffers[i])
    return make, read, [point(1), point(0), point(1)]


total = lambda items: sum((item.value for item in items), 0.0)
scene.update({
    "containers": containers,
    "a pointer to a state": lambda: pointer(False),
    "a pointer to an object": lambda: pointer(True),
    "named tuples": lambda: (
        lambda: Base(pair=Pair(new(1), 3)),
        lambda m: m.pair.u.value * m.pair.k,
        [put("pair", Pair(new(4), 2)), put("pair", Pair(new(4), 5))],
    ),
    "enums": lambda: (
        lambda: Base(mode=Mode.A),
        lambda m: m.u.value * m.mode + isinstance(m.mode, Mode),
        [put("mode", Mode.B), put("mode", 2)],
    ),
    "values that are equal and not the same": lambda: (
        lambda: Base(x=range(0, 3, 2)), lambda m: m.u.value * shown(m.x), [put("x", value) for value in EQUAL]
    ),
    "paths that differ in case": lambda: (
        lambda: Base(x=pathlib.PureWindowsPath("a")),
        lambda m: m.u.value * ord(str(m.x)),
        [put("x", pathlib.PureWindowsPath("A")), put("x", pathlib.PurePosixPath("A"))],
    ),
    "a dict by object": lambda: (
        lambda: Base(items={Mode.A: 2.0, types: 3.0}),
        lambda m: m.u.value * sum(m.items.values()),
        [lambda m: m.items.update({types: 5.0})],
    ),
    "functions that differ in an attribute": lambda: (
        lambda: Base(f=function_with(scale=2)),
        lambda m: m.u.value * m.f(m.f.scale),
        [put("f", function_with(scale=5))],
    ),
    "a state": lambda: (Base, lambda m: m.u.value * 2, [put("u", new(5)), lambda m: setattr(m.u, "value", 6.0)]),
    "a list of states": lambda: (
        lambda: Base(items=[new(1)]),
        lambda m: m.u.value + total(m.items),
        [lambda m: m.items.append(new(10)), lambda m: m.items.pop(0), lambda m: m.items.clear()],
    ),
    "a dict of states": lambda: (
        lambda: Base(items={"a": new(1), "b": new(2)}),
        lambda m: m.u.value * total(m.items.values()) * len("".join(m.items)),
        [lambda m: (m.items.pop("b"), m.items.update(cc=new(20))), lambda m: m.items.update(a=new(3))],
    ),
    "an alias of a state": lambda: (
        lambda: (lambda s: Base(a=s, b=s, other=new(10)))(new(1)),
        lambda m: m.a.value * 3 + m.b.value,
        [lambda m: put("b", m.other)(m), lambda m: put("a", m.other)(m), lambda m: put("b", m.u)(m)],
    ),
    "a namespace": lambda: (
        lambda: Base(held=types.SimpleNamespace(s=new(1))),
        lambda m: m.held.s.value,
        [lambda m: put("s", new(5))(m.held), put("held", argparse.Namespace(s=new(7)))],
    ),
})  # fmt: skip


class Config:
    gain = 2.0


class Cell:
    def __init__(self, value: float) -> None:
        self.value = new(value)
        self.flags = {"on": True, "mode": "sum"}


class Layer:
    def __init__(self, i: int, config: Config) -> None:
        self.w, self.index, self.config, self.name = new(i + 1), i, config, f"layer {i}"
        self.cells = [Cell(10 * i + j) for j in range(3)]

    def forward(self, x: Any) -> Any:
        x = x + self.config.gain * self.w.value * (self.index + 1)
        for cell in self.cells:
            if cell.flags["on"]:
                x = x + cell.value.value
            cell.value.value = cell.value.value + len(self.name)
        return x


@scene
def layers_of_cells() -> Scene:
    def make() -> Any:
        config = Config()
        return types.SimpleNamespace(config=config, layers=[Layer(i, config) for i in range(6)])

    def swap(m: Any) -> None:
        m.layers[3], m.layers[4] = m.layers[4], m.layers[3]

    return make, lambda m: functools.reduce(lambda x, layer: layer.forward(x), m.layers, jnp.float32(1)), [
        lambda m: put("index", 99)(m.layers[2]),
        lambda m: put("index", 2.0)(m.layers[2]),
        lambda m: put("name", "another")(m.layers[5]),
        lambda m: m.layers[4].cells[2].flags.update(on=False),
        lambda m: put("gain", 3.0)(m.config),
        lambda m: put("config", Config())(m.layers[4]),
        swap,
        lambda m: put("value", m.layers[5].w)(m.layers[1].cells[2]),
        lambda m: put("w", State(2.0, static=True))(m.layers[3]),
        lambda m: put("w", new(-7))(m.layers[3]),
        lambda m: m.layers[3].cells.__setitem__(1, type("Other", (Cell,), {})(0.5)),
        lambda m: m.layers.__setitem__(1, m.layers[4]),
        lambda m: m.layers.pop(1),
        lambda m: m.layers[1].cells.pop(2),
    ]  # fmt: skip


@pytest.fixture(autouse=True)
def names_as_before() -> Iterator[None]:
    yield
    globals().update(factor=3)
    globals().pop("later", None)


@pytest.mark.filterwarnings("ignore::statetransform.RetraceWarning")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", scene)
def test_a_change_is_seen(name: str, way: str) -> None:
    assert_seen(scene[name](), way)


@pytest.mark.filterwarnings("ignore::statetransform.RetraceWarning")
@pytest.mark.parametrize("name", scene)
def test_a_change_is_seen_by_a_call_whose_walk_over_the_object_is_written_down(name: str) -> None:
    for i in range(len(scene[name]()[2])):
        make, read, changes = scene[name]()
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


@pytest.mark.filterwarnings("ignore::statetransform.RetraceWarning")
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
