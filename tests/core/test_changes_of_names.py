"""A function under a transform sees what its global names, closures and modules have become."""

from __future__ import annotations

import builtins
import contextlib
import functools
import types
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
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


def of_modules(hold: Callable[[types.ModuleType], Callable[[], Any]]) -> Scene:
    """A module that a function comes by in some way, and what is changed in it."""
    module = types.ModuleType("another_module_of_the_user")

    def times(x: Any) -> Any:
        return x * module.k

    def make() -> Any:
        module.k, module.table, module.times = 3, {"a": 3}, times  # type: ignore[attr-defined]
        return Base()

    get = hold(module)
    read = lambda m: get().times(m.u.value) * get().table["a"] * get().k
    changes = [put_in(module, "k", 8), lambda m: module.table.update(a=5)]  # type: ignore[attr-defined]
    return make, read, [*changes, put_in(module, "times", lambda x: x)]


def put_in(obj: Any, name: str, value: Any) -> Callable[[Any], None]:
    """Sets an attribute of something that is not the model."""
    return lambda m: setattr(obj, name, value)


@SCENES.scene
def a_module_in_a_closure() -> Scene:
    return of_modules(lambda module: lambda: module)


@SCENES.scene
def a_module_in_a_list() -> Scene:
    def hold(module: Any) -> Any:
        held = [module]
        return lambda: held[0]

    return of_modules(hold)


@SCENES.scene
def a_module_as_a_default() -> Scene:
    def hold(module: Any) -> Any:
        def get(module: Any = module) -> Any:
            return module

        return get

    return of_modules(hold)


@SCENES.scene
def a_module_that_is_passed_on() -> Scene:
    return of_modules(lambda module: lambda: (lambda given: given)(module))


@SCENES.scene
def an_attribute_of_a_function() -> Scene:
    def read(model: Any) -> Any:
        return model.u.value * read.scale  # type: ignore[attr-defined]

    def make() -> Any:
        read.scale = 3  # type: ignore[attr-defined]
        return Base()

    return make, read, [put_in(read, "scale", 9)]


@SCENES.scene
def an_attribute_of_a_partial() -> Scene:
    held = functools.partial(lambda model: model.u.value * held.scale)

    def make() -> Any:
        held.scale = 3  # type: ignore[attr-defined]
        return Base()

    return make, held, [put_in(held, "scale", 9)]


@SCENES.scene
def a_derivative_rule_of_raw_jax() -> Scene:
    held = types.SimpleNamespace(scale=3)
    rule = jax.custom_vjp(lambda x: x)
    rule.defvjp(lambda x: (x, None), lambda residuals, ct: (ct * held.scale,))
    read = lambda m: transform.grad(lambda x: rule(x) * m.u.value)(1.0)
    return lambda: (setattr(held, "scale", 3), Base())[1], read, [put_in(held, "scale", 9)]


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


def test_functions_that_differ_in_an_attribute_have_a_trace_each() -> None:
    def made(scale: float) -> Any:
        def f(x: Any) -> Any:
            return x

        f.scale = scale  # type: ignore[attr-defined]
        return f

    passed = transform.jit(lambda x, f: f(x) * f.scale)
    assert [float(passed(1.0, made(scale))) for scale in (1.0, 2.0, 1.0)] == [1.0, 2.0, 1.0]
    looped = lambda f: transform.map(lambda x: f(x) * f.scale, jnp.ones(1))
    assert [float(looped(made(scale))[0]) for scale in (1.0, 2.0)] == [1.0, 2.0]
