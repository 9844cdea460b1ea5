"""A function under a transform sees changes of what it comes by without an object's name: modules, context, thread."""

from __future__ import annotations

import contextvars
import sys
import threading
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
import pytest

from statetransform import State, transform

variable: contextvars.ContextVar[Any] = contextvars.ContextVar("variable")
with_default: contextvars.ContextVar[Any] = contextvars.ContextVar("with_default", default=2.0)
local = threading.local()


class Namespace(threading.local):
    k = 2.0

    @property
    def twice(self) -> Any:
        return 2 * self.k


own = Namespace()


class Kind:
    order_2 = 2.0

    def __init__(self) -> None:
        self.u = State(jnp.float32(1.0))


class Derived(Kind):
    pass


@pytest.fixture
def module() -> Iterator[types.ModuleType]:
    package, inner = types.ModuleType("somebodys"), types.ModuleType("somebodys.inner")
    package.inner, package.k, inner.k = inner, 2.0, 3.0  # type: ignore[attr-defined]
    package.s = State(jnp.float32(2.0))  # type: ignore[attr-defined]
    package.__path__ = []
    sys.modules.update({"somebodys": package, "somebodys.inner": inner})
    yield package
    del sys.modules["somebodys"], sys.modules["somebodys.inner"]


def by_from(x: Any) -> Any:
    from somebodys import k  # type: ignore[import-not-found]

    return k * x


def by_from_with_a_state(x: Any) -> Any:
    from somebodys import s  # type: ignore[import-not-found]

    return s.value * x


def by_import(x: Any) -> Any:
    import somebodys  # type: ignore[import-not-found]

    return somebodys.k * x


def by_import_of_a_submodule(x: Any) -> Any:
    import somebodys.inner  # type: ignore[import-not-found]

    return somebodys.inner.k * x


def by_import_with_another_name(x: Any) -> Any:
    def within() -> Any:
        import somebodys.inner as other  # type: ignore[import-not-found]

        return other.k

    return within() * x


def put(name: str, value: Any) -> Callable[[Any], None]:
    return lambda module: setattr(module, name, value)


IMPORTS: dict[Callable[..., Any], list[Callable[[Any], None]]] = {
    by_from: [put("k", 5.0), put("k", 5)],
    by_from_with_a_state: [lambda m: setattr(m.s, "value", 4.0), put("s", State(jnp.float32(7.0)))],
    by_import: [put("k", 5.0)],
    by_import_of_a_submodule: [lambda m: setattr(m.inner, "k", 7.0)],
    by_import_with_another_name: [lambda m: setattr(m.inner, "k", 7.0)],
}


def follows(read: Callable[..., Any], changes: list[Callable[[], Any]]) -> None:
    ours = {"jit": transform.jit(read), "checkpoint": transform.checkpoint(read)}
    ours["for_loop"] = lambda x: transform.for_loop(lambda: read(x), length=1)[0]
    for change in [lambda: None, *changes]:
        change()
        for name, f in ours.items():
            for _ in range(4):  # the later ones through the generated match
                assert float(f(3.0)) == float(read(3.0)), name


@pytest.mark.parametrize("read", IMPORTS, ids=lambda read: read.__name__)
def test_a_name_imported_in_the_body_is_followed(read: Any, module: types.ModuleType) -> None:
    follows(read, [lambda change=change: change(module) for change in IMPORTS[read]])


def test_context_variables_are_followed() -> None:
    def read(x: Any) -> Any:
        return with_default.get() * variable.get(2.0) * x

    def run() -> None:
        follows(read, [
            lambda: variable.set(2.0),  # the default, too, but set
            lambda: variable.set(5.0),
            lambda: with_default.set(7.0),
            lambda: with_default.set(2.0),
        ])  # fmt: skip
        other = transform.jit(lambda x: variable.get().u.value * x)
        with warnings.catch_warnings(action="error"):  # there is a way to the state, and each is traced once
            for k in (1.0, 2.0):
                variable.set(types.SimpleNamespace(u=State(jnp.float32(k))))
                assert [float(other(3.0)) for _ in range(3)] == [3.0 * k] * 3
        assert len(other.history) == 1  # type: ignore[attr-defined]

    contextvars.copy_context().run(run)


def test_attributes_of_the_thread_are_followed() -> None:
    local.k, own.k = 2.0, 2.0
    follows(lambda x: local.k * x, [put_local("k", 5.0), put_local("other", 1), put_local("k", 5)])
    follows(lambda x: own.twice * x, [lambda: setattr(own, "k", 3.0), lambda: delattr(own, "k")])
    f, found = transform.jit(lambda x: getattr(local, "k", 0.0) * x), []
    found.append(float(f(1.0)))
    thread = threading.Thread(target=lambda: found.append(float(f(1.0))))
    thread.start()
    thread.join()
    found.append(float(f(1.0)))
    assert found == [5.0, 0.0, 5.0]


def put_local(name: str, value: Any) -> Callable[[], None]:
    return lambda: setattr(local, name, value)


@pytest.mark.parametrize("name", ["getattr", "vars", "dict", "class"])
def test_a_class_attribute_with_a_computed_name_is_followed(name: str) -> None:
    key, obj = "order_" + "2", Derived()
    reads: dict[str, Callable[..., Any]] = {
        "getattr": lambda x: getattr(type(obj), key) * x,
        "vars": lambda x: vars(type(obj).__base__)[key] * x,
        "dict": lambda x: Kind.__dict__[key] * x,
        "class": lambda x: getattr(obj.__class__, key) * x,
    }
    try:
        follows(reads[name], [lambda: setattr(Kind, key, 5.0), lambda: setattr(Kind, key, True)])
        if name in ("getattr", "class"):
            follows(reads[name], [lambda: setattr(Derived, key, 9.0)])
            del Derived.order_2  # type: ignore[attr-defined]
    finally:
        Kind.order_2 = 2.0
