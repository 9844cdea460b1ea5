"""What cannot work is refused where it is written, in words that say what to write."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Iterator
from typing import Any

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


DECORATORS = (
    *("checkpoint", "vmap", "named_call", "checkify", "custom_vjp", "custom_jvp"),
    *("grad", "value_and_grad", "jacfwd", "jacrev", "hessian"),
)


@pytest.mark.parametrize("name", DECORATORS)
@pytest.mark.parametrize(
    "fun",
    [generator, coroutine, stream, functools.partial(generator, 1)],
    ids=["generator", "coroutine", "stream", "partial"],
)
def test_functions_that_do_not_run_when_called_are_refused(name: str, fun: Any) -> None:
    with pytest.raises(TypeError, match=rf"{name}: .* gives an? (asynchronous )?(generator|coroutine)"):
        getattr(transform, name)(fun)


def test_a_property_under_checkpoint_is_refused() -> None:
    with pytest.raises(TypeError, match="a property is not a function"):
        transform.checkpoint(property(lambda self: 1.0))


def test_a_static_name_that_is_no_argument_is_refused() -> None:
    with pytest.raises(ValueError, match=r"`static_argnames` has 'ordr', which is no argument of .*; .* x, order"):
        transform.checkpoint(lambda x, order: x, static_argnames="ordr")
    assert transform.checkpoint(lambda x, **options: x, static_argnames="order")(X, order=3) == 2.0
