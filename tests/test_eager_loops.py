"""Loops and branches in eager `grad` and the like: compiled once, whatever they close over."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from statetransform import State, transform

from .core.compiling import compilations

XS = jnp.arange(4.0)
INIT = jnp.float32(0.5)
RUNS = [0]


class Rod:
    """A state that is stepped."""

    def __init__(self) -> None:
        self.u = State(jnp.linspace(0.0, 1.0, 5), name="u")

    def step(self, dt: Any) -> None:
        self.u.value = self.u.value + dt * (jnp.roll(self.u.value, 1) - self.u.value)


def stepped(dt: Any, n: int) -> Any:
    """The same by hand."""
    step = lambda u, _: (u + dt * (jnp.roll(u, 1) - u), None)
    return jax.lax.scan(step, jnp.linspace(0.0, 1.0, 5), None, length=n)[0]


def rod(dt: Any, **options: Any) -> Any:
    model = Rod()
    transform.for_loop(lambda: model.step(dt), length=6, **options)
    return jnp.sum(model.u.value**2)


def with_default(w: Any, scan: Any) -> Any:
    return scan(lambda c, x, w=w: (c * w + x, None), INIT, XS)[0]


def with_container(w: Any, scan: Any) -> Any:
    params = {"w": w, "parts": [w * 2, 3], "kind": "tanh"}

    def body(c: Any, x: Any) -> Any:
        f = jnp.tanh if params["kind"] == "tanh" else jnp.sin
        return f(c * params["w"] + x * params["parts"][0] + params["parts"][1]), None

    return scan(body, INIT, XS)[0]


def affine(w: Any, c: Any, x: Any) -> Any:
    return c * w + x, None


def with_partial(w: Any, scan: Any) -> Any:
    return scan(functools.partial(affine, w), INIT, XS)[0]


def with_two(w: Any, scan: Any) -> Any:
    """The hole is where the number was in another loop of the same code."""
    out = 0.0
    for a, b in ((w, 2.0), (2.0, w), (w, w)):
        out = out + scan(lambda c, x, a=a: (c * a + x * b, None), INIT, XS)[0]  # noqa: B023
    return out


CASES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    f.__name__: (functools.partial(f, scan=transform.scan), functools.partial(f, scan=jax.lax.scan))
    for f in (with_default, with_container, with_partial, with_two)
}
CASES |= {
    "for_loop": (rod, lambda dt: jnp.sum(stepped(dt, 6) ** 2)),
    "for_loop, checkpoint=2": (functools.partial(rod, checkpoint=2), lambda dt: jnp.sum(stepped(dt, 6) ** 2)),
    "fori_loop": (
        lambda w: transform.fori_loop(0, 3, lambda i, c: c * w + i, INIT),
        lambda w: jax.lax.fori_loop(0, 3, lambda i, c: c * w + i, INIT),
    ),
    "fori_loop with an array for a bound": (
        lambda w: transform.fori_loop(0, jnp.int32(3), lambda i, c: c * w + i, INIT),
        lambda w: jax.lax.fori_loop(0, jnp.int32(3), lambda i, c: c * w + i, INIT),
    ),
    "while_loop": (
        lambda w: transform.while_loop(lambda c: c < 4 * w, lambda c: c * 2 + w, INIT, checkpoint=3),
        lambda w: jax.lax.fori_loop(0, 2, lambda i, c: c * 2 + w, INIT),
    ),
    "cond": (
        lambda w: transform.cond(w > 0, lambda: jnp.sin(w), lambda: -w),
        lambda w: jax.lax.cond(w > 0, lambda: jnp.sin(w), lambda: -w),
    ),
    "cond of functions of a library": (
        lambda w: transform.cond(True, jnp.sin, jnp.cos, w),
        lambda w: jax.lax.cond(True, jnp.sin, jnp.cos, w),
    ),
    "switch": (
        lambda w: transform.switch(1, [lambda: w, lambda: w * w]),
        lambda w: jax.lax.switch(1, [lambda: w, lambda: w * w]),
    ),
}  # fmt: skip
TRANSFORMS: dict[str, tuple[Any, Any]] = {
    "grad": (transform.grad, jax.grad),
    "hessian": (transform.hessian, jax.hessian),
    "jvp": (lambda f: lambda w: transform.jvp(f, (w,), (w,)), lambda f: lambda w: jax.jvp(f, (w,), (w,))),
    "vmap": (
        lambda f: lambda w: transform.vmap(f)(jnp.stack([w, 2 * w])),
        lambda f: lambda w: jax.vmap(f)(jnp.stack([w, 2 * w])),
    ),
}


@pytest.mark.parametrize("way", TRANSFORMS)
@pytest.mark.parametrize("name", CASES)
def test_a_loop_that_closes_over_what_is_differentiated_compiles_once(name: str, way: str) -> None:
    (ours, by_hand), (our_way, jaxs_way) = CASES[name], TRANSFORMS[way]
    for i, w in enumerate((0.9, 0.8, 0.7)):
        w = jnp.float32(w)
        with compilations() as made:
            found = our_way(ours)(w)
        if i == 2:
            assert made == []
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(jaxs_way(by_hand)(w)), strict=True):
            assert jnp.allclose(a, b, rtol=1e-4, atol=1e-5)


def test_the_body_runs_once_for_all_values_of_what_is_differentiated() -> None:
    def loss(w: Any) -> Any:
        def body(c: Any, x: Any) -> Any:
            RUNS[0] += 1
            return c * w + x, None

        return transform.scan(body, INIT, XS)[0]

    for w in (1.0, 2.0, 3.0):
        transform.grad(loss)(w)
    assert RUNS == [1]


def test_a_change_of_anything_else_that_the_body_closes_over_is_seen() -> None:
    def loss(w: Any, factor: float) -> Any:
        pair = [w, factor]
        return transform.scan(lambda c, x: (c * pair[0] * pair[1] + x, None), INIT, XS)[0]

    for factor in (1.0, 2.0, 1.0):
        expected = jax.grad(lambda w, k=factor: jax.lax.scan(lambda c, x: (c * w * k + x, None), INIT, XS)[0])(0.5)
        assert jnp.allclose(transform.grad(loss)(0.5, factor), expected)


def test_python_cannot_decide_on_what_is_differentiated_as_in_jax() -> None:
    for grad, scan in ((transform.grad, transform.scan), (jax.grad, jax.lax.scan)):
        with pytest.raises(jax.errors.ConcretizationTypeError):
            grad(lambda w, scan=scan: scan(lambda c, x: (c * float(w) + x, None), INIT, XS)[0])(0.5)
