"""Derivative rules of methods."""

from __future__ import annotations

import copy
import functools
from typing import Any

import jax.numpy as jnp
import pytest

from statetransform import State, transform

from .functions import WAYS, X


class Rules:
    """A class whose rules are methods, as its functions are; indices do not count the instance."""

    def __init__(self, w: float) -> None:
        self.w, self.k = State(jnp.float32(w), name="w"), w

    def _f(self, n: int, x: Any) -> Any:
        return self.w.value * x * n

    def forward(self, n: int, x: Any) -> Any:
        return self._f(n, x), x

    def backward(self, n: int, x: Any, ct: Any) -> Any:
        return (ct * x * self.w.value * self.k * n,)

    def rule(self, n: int, primals: Any, tangents: Any) -> Any:
        return self._f(n, *primals), tangents[0] * primals[0] * self.w.value * self.k * n

    named = transform.custom_vjp(nondiff_argnames=("n",))(_f)
    named.defvjp(forward, backward)
    numbered = transform.custom_vjp(_f, nondiff_argnums=(0,))
    numbered.defvjp(forward, backward)
    pushed = transform.custom_jvp(_f, nondiff_argnames="n")
    pushed.defjvp(rule)


@pytest.mark.parametrize("name", ["named", "numbered", "pushed"])
@pytest.mark.parametrize("way", ["grad", "grad of jit", "grad in lanes"])
def test_every_rule_of_a_method_may_take_the_instance(way: str, name: str) -> None:
    for w in (2.0, 3.0):
        rules = Rules(w)
        for call in (getattr(rules, name), functools.partial(getattr(Rules, name), rules)):
            assert call(3, X) == 3 * w * X
            assert WAYS[way](lambda x: call(3, x))(X) == 3 * X * w * w  # noqa: B023 - called at once


def test_static_and_class_methods_in_both_orders(w: State) -> None:
    class Scaled:
        k = 2.0

        @transform.custom_vjp
        @classmethod
        def pulled(cls, x: Any) -> Any:
            return w.value * x * cls.k

        @transform.custom_jvp
        @staticmethod
        def free(x: Any) -> Any:
            return w.value * x

        @classmethod
        @transform.custom_jvp
        def outside(cls, x: Any) -> Any:
            return w.value * x * cls.k

        free.defjvp(lambda primals, dots: (w.value * primals[0], 9 * dots[0]))
        pulled.defvjp(lambda cls, x: (w.value * x * cls.k, cls.k), lambda k, ct: (100 * k * ct,))

    Scaled.outside.defjvp(lambda primals, dots: (w.value * primals[0] * 2, 5 * dots[0]))
    for owner in (Scaled, Scaled(), type("Derived", (Scaled,), {})):
        for name, value, slope in [("pulled", 6, 200), ("free", 3, 9), ("outside", 6, 5)]:
            f = getattr(owner, name)
            assert f(1.0) == value * w.value / 3
            assert transform.grad(f)(1.0) == slope == transform.jit(transform.grad(f))(1.0)
    copied = copy.deepcopy(vars(Scaled)["pulled"])
    assert copied.__get__(None, Scaled)(1.0) == Scaled.pulled(1.0)
