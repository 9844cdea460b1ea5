"""What a rule reads: the states as they are at its call, also those that its function does not read."""

from __future__ import annotations

import types
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import statetransform as st
from statetransform import State, transform

from .functions import JITTED, LATE, WAYS, X, counted


def test_a_backward_rule_sees_what_the_forward_rule_saw(w: State) -> None:
    f = transform.custom_vjp(lambda x: w.value * x)
    f.defvjp(lambda x: (w.value * x, None), lambda _, ct: (100 * w.value * ct,))
    _, pull = transform.vjp(f, X)
    w.value = jnp.float32(7)
    assert pull(jnp.float32(1)) == (300.0,)


@pytest.mark.parametrize("way", WAYS)
def test_a_backward_rule_that_reads_what_the_call_wrote_is_refused_by_name(way: str, w: State, n: State) -> None:
    f = transform.custom_vjp(lambda x: counted(n, x))
    f.defvjp(lambda x: (counted(n, x), None), lambda _, ct: (n.value * ct,))
    said = r"backward rule reads State 'n' .*\n.*[Pp]ass the value in the residuals"
    with pytest.raises(st.StateTraceError, match=said):
        WAYS[way](f)(X)
    assert n.value == (way == "vjp")  # there the forward pass is a call of its own


def forward_reads(w: State) -> Any:
    f = transform.custom_vjp(lambda x: x)
    f.defvjp(lambda x: (x, w.value), lambda w, ct: (10 * w * ct,))
    return f


def backward_reads(w: State) -> Any:
    f = transform.custom_vjp(lambda x: x)
    f.defvjp(lambda x: (f(x), None), lambda _, ct: (10 * w.value * ct,))  # the forward rule calls the function
    return f


def compiled_backward_reads(w: State) -> Any:
    f = transform.custom_vjp(lambda x: 10 * w.value * x)
    f.defvjp(lambda x: (10 * w.value * x, None), lambda _, ct: (jax.jit(lambda ct: 10 * w.value * ct)(ct),))
    return f


def jvp_reads(w: State) -> Any:
    f = transform.custom_jvp(lambda x: x)
    f.defjvp(lambda primals, tangents: (primals[0], 10 * w.value * tangents[0]))
    return f


@pytest.mark.parametrize(
    ("way", "static"),
    [(way, False) for way in WAYS | JITTED] + [(way, True) for way in ("grad", "jit of grad", "grad of scan")],
)
@pytest.mark.parametrize("make", [forward_reads, backward_reads, compiled_backward_reads, jvp_reads])
def test_a_rule_may_read_what_its_function_does_not(way: str, make: Any, static: bool) -> None:
    w = State(1.0, static=static, name="w")
    f = make(w)
    g = (WAYS | JITTED)[way](lambda x: f(x))
    for i in (2.0, 3.0, 4.0):
        w.value = i
        assert g(X) == 10 * i


def test_rules_of_rules_may_read_states_for_two_derivatives_and_are_refused_by_name_for_the_third(w: State) -> None:
    inner, f, g = backward_reads(w), transform.custom_vjp(lambda x: x), transform.custom_vjp(lambda x: x)
    f.defvjp(lambda x: (x, x), lambda x, ct: (inner(x) * ct,))
    g.defvjp(lambda x: (x, x), lambda x, ct: (f(x) * ct,))
    assert transform.grad(transform.grad(transform.jit(f)))(X) == 30.0
    second = transform.grad(transform.grad(transform.jit(g)))
    assert second(X) == 2.0
    with pytest.raises(st.StateTraceError, match="The derivative rule reads Param 'w'"):
        transform.grad(second)(X)


def test_a_function_whose_rule_calls_it_has_a_second_derivative(w: State) -> None:
    f = transform.custom_vjp(lambda x: x**2)
    f.defvjp(lambda x: (f(x), x), lambda x, ct: (w.value * f(x) * ct,))
    for i in (2.0, 3.0):
        w.value = jnp.float32(i)
        assert transform.grad(transform.grad(transform.jit(f)))(X) == i * i * X**2


def test_a_function_that_was_traced_within_a_rule_is_traced_again_on_its_own(w: State) -> None:
    f = backward_reads(w)
    g = first = transform.jit(lambda x, f=f: f(x))
    for _ in range(2):  # within rules of rules, its own are not looked at
        f = transform.custom_vjp(lambda x: x)
        f.defvjp(lambda x, g=g: (g(x), None), lambda _, ct: (ct,))
        g = transform.jit(lambda x, f=f: f(x))
    assert g(X) == X
    assert transform.grad(first)(X) == 30.0


@pytest.mark.parametrize("kind", ["custom_vjp", "custom_jvp"])
@pytest.mark.parametrize("way", ["grad", "jit of grad", "grad in lanes", *LATE, *JITTED])
def test_a_state_as_an_argument_is_the_one_that_the_rule_reads(way: str, kind: str, w: State) -> None:
    f = getattr(transform, kind)(lambda u, x: x)
    if kind == "custom_vjp":
        f.defvjp(lambda u, x: (x, None), lambda _, ct: (None, ct * w.value))
    else:
        f.defjvp(lambda primals, tangents: (primals[1], tangents[1] * primals[0].value))
    assert (WAYS | JITTED)[way](lambda x: f(w, x))(X) == 3.0


def test_a_rule_reads_the_states_of_the_call_when_they_were_replaced() -> None:
    layer = types.SimpleNamespace()
    f = transform.custom_vjp(lambda x: layer.w.value * x)
    f.defvjp(lambda x: (layer.w.value * x, x), lambda x, ct: (ct * x * layer.w.value * layer.v.value,))
    loop = lambda x: transform.scan(lambda c, _: (f(c), None), x, length=1)[0]
    for make in (lambda: transform.grad(loop), lambda: transform.jit(transform.grad(loop))):
        for w, v in ((2.0, 3.0), (5.0, 7.0)):
            layer.w, layer.v = State(w), State(v)
            assert make()(X) == 2 * w * v
