"""Guarantee 2, names: global ones, variables, modules, imports, context variables."""

from __future__ import annotations

import builtins
import contextlib
import contextvars
import functools
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from statetransform import State, transform

from .scenes import Base, Scene, Scenes, checks_of, follows, new, put

scene = Scenes()


def put_global(name: str, value: Any) -> Callable[[Any], None]:
    return lambda obj: globals().update({name: value})


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


@pytest.fixture(autouse=True)
def names_as_before() -> Iterator[None]:
    yield
    globals().update(factor=3)
    globals().pop("later", None)


test_a_change_is_seen, test_a_change_is_seen_by_a_written_walk = checks_of(scene)
