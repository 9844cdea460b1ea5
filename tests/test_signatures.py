"""A transform takes what JAX's function takes, under the same names, and says so."""

from __future__ import annotations

import functools
import inspect
import sys
import typing
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from statetransform import State, transform
from statetransform.transform._options import as_in, bound_as_in

KEYWORD_ONLY = inspect.Parameter.KEYWORD_ONLY
DERIVATIVES = ("grad", "value_and_grad", "jacfwd", "jacrev", "hessian")
OWN = {
    **{name: {"states"} for name in DERIVATIVES},
    "vmap": {"state_axes", "split_rngs"},
    "jit": {"donate_states", "state_shardings"},
}


def parameters(fun: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(fun).parameters)


@pytest.mark.parametrize("name", OWN)
def test_each_option_of_jax_can_be_given_with_its_default(name: str) -> None:
    options = {key: p.default for key, p in parameters(getattr(jax, name)).items() if key != "fun"}
    fun, x = (lambda x: (x**2).sum()), jnp.arange(3.0)
    given, plain = getattr(transform, name)(fun, **options)(x), getattr(transform, name)(fun)(x)
    assert jax.tree.all(jax.tree.map(jnp.array_equal, given, plain))
    positional = [p.default for p in parameters(getattr(jax, name)).values() if p.kind is not KEYWORD_ONLY][1:]
    by_position = getattr(transform, name)(fun, *positional)(x)
    assert jax.tree.all(jax.tree.map(jnp.array_equal, by_position, plain))


# A JAX that knows one option more.


def of_newer_jax(fun: Any, old: int = 1, new: int = 2) -> Any:
    return fun, old, new


def test_a_new_option_is_taken_shown_and_passed_on() -> None:
    @bound_as_in(of_newer_jax)
    def ours(fun: Any = None, *, added: Any = None, **options: Any) -> Any:
        return (*of_newer_jax(fun, **options), added)

    assert list(parameters(ours)) == ["fun", "old", "new", "added"]
    assert (ours(), ours(0, 5), ours(0, 5, 6), ours(0, new=7, added=8)) == (
        (None, 1, 2, None),
        (0, 5, 2, None),
        (0, 5, 6, None),
        (0, 1, 7, 8),
    )
    for args, options in [((0, 1, 2, 3), {}), ((0, 1), {"old": 2}), ((0,), {"other": 1})]:
        with pytest.raises(TypeError, match="ours: "):
            ours(*args, **options)


def test_a_function_that_is_called_often_takes_new_options_by_keyword() -> None:
    @as_in(of_newer_jax)
    def ours(fun: Any, old: int = 1, *, added: Any = None, **options: Any) -> Any:
        return (*of_newer_jax(fun, old, **options), added)

    assert list(parameters(ours)) == ["fun", "old", "new", "added"]
    assert parameters(ours)["new"].kind is KEYWORD_ONLY
    assert ours(0, 5, new=7, added=8) == (0, 5, 7, 8)


def test_an_option_with_the_default_of_jax_counts_as_not_given() -> None:
    @bound_as_in(of_newer_jax)
    def ours(fun: Any = None, **options: Any) -> Any:
        return options

    assert (ours(0, 1, 2), ours(0, new=2, old=3)) == ({}, {"old": 3})


def test_what_jax_takes_by_position_only_is_taken_so() -> None:
    def theirs(f: Any = None, /, *, option: int = 1) -> None: ...

    @bound_as_in(theirs)
    def ours(f: Any = None, **options: Any) -> Any:
        return f, options

    assert ours(3, option=4) == (3, {"option": 4})
    with pytest.raises(TypeError):
        ours(f=3)


def test_a_decorator_copies_what_functools_copies() -> None:
    """From Python 3.14 on this is not `__annotations__`, which would evaluate annotations when decorating."""

    def f(x: int) -> int:
        return x

    wrapped = transform.jit(f)
    for part in functools.WRAPPER_ASSIGNMENTS:
        assert getattr(wrapped, part) == getattr(f, part)
    assert ("__annotations__" in vars(wrapped)) == ("__annotations__" in functools.WRAPPER_ASSIGNMENTS)


@pytest.mark.skipif(sys.version_info < (3, 14), reason="annotations are evaluated when the function is defined")
@pytest.mark.parametrize("name", ["grad", "vmap", "checkpoint"])
def test_annotations_are_not_evaluated_when_decorating(name: str) -> None:
    made = {"decorate": getattr(transform, name)}
    code = "@decorate\ndef f(x: Later) -> Later: return x\nclass Later: pass"
    exec(compile(code, "made", "exec", dont_inherit=True), made)
    expected = {"x": made["Later"], "return": made["Later"]}
    assert inspect.get_annotations(made["f"]) == typing.get_type_hints(made["f"]) == expected


@pytest.mark.parametrize("name", ["grad", "vmap", "checkpoint"])
def test_the_signature_is_not_read_when_decorating(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """To read it evaluates the annotations on Python 3.14. `jit` reads it, as `jax.jit` does."""

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise NameError("Later")

    monkeypatch.setattr(inspect, "signature", refuse)
    getattr(transform, name)(lambda x: x)


@pytest.mark.parametrize(
    "name", ["checkpoint", "grad", "vmap", "value_and_grad", "jacfwd", "jacrev", "hessian", "named_call"]
)
def test_decorators_find_what_they_find_under_the_transform_of_jax(name: str) -> None:
    def f(x: float, y: float = 2.0, *, z: float = 3.0) -> Any:
        return x * y * z

    ours, theirs = getattr(transform, name)(f), getattr(jax, name)(f)
    for attribute in ("__globals__", "__code__", "__defaults__", "__kwdefaults__", "__closure__"):
        assert hasattr(ours, attribute) >= hasattr(theirs, attribute)
    assert ours.__code__ is f.__code__ and ours.__globals__ is globals()
    assert (ours.__defaults__, ours.__kwdefaults__) == ((2.0,), {"z": 3.0})
    assert not hasattr(getattr(transform, name)(functools.partial(f, y=1.0)), "__code__")


def test_a_class_without_a_module() -> None:
    space: dict[str, Any] = {"State": State}
    exec(
        'Layer = type("Layer", (), {"__init__": lambda self: setattr(self, "w", State(2.0)), '
        '"__call__": lambda self, x: self.w.value * x})\nlayer = Layer()',
        space,
    )
    layer = space["layer"]
    assert not hasattr(space["Layer"], "__module__")
    for wrap in (transform.jit, transform.checkpoint, transform.grad):
        wrap(lambda x: layer(x))(3.0)
    assert transform.jit(lambda layer, x: layer(x))(layer, 3.0) == 6.0
    assert transform.for_loop(lambda: layer(3.0), length=2).tolist() == [6.0, 6.0]
    assert transform.checkpoint(space["Layer"])()(3.0) == 6.0
