"""A function under a transform sees what its global names, closures and modules have become."""

from __future__ import annotations

import builtins
import contextlib
import functools
import types
from collections.abc import Callable
from typing import Any

import pytest

from statetransform import State, transform

from .changes import WAYS, Base, Scene, Scenes, assert_seen

SCENES = Scenes()


factor = 3


def put_global(value: Any) -> Callable[[Any], None]:
    """Sets a global name of this module."""
    return lambda obj: globals().update(factor=value)


@SCENES.scene
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


@SCENES.scene
def single_dispatch() -> Scene:
    return Base, lambda m: m.u.value * dispatched(m.u), [put_global(9)]


@SCENES.scene
def a_decorator_of_a_library() -> Scene:
    def read(model: Any) -> Any:
        with scope() as k:
            return model.u.value * k

    return Base, read, [put_global(9)]


@SCENES.scene
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


@SCENES.scene
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


@SCENES.scene
def a_module_as_an_attribute() -> Scene:
    module = types.ModuleType("a_module_of_the_user")

    def make() -> Any:
        module.k = 3  # type: ignore[attr-defined]
        return Base(module=module)

    return make, lambda m: m.u.value * m.module.k, [lambda m: setattr(module, "k", 8)]


@pytest.mark.filterwarnings("ignore::statetransform.RetraceWarning")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", SCENES)
def test_a_change_is_seen(name: str, way: str) -> None:
    try:
        assert_seen(SCENES[name](), way)
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
