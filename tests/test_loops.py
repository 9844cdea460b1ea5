"""Loops: written states ride in the carry, read ones are constants of the loop."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import statetransform as st
from statetransform import Param, State, transform

from .cases import assert_same


@pytest.mark.parametrize("options", [{}, {"reverse": True}, {"unroll": 3}, {"unroll": True}, {"length": 5}], ids=str)
def test_scan_takes_the_options_of_jax(options: dict[str, Any], wrap: Any) -> None:
    u = State(jnp.float32(1), name="u")
    xs = {"a": jnp.arange(5.0), "b": jnp.ones((5, 2))}

    def body(c: Any, x: Any) -> Any:
        u.value = u.value * 0.5 + x["a"]
        return c + u.value, (u.value, x["b"] * c)

    def twin(carry: Any, x: Any) -> Any:
        c, u = carry
        u = u * 0.5 + x["a"]
        return (c + u, u), (u, x["b"] * c)

    f = wrap(lambda xs: transform.scan(body, jnp.float32(0), xs, **options))
    value = u.value
    for _ in range(2):
        (c, value), ys = jax.lax.scan(twin, (jnp.float32(0), value), xs, **options)
        assert_same(f(xs), (c, ys))
        assert_same(u.value, value)


@pytest.mark.parametrize("n", [0, 1, 7])
def test_for_loop_stacks_what_each_step_returns(n: int, wrap: Any) -> None:
    u, w = State(jnp.float32(0), name="u"), Param(jnp.float32(2), name="w")

    def step(t: Any, x: Any) -> Any:
        u.value = u.value + w.value * x
        return {"u": u.value, "t": t}

    f = wrap(lambda ts, xs: transform.for_loop(step, ts, xs))
    out = f(jnp.arange(n), jnp.ones(n))
    assert out["u"].tolist() == [2.0 * (i + 1) for i in range(n)]
    assert out["t"].tolist() == list(range(n))
    assert u.value == 2.0 * n
    assert transform.for_loop(lambda: step(0, 1.0)["u"], length=2).tolist() == [2.0 * (n + 1), 2.0 * (n + 2)]
    assert transform.for_loop(lambda x: None, jnp.arange(3)) is None
    assert transform.for_loop(lambda x: step(0, x)["u"], jnp.arange(1.0, 3.0), reverse=True).tolist() == [
        2.0 * n + 10,
        2.0 * n + 8,
    ]


@pytest.mark.parametrize("bounds", [(0, 0), (2, 5), (5, 2), (-2, 2)])
@pytest.mark.parametrize("is_traced", [False, True])
def test_fori_loop_with_static_and_traced_bounds(bounds: tuple[int, int], is_traced: bool) -> None:
    n = State(jnp.int32(0), name="n")

    def body(i: Any, c: Any) -> Any:
        n.value = n.value + i
        return c + 1

    f = lambda lower, upper: transform.fori_loop(lower, upper, body, 0)
    count = (transform.jit(f) if is_traced else f)(*bounds)
    assert count == max(0, bounds[1] - bounds[0])
    assert n.value == sum(range(*bounds))


def test_a_while_loop_sees_in_its_condition_what_its_body_wrote(wrap: Any) -> None:
    energy, limit, steps = State(jnp.float32(100)), State(jnp.float32(10)), State(0)

    def body(c: Any) -> Any:
        energy.value = energy.value / 2
        steps.value = steps.value + 1
        return c

    f = wrap(lambda: transform.while_loop(lambda c: energy.value > limit.value, body, 0))
    f()
    assert (energy.value, steps.value) == (6.25, 4)
    f()
    assert steps.value == 4
    limit.value = jnp.float32(1)
    f()
    assert (energy.value, steps.value) == (0.78125, 7)


@pytest.mark.parametrize("value", [0, 0.0, True, 1j, np.float32(0), np.zeros(2), np.int8(0), jnp.zeros((0,))], ids=repr)
@pytest.mark.parametrize("delta", [1, 0.5, np.float32(1), jnp.bfloat16(1), jnp.int32(1)], ids=repr)
def test_a_carried_state_is_typed_as_a_carry_of_jax(value: Any, delta: Any) -> None:
    s = State(value, name="s")

    def body(c: Any, _: Any) -> Any:
        s.value = s.value + delta
        return c, None

    twin = lambda: jax.lax.scan(lambda c, _: (c + delta, None), value, None, length=3)[0]
    try:
        reference = twin()
    except TypeError:
        with pytest.raises(st.StateStructureError, match="State 's'"):
            transform.scan(body, None, None, length=3)
        assert s.value is value
    else:
        transform.scan(body, None, None, length=3)
        assert (s.value.dtype, s.value.weak_type) == (reference.dtype, reference.weak_type)
        assert jnp.array_equal(s.value, reference)


def test_a_state_that_is_only_read_is_a_constant_of_the_loop_and_not_carried() -> None:
    w, u = State(jnp.zeros((64, 64)), name="w"), State(jnp.zeros(64), name="u")

    def body(c: Any, _: Any) -> Any:
        u.value = w.value @ u.value + c
        return c, None

    jaxpr = transform.make_jaxpr(lambda: transform.scan(body, 1.0, None, length=5))()
    (scan,) = [eqn for eqn in jaxpr.jaxpr.eqns if eqn.primitive.name == "scan"]
    assert (64,) in [var.aval.shape for var in scan.outvars]
    assert (64, 64) not in [var.aval.shape for var in scan.outvars]


@pytest.mark.parametrize("is_disabled", [False, True])
def test_an_object_in_a_carry_stays_the_same(is_disabled: bool) -> None:
    a, b = State(jnp.float32(1), name="a"), State(jnp.float32(2), name="b")
    swap = lambda c: (c[1], c[0], c[2] + c[0].value)
    with jax.disable_jit(is_disabled):
        for where, loop in {
            "scan": lambda body: transform.scan(lambda c, x: (body(c), x), (a, b, 0.0), jnp.arange(3))[0],
            "fori_loop": lambda body: transform.fori_loop(0, 3, lambda i, c: body(c), (a, b, 0.0)),
            "while_loop": lambda body: transform.while_loop(lambda c: c[2] < 3, body, (a, b, 0.0)),
        }.items():
            assert loop(lambda c: (*c[:2], c[2] + c[0].value)) == (a, b, 3.0)
            if is_disabled:  # a loop of Python's
                continue
            with pytest.raises(st.StateStructureError, match=rf"(?s){where}.*on entry: State 'a'.*after.*'b'"):
                loop(swap)


def test_associative_scan_reads_states() -> None:
    w = State(jnp.float32(2), name="w")
    f = lambda a, b: a + b * (w.value - 1.0)
    xs = jnp.arange(8.0)
    for reverse in (False, True):
        out = transform.associative_scan(f, xs, reverse=reverse)
        assert_same(out, jax.lax.associative_scan(lambda a, b: a + b, xs, reverse=reverse))
    assert transform.grad(lambda: transform.associative_scan(f, xs).sum(), states=w)() != 0.0


def test_what_map_says_is_about_map() -> None:
    s = State(jnp.zeros(3), name="s")
    with pytest.raises(st.StateStructureError, match=r"^map: .*'s'"):
        transform.map(lambda x: setattr(s, "value", jnp.zeros(2)), jnp.arange(2.0))


def test_a_loop_in_python_leaves_the_arrays_of_the_caller_alone() -> None:
    mine = np.zeros(2)

    def body(carry: Any) -> Any:
        i, x = carry
        x += 1
        return i + 1, x

    with jax.disable_jit():
        i, x = transform.while_loop(lambda carry: carry[0] < 2, body, (0, mine))
    assert mine.tolist() == [0.0, 0.0] and x.tolist() == [2.0, 2.0] and isinstance(i, jax.Array)


@pytest.mark.parametrize("derive", [transform.grad, transform.value_and_grad, transform.jacrev, transform.hessian])
def test_the_gradient_of_a_plain_while_loop_says_what_to_write(derive: Any) -> None:
    with pytest.raises(ValueError, match="Reverse-mode") as info:
        derive(lambda x: transform.while_loop(lambda c: c < 20.0, lambda c: c * 1.5, x))(1.0)
    notes = "\n".join(info.value.__notes__)
    assert "checkpoint=20" in notes
    assert notes.count("policies.loops(20)") == 1


@pytest.mark.parametrize("wrap", [transform.jit, transform.checkpoint, transform.named_call])
def test_so_does_a_transform_around_a_gradient_of_jax_and_a_loop_of_jax(wrap: Any) -> None:
    halved = lambda x: jax.lax.while_loop(lambda x: x > 1.0, lambda x: x / 2, x)
    with pytest.raises(ValueError, match="Reverse-mode") as info:
        wrap(lambda x: jax.grad(halved)(x))(5.0)
    assert "\n".join(info.value.__notes__).count("policies.loops(20)") == 1


@pytest.mark.parametrize("wrap", [lambda f: f, transform.jit], ids=["eager", "jit"])
def test_branches_of_different_types_are_named_with_their_types_and_places(wrap: Any) -> None:
    u = State(jnp.ones(3), name="u")

    def first(x: Any) -> Any:
        return u.value * x

    def second(x: Any) -> Any:
        return {"y": x}

    said = r"(?s)true_fun: float32\[3\]   \(first at test_loops.py:\d+\).*"
    said += r"false_fun: \{'y': float32\[\]\}   \(second at"
    with pytest.raises(TypeError, match=said) as info:
        wrap(lambda x: transform.cond(x > 0, first, second, x))(1.0)
    assert "_branches.py" not in str(info.value)
    with pytest.raises(TypeError, match=r"(?s)branch 0: float32\[3\].*branch 1: float32\[1\]"):
        wrap(lambda x: transform.switch(0, [first, lambda x: x[None]], x))(1.0)


def test_objects_are_no_arrays_to_loop_over() -> None:
    with pytest.raises(
        ValueError, match=r"pass `xs`, .*`xs` has none: states, and objects that hold states, are passed w"
    ):
        transform.scan(lambda carry, x: (carry, x.value), 0.0, State(jnp.ones(3)))
