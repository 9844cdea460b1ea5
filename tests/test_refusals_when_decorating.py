"""What cannot work is refused where it is written, in words that say what to write."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from statetransform import transform

X = jnp.float32(2.0)


def generator(x: Any) -> Iterator[Any]:
    yield x


async def coroutine(x: Any) -> Any:
    return x


async def stream(x: Any) -> AsyncIterator[Any]:
    yield x


class Generator:
    def __call__(self, x: Any) -> Iterator[Any]:
        yield x

    async def step(self, x: Any) -> Any:
        return x


class Coroutine:
    async def __call__(self, x: Any) -> Any:
        return x


class Stream(Generator):
    @staticmethod
    async def __call__(x: Any) -> AsyncIterator[Any]:  # type: ignore[override]
        yield x


DECORATORS = (
    *("jit", "checkpoint", "vmap", "named_call", "discard_writes", "checkify", "custom_vjp", "custom_jvp"),
    *("grad", "value_and_grad", "jacfwd", "jacrev", "hessian", "functionalize", "make_jaxpr"),
)
LAZY = (
    *(generator, coroutine, stream, functools.partial(generator, 1), staticmethod(coroutine), Generator().step),
    *(functools.lru_cache(coroutine), Generator(), Coroutine(), Stream(), Coroutine().__call__),
    functools.partial(functools.partial(Coroutine()), 1),
)


@pytest.mark.parametrize("name", DECORATORS)
def test_functions_that_do_not_run_when_called_are_refused(name: str) -> None:
    for fun in LAZY:
        with pytest.raises(TypeError, match=rf"{name}: .* returns an? (asynchronous )?(generator|coroutine)"):
            getattr(transform, name)(fun)


@pytest.mark.parametrize("name", DECORATORS)
def test_what_cannot_be_called_is_refused_at_once(name: str) -> None:
    for fun in (3, "f", X, [abs]):
        for decorate in (getattr(transform, name), getattr(transform, name)()):
            with pytest.raises(TypeError, match=rf"{name}: expected a function, got .* of type {type(fun).__name__}"):
                decorate(fun)


def test_lift_names_the_transform_that_it_lifts() -> None:
    with pytest.raises(TypeError, match="lift: expected a transform of functions"):
        transform.lift(3)
    with pytest.raises(TypeError, match="named_call: expected a function"):
        transform.lift(jax.named_call)(3)
    with pytest.raises(TypeError, match=r"named_call: Coroutine\.__call__ returns a coroutine"):
        transform.lift(jax.named_call)(Coroutine())


def test_wrappers_and_objects_whose_call_runs_are_taken() -> None:
    @functools.wraps(generator)
    def first(x: Any) -> Any:
        return next(generator(2 * x))

    class Doubles:
        def __call__(self, x: Any) -> Any:
            return 2 * x

        async def other(self) -> None: ...

    class Below:
        __call__ = transform.jit(lambda self, x: 2 * x)

    for name in ("jit", "checkpoint", "grad"):
        for fun in (first, Doubles(), functools.partial(Doubles()), Below(), Doubles().__call__):
            assert getattr(transform, name)(fun)(X) == (2.0 if name == "grad" else 4.0)


def test_a_property_under_checkpoint_is_refused() -> None:
    with pytest.raises(TypeError, match="a property is not a function"):
        transform.checkpoint(property(lambda self: 1.0))


def test_a_static_name_that_is_no_argument_is_refused() -> None:
    with pytest.raises(ValueError, match=r"`static_argnames` has 'ordr', which is not an argument of .*; .* x, order"):
        transform.checkpoint(lambda x, order: x, static_argnames="ordr")
    assert transform.checkpoint(lambda x, **options: x, static_argnames="order")(X, order=3) == 2.0
