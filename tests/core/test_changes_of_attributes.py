"""A function under a transform sees each change of the attributes and names that it uses."""

from __future__ import annotations

import builtins
import contextlib
import contextvars
import copy
import dataclasses
import functools
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import jax
import pytest

from statetransform import State, transform

from .changes import WAYS, Base, Scene, Scenes, assert_seen, new, put, put_in

scene = Scenes()


def put_global(name: str, value: Any) -> Callable[[Any], None]:
    """Sets a global name of this module."""
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


@dataclasses.dataclass(slots=True)
class Slots:
    """A dataclass without `__dict__`."""

    u: State = dataclasses.field(default_factory=lambda: new(1))
    k: int = 3
    items: list[int] = dataclasses.field(default_factory=list)


scene.update({
    "an empty slot": lambda: (EmptySlot, lambda m: m.u.value * m.k, [put("k", 8)]),
    "slots": lambda: (
        Slots,
        lambda m: m.u.value * m.k + sum(m.items) + 100 * dataclasses.replace(m, items=[]).k,
        [put("k", 9), lambda m: m.items.append(3), put("u", new(4))],
    ),
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


class Kind(Base):
    """A class with an attribute that is found by a computed name."""

    order_2 = 2.0


@pytest.mark.parametrize("name", ["getattr", "vars", "dict", "class"])
def test_a_class_attribute_with_a_computed_name_is_followed(name: str) -> None:
    key = "order_" + "2"

    class Derived(Kind):
        pass

    obj = Derived()
    reads: dict[str, Callable[..., Any]] = {
        "getattr": lambda x: getattr(type(obj), key) * x,
        "vars": lambda x: vars(type(obj).__base__)[key] * x,
        "dict": lambda x: Kind.__dict__[key] * x,
        "class": lambda x: getattr(obj.__class__, key) * x,
    }
    try:
        follows(reads[name], [lambda: setattr(Kind, key, 5.0), lambda: setattr(Kind, key, True)])
        follows(reads[name], [lambda: setattr(Derived, key, 9.0)] * (name in ("getattr", "class")))
    finally:
        Kind.order_2 = 2.0


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


def by_import_with_another_name(x: Any) -> Any:
    def within() -> Any:
        import somebodys as package
        import somebodys.inner as other  # type: ignore[import-not-found]

        return other.k * package.s.value

    return within() * x


@pytest.mark.parametrize("read", [by_from, by_import, by_import_with_another_name])
def test_a_name_imported_in_the_body_is_followed(read: Any, module: Any) -> None:
    changes = [put("k", 5.0), put("k", 5), put("s", new(7)), lambda m: put("k", 7.0)(m.inner)]
    follows(read, [functools.partial(change, module) for change in changes])


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
local = threading.local()


def test_context_variables_are_followed(recwarn: pytest.WarningsRecorder) -> None:
    def run() -> None:
        follows(lambda x: variable.get() * x, [lambda: variable.set(2.0), lambda: variable.set(5.0)])
        other = transform.jit(lambda x: variable.get().u.value * x)
        for k in (1.0, 2.0):
            variable.set(types.SimpleNamespace(u=new(k)))
            assert [float(other(3.0)) for _ in range(3)] == [3.0 * k] * 3
        assert len(other.history) == 1 and not recwarn.list  # type: ignore[attr-defined]

    contextvars.copy_context().run(run)


def test_attributes_of_the_thread_are_followed() -> None:
    set_k = lambda value: lambda: setattr(local, "k", value)
    set_k(2.0)()
    follows(lambda x: local.k * x, [set_k(5.0), set_k(5)])
    f, found = transform.jit(lambda x: getattr(local, "k", 0.0) * x), []
    for _ in range(2):
        found.append(float(f(1.0)))
        thread = threading.Thread(target=lambda: found.append(float(f(1.0))))
        thread.start()
        thread.join()
    assert found == [5.0, 0.0] * 2


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


@pytest.mark.filterwarnings("ignore::statetransform.RetraceWarning")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", scene)
def test_a_change_is_seen(name: str, way: str) -> None:
    try:
        assert_seen(scene[name](), way)
    finally:
        globals().update(factor=3)
        globals().pop("later", None)
