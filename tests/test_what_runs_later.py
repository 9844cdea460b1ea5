"""What runs after the trace, a callback or the rule of a derivative, sees the object of its own call."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from statetransform import State, transform


class Logged:
    """An object with a log of its own."""

    def __init__(self, slope: float = 1.0) -> None:
        self.u, self.log, self.slope = State(jnp.float32(0), name="u"), [], slope

    @transform.jit
    def step(self, x: Any) -> None:
        jax.debug.callback(lambda x: self.log.append(float(x)), x)
        self.u.value = self.u.value + x

    @transform.jit
    def ruled(self, x: Any) -> Any:
        @jax.custom_vjp
        def f(x: Any) -> Any:
            return x

        f.defvjp(lambda x: (x, None), lambda _, ct: (ct * self.slope,))
        return f(x) + self.u.value


def test_a_callback_reaches_the_object_of_its_own_call() -> None:
    one, two = Logged(), Logged()
    for _ in range(3):
        one.step(1.0), two.step(2.0)
    jax.effects_barrier()
    assert (one.log, two.log) == ([1.0] * 3, [2.0] * 3)


def test_a_callback_of_a_function_made_anew_is_its_own() -> None:
    def count() -> int:
        seen: list[int] = []
        f = transform.jit(lambda x: (jax.debug.callback(lambda: seen.append(1)), x)[1])
        f(1.0), f(1.0)
        jax.effects_barrier()
        return len(seen)

    assert [count() for _ in range(3)] == [2, 2, 2]


@pytest.mark.parametrize("checkpoint", [3, "step", None])
def test_a_callback_in_an_eager_gradient_of_a_loop_is_its_own(checkpoint: Any) -> None:
    def make() -> tuple[Any, list[int]]:
        said: list[int] = []

        def body(c: Any, x: Any) -> Any:
            jax.debug.callback(said.append, 1)
            return c * x, None

        return transform.grad(lambda x: transform.scan(body, x, jnp.ones(8), checkpoint=checkpoint)[0]), said

    (one, said), (other, heard) = make(), make()
    for gradient, full, empty in ((one, said, heard), (other, heard, said)):
        gradient(1.0)
        jax.effects_barrier()
        assert full
        full.clear()
        assert not empty


def test_a_rule_that_looks_at_an_object_later_looks_at_the_object_of_its_own_call() -> None:
    one, two = Logged(10.0), Logged(20.0)
    slope = lambda logged: float(transform.grad(logged.ruled)(1.0))
    assert [slope(logged) for logged in (one, two, one, two)] == [10.0, 20.0, 10.0, 20.0]
    one.slope = 30.0
    assert slope(one) == 30.0
