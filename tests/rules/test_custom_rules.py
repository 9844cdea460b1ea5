"""`custom_vjp` and `custom_jvp` run the function where JAX does, with the states as they are then."""

from __future__ import annotations

import collections
import types
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from statetransform import State, transform

from .functions import WAYS, X, by_jvp, by_vjp


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("make", [by_vjp, by_jvp])
def test_a_rule_reads_and_writes_states_at_every_call(make: Any, way: str, w: State, n: State) -> None:
    f = WAYS[way](make(w, n))
    for i in range(1, 4):
        w.value = jnp.float32(i)
        assert f(X) == 10.0 * i
        assert n.value == i and n.value.shape == ()
    with jax.checking_leaks():
        assert WAYS[way](make(w, n))(X) == 30.0


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
def test_second_derivatives_are_those_of_states_passed_as_arguments(compiled: bool, w: State, n: State) -> None:
    f = by_vjp(w, n)
    twin = jax.custom_vjp(lambda w, x: w * x)
    twin.defvjp(lambda w, x: (w * x, w), lambda w, ct: (0.0, 10 * ct * w))
    wrap = transform.jit if compiled else lambda f: f
    ones = jnp.ones(3)
    lanes = lambda x: transform.vmap(f)(x).sum()
    assert wrap(transform.grad(lambda: transform.grad(f)(X), states=w))() == 10.0
    assert jax.grad(lambda w: jax.grad(twin, 1)(w, X))(w.value) == 10.0
    assert wrap(transform.grad(lambda: transform.vmap(transform.grad(f))(ones).sum(), states=w))() == 30.0
    assert wrap(transform.grad(lambda: transform.grad(lanes)(ones).sum(), states=w))() == 30.0
    assert wrap(transform.hessian(f))(X) == 0.0


RAW_WAYS: dict[str, Callable[[Any, Any], Any]] = {
    "grad": lambda t, f: t.grad(f),
    "jit of grad": lambda t, f: t.jit(t.grad(f)),
    "jit of grad of jit": lambda t, f: t.jit(t.grad(t.jit(f))),
    "jit of grad in lanes": lambda t, f: t.jit(lambda x: t.vmap(t.grad(f))(x[None])[0]),
    "jit of grad of lanes": lambda t, f: t.jit(t.grad(lambda x: t.vmap(f)(x[None])[0])),
    "jit of grad of checkpoint": lambda t, f: t.jit(t.grad(t.checkpoint(f))),
    "jit of grad of what is not moved": lambda t, f: t.jit(t.grad(lambda x: f(jnp.sin(1.0)) * x)),
    "jit of hessian": lambda t, f: t.jit(t.hessian(f)),
    "jit of vjp": lambda t, f: t.jit(lambda x: t.vjp(f, x)[1](x)),
}


@pytest.mark.parametrize("way", RAW_WAYS)
@pytest.mark.parametrize("kind", ["custom_vjp", "custom_jvp"])
def test_a_function_and_its_rule_run_as_often_as_in_jax(kind: str, way: str, w: State) -> None:
    def runs_of(library: Any, w: Any) -> tuple[collections.Counter[str], Any]:
        runs = collections.Counter[str]()

        def says(name: str, out: Any) -> Any:
            runs[name] += 1
            return out

        f = getattr(library, kind)(lambda x: says("f", w.value * x))
        if kind == "custom_vjp":
            f.defvjp(lambda x: says("forward", (w.value * x, x)), lambda x, ct: says("backward", (10 * ct * x,)))
        else:
            f.defjvp(lambda primals, dots: says("rule", (w.value * primals[0], 10 * primals[0] * dots[0])))
        out = RAW_WAYS[way](library, f)(X)
        return runs, out

    runs, out = runs_of(transform, w)
    jaxs, expected = runs_of(jax, types.SimpleNamespace(value=w.value))
    if way == "jit of grad of what is not moved":  # the function is staged, and its rules with it
        jaxs |= runs
    assert (runs, out) == (jaxs, expected)


def test_symbolic_zeros_say_which_arguments_move(w: State) -> None:
    f = transform.custom_vjp(lambda x, y: x * y * w.value)
    f.defvjp(
        lambda x, y: (x.value * y.value * w.value, (x.value, y.perturbed)),
        lambda res, ct: (ct, ct * res[0] if res[1] else None),
        symbolic_zeros=True,
    )
    for wrap in (lambda f: f, transform.jit):
        assert wrap(transform.grad(f))(X, X) == 1.0
        assert wrap(transform.grad(f, argnums=(0, 1)))(X, X) == (1.0, 2.0)


def test_symbolic_zeros_come_with_the_leaves_of_a_state() -> None:
    w = State({"a": X, "b": X}, name="w")
    f = transform.custom_vjp(lambda x: x * w.value["a"])
    f.defvjp(lambda x: (x.value * w.value["a"], w.value["b"]), lambda b, ct: (10 * ct * b,), symbolic_zeros=True)
    for wrap in (lambda f: f, transform.jit):
        assert wrap(transform.grad(wrap(f)))(X) == 20.0


@pytest.mark.parametrize("way", ["grad", "jit of grad", "grad of jit"])
def test_the_forward_rule_may_be_optimized_away(way: str, w: State) -> None:
    f = transform.custom_vjp(lambda x: x * w.value)
    f.defvjp(lambda x: (x * w.value, w.value), lambda w, ct: (10 * ct * w,), optimize_remat=True)
    assert f(X) == 6.0
    assert WAYS[way](f)(X) == 30.0
