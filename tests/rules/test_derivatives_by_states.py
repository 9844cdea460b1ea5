"""A function with a derivative rule has none for the states that it reads: to differentiate them is an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from statetransform import MemoryBudget, Param, State, StateTraceError, inspect, policies, transform

from .functions import X, by_jvp, by_vjp

READERS: dict[str, Callable[[Any, Any], Any]] = {
    "vjp": lambda w, n: by_vjp(w, n),
    "jvp": lambda w, n: by_jvp(w, n),
    "vjp with flags": lambda w, n: with_flags(w),
    "vjp of an argument that holds it": lambda w, n: lambda x: of_argument()(w, x),
}
AROUND: dict[str, Callable[[Any], Any]] = {
    "itself": lambda f: f,
    "jit": transform.jit,
    "checkpoint": transform.checkpoint,
    "scan": lambda f: lambda x: transform.scan(lambda c, _: (f(c), None), x, length=2)[0],
    "checkpointed scan": lambda f: lambda x: transform.scan(lambda c, _: (f(c), None), x, length=4, checkpoint=2)[0],
    "scan within a budget": lambda f: (
        lambda x: transform.scan(lambda c, _: (f(c), None), x, length=4, checkpoint=MemoryBudget("1203B"))[0]
    ),
    "lanes of a checkpointed scan": lambda f: (
        lambda x: transform.vmap(lambda x: transform.scan(lambda c, _: (f(c), None), x, length=4, checkpoint=2)[0])(
            x[None]
        )[0]
    ),
    "function within a budget": lambda f: transform.checkpoint(f, policy=policies.fit("1204B")),
    "scan with a policy for loops": lambda f: transform.checkpoint(
        lambda x: transform.scan(lambda c, _: (f(c), None), x, length=4)[0], policy=policies.loops(2)
    ),
    "while_loop": lambda f: lambda x: transform.while_loop(lambda c: c < 9.0, f, x, checkpoint=2),
    "cond": lambda f: lambda x: transform.cond(x > 0, f, lambda x: x, x),
    "vmap": lambda f: lambda x: transform.vmap(f)(x[None])[0],
}


def of_argument() -> Any:
    f = transform.custom_vjp(lambda w, x: w.value * x)
    f.defvjp(lambda w, x: (w.value * x, w.value), lambda value, ct: (None, 10 * ct * value))
    return f


def with_flags(w: State) -> Any:
    f = transform.custom_vjp(lambda x: w.value * x)
    f.defvjp(lambda x: (w.value * x.value, None), lambda _, ct: (10 * ct,), symbolic_zeros=True)
    return f


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("reader", READERS)
def test_a_state_that_a_function_with_a_rule_reads_is_not_differentiated(
    reader: str, around: str, w: State, n: State
) -> None:
    f = AROUND[around](READERS[reader](w, n))
    other, expected = Param(jnp.float32(2), name="other"), transform.grad(f)(X)
    values = w.value, n.value
    for taken in (
        transform.grad(f, states=w),
        transform.jit(transform.grad(f, states=w)),
        transform.grad(lambda x: (setattr(w, "value", x), f(X))[1]),
        transform.grad(lambda x: (setattr(w, "value", 3 * x), f(x))[1]),
    ):
        with pytest.raises(StateTraceError, match=r"reads Param 'w' .*is differentiated here.*\nPass the value as an"):
            taken(X)
        assert (w.value, n.value) == values
    # Without a tangent it is as before.
    by_other, by_x = transform.grad(lambda x: f(other.value * x), argnums=0, states=other)(X)
    assert (by_other, by_x) == (X * transform.grad(f)(2 * X), 2 * transform.grad(f)(2 * X))
    assert (
        transform.grad(lambda x: (setattr(w, "value", jax.lax.stop_gradient(w.value + 0 * x)), f(x))[1])(X) == expected
    )


@pytest.mark.parametrize("reader", READERS)
def test_a_loop_within_a_budget_is_planned_with_a_state_that_a_rule_reads(reader: str, w: State, n: State) -> None:
    f = READERS[reader](w, n)
    body = lambda x: x + jnp.sin(f(x))
    loop = lambda x, budget: transform.scan(lambda c, _: (body(c), None), x, length=40, checkpoint=budget)[0]
    plain = transform.grad(loop)(X, None)
    found = transform.jit(transform.grad(lambda x: loop(x, MemoryBudget("1KB"))))(X)
    assert jnp.allclose(found, plain, rtol=1e-5)


@pytest.mark.parametrize("kind", [jax.custom_vjp, jax.custom_jvp])
def test_a_float_that_a_function_with_a_rule_counts_has_no_tangent_in_a_loop(kind: Any) -> None:
    total = State(jnp.float32(0), name="total")

    def add(x: Any) -> Any:
        total.value = total.value + x
        return x * total.value

    f = getattr(transform, kind.__name__)(add)
    if kind is jax.custom_vjp:
        f.defvjp(lambda x: (add(x), None), lambda _, ct: (2 * ct,))
    else:
        f.defjvp(lambda primals, tangents: (add(*primals), 2 * tangents[0]))
    loop = lambda x, checkpoint=None: transform.scan(lambda c, _: (f(c), None), x, length=3, checkpoint=checkpoint)[0]
    for gradient in (
        transform.grad(loop),
        lambda x: transform.grad(loop, argnums=0)(x, 2),
        lambda x: transform.grad(loop, argnums=0)(x, MemoryBudget("1205B")),
        lambda x: transform.vmap(transform.discard_writes(lambda x: transform.grad(loop, argnums=0)(x, 2)))(x[None])[0],
        transform.grad(transform.checkpoint(loop, policy=policies.loops(2))),
        transform.grad(transform.checkpoint(loop, policy=policies.fit("1206B"))),
    ):
        assert transform.jit(gradient)(X) == gradient(X) == 8.0


@pytest.mark.parametrize("kind", [jax.custom_vjp, jax.custom_jvp])
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
def test_what_a_function_with_a_rule_writes_keeps_the_derivatives_of_a_transform_further_out(
    compiled: bool, kind: Any, w: State
) -> None:
    total = State(jnp.float32(0), name="total")

    def add(x: Any) -> Any:
        total.value = w.value * x
        return x

    f = getattr(transform, kind.__name__)(add)
    if kind is jax.custom_vjp:
        f.defvjp(lambda x: (add(x), None), lambda _, ct: (2 * ct,))
    else:
        f.defjvp(lambda primals, tangents: (add(*primals), 2 * tangents[0]))

    def outer(y: Any) -> Any:
        w.value = 3 * y
        transform.grad(transform.jit(f) if compiled else f)(X)
        return total.value

    assert (transform.jit if compiled else lambda f: f)(transform.grad(outer))(X) == 6.0


@pytest.mark.parametrize("around", AROUND)
def test_a_state_that_only_a_rule_reads_has_derivative_zero(around: str, w: State) -> None:
    f = transform.custom_vjp(lambda x: 1.5 * x)
    f.defvjp(lambda x: (1.5 * x, w.value), lambda w, ct: (w * ct,))
    g = AROUND[around](f)
    by_w, by_x = transform.grad(g, argnums=0, states=w)(X)
    twin = jax.custom_vjp(lambda w, x: 1.5 * x)
    twin.defvjp(lambda w, x: (1.5 * x, w), lambda w, ct: (0 * w, w * ct))
    assert by_w == 0.0
    assert jnp.allclose(by_x, jax.grad(lambda x: AROUND[around](lambda x: twin(jnp.float32(3), x))(x))(X))


def test_a_loop_within_a_budget_that_is_not_differentiated_may_move_a_state_that_a_rule_reads(w: State) -> None:
    f = by_vjp(w, State(jnp.int32(0)))

    def body(x: Any, _: Any) -> Any:
        w.value = w.value + 0.5 * x
        return f(x), None

    loop = lambda x, budget: transform.scan(body, x, length=3, checkpoint=budget)[0]
    expected = transform.discard_writes(loop)(X, None)
    assert transform.discard_writes(loop)(X, MemoryBudget("1207B")) == expected
    with pytest.raises(StateTraceError, match="Param 'w'"):
        transform.grad(loop, argnums=0)(X, MemoryBudget("1207B"))


def test_reports_leave_out_states_that_have_no_derivative(w: State, n: State) -> None:
    other = Param(jnp.ones(3), name="other")
    f = by_vjp(w, n)
    loss = lambda x: f((jnp.sin(x) * other.value).sum())
    assert str(inspect.residuals(loss, X)) == str(inspect.residuals(loss, X, argnums=0, states=other))
    with pytest.raises(StateTraceError, match="Param 'w'"):
        inspect.residuals(loss, X, states=w)
