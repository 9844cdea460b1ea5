"""Scenes that somebody lost a week to; the reference is always the hand-threaded program."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import statetransform as st
from statetransform import Param, RandomState, State, inspect, policies, transform

ck = transform.checkpoint


def test_a_checkpointed_function_sees_an_outside_write_without_a_new_trace() -> None:
    s, runs = State(1.0, name="s"), [0]

    def f(x: Any) -> Any:
        runs[0] += 1
        return s.value * x

    g = ck(f)
    assert g(1.0) == 1.0
    s.value = 5.0
    assert g(1.0) == 5.0
    assert transform.grad(g)(1.0) == 5.0
    assert transform.jit(g)(1.0) == 5.0
    assert runs == [1]


def test_the_gradient_through_four_steps_counts_four() -> None:
    n = State(jnp.int32(0), name="n")

    @ck
    def step(x: Any) -> Any:
        n.value += 1
        return jnp.sin(x) * n.value

    def loss(x: Any) -> Any:
        for _ in range(4):
            x = step(x)
        return x

    def twin(x: Any) -> Any:
        for i in range(1, 5):
            x = jnp.sin(x) * i
        return x

    assert jnp.allclose(transform.grad(loss)(1.0), jax.grad(twin)(1.0))
    assert n.value == 4
    assert jnp.allclose(transform.jit(transform.grad(loss))(1.0), jax.grad(lambda x: twin(x))(1.0)) or n.value == 8
    assert n.value == 8


def test_a_body_that_raises_leaves_both_states_and_the_corrected_call_works() -> None:
    a, b = State(1.0), State(2.0)

    def f(x: Any) -> Any:
        a.value, b.value = 10.0, 20.0
        return x if x.ndim == 0 else [][0]

    with pytest.raises(IndexError):
        ck(f)(jnp.ones(2))
    assert (a.value, b.value) == (1.0, 2.0)
    ck(f)(1.0)
    assert (a.value, b.value) == (10.0, 20.0)


def test_a_new_shape_of_a_state_is_seen() -> None:
    s = State(jnp.ones(1))
    f = ck(lambda x: x * s.value.shape[0])
    assert f(1.0) == 1.0
    s.value = jnp.ones(5)
    assert f(1.0) == 5.0


def test_one_state_passed_twice_is_one_state() -> None:
    m = State(jnp.int32(0), name="m")

    def inc(s: State) -> None:
        s.value += 1

    for wrap in (ck, transform.jit, transform.named_call):
        m.value = jnp.int32(0)
        f = wrap(lambda a, b: inc(a) or inc(b))
        f(m, m)
        assert m.value == 2
        other = State(jnp.int32(0))
        f(m, other)
        assert (m.value, other.value) == (3, 1)
        f({"deep": [m]}["deep"][0], m)
        assert m.value == 5


def test_a_static_list_that_is_mutated_is_never_the_old_result() -> None:
    f, sizes = ck(lambda x, sizes: x * len(sizes), static_argnums=1), [1]
    with pytest.raises(TypeError, match="sizes"):
        f(1.0, sizes)


def test_a_cond_inside_checkpoint_keeps_what_it_does_not_write() -> None:
    a = State(jnp.float32(1), name="a")

    def write(x: Any) -> Any:
        a.value = a.value * x
        return a.value

    f = ck(lambda p, x: transform.cond(p, write, lambda x: a.value + x, x))
    assert (f(True, 3.0), a.value) == (3.0, 3.0)
    assert (f(False, 3.0), a.value) == (6.0, 3.0)
    assert transform.grad(f, argnums=1)(True, 2.0) == 3.0
    assert a.value == 6.0


def test_an_undeclared_state_under_vmap_keeps_its_shape_or_is_named() -> None:
    n, u = State(jnp.int32(0), name="n"), State(jnp.float32(0), name="u")

    def count(x: Any) -> Any:
        n.value += 1
        return x

    f = transform.vmap(ck(count))
    for i in range(1, 4):
        f(jnp.ones(5))
        assert n.value.shape == ()
        assert n.value == i

    def bad(x: Any) -> Any:
        u.value = u.value + x
        return x

    g = transform.vmap(ck(bad))
    for _ in range(3):
        with pytest.raises(st.StateAxisError, match="State 'u'"):
            g(jnp.ones(5))
        assert u.value.shape == ()


LENGTHS = [0, 1, 7, 4097]


@pytest.mark.parametrize("n", LENGTHS)
def test_loops_of_any_length(n: int) -> None:
    w, u = Param(jnp.float32(0.5), name="w"), State(jnp.float32(0), name="u")

    def body(c: Any, t: Any) -> Any:
        u.value = u.value + c * 1e-3
        return c * 0.99 + w.value * 1e-3, u.value

    def loop(x: Any) -> Any:
        return transform.scan(body, x, jnp.arange(n))[0]

    def twin(x: Any, w: Any) -> Any:
        def body(carry: Any, t: Any) -> Any:
            c, u = carry
            u = u + c * 1e-3
            return (c * 0.99 + w * 1e-3, u), u

        (c, u), _ = jax.lax.scan(body, (x, jnp.float32(0)), jnp.arange(n))
        return c, u

    out, (gw, gx) = transform.value_and_grad(loop, argnums=0, states=w)(jnp.float32(1))
    (ref, u_ref), (rx, rw) = jax.value_and_grad(twin, argnums=(0, 1), has_aux=True)(jnp.float32(1), w.value)
    assert (out, gx, gw) == (ref, rx, rw)
    assert u.value == u_ref


def test_second_derivatives_and_forward_mode_through_a_loop_with_a_closed_over_value() -> None:
    u = State(jnp.float32(1), name="u")
    loop = lambda w: transform.scan(lambda c, _: (jnp.sin(c * u.value) + w, None), w, None, length=5)[0]
    twin = lambda w: jax.lax.scan(lambda c, _: (jnp.sin(c) + w, None), w, None, length=5)[0]
    assert jnp.allclose(transform.grad(transform.grad(loop))(0.3), jax.grad(jax.grad(twin))(0.3))
    assert jnp.allclose(transform.jvp(loop, (0.3,), (1.0,))[1], jax.jvp(twin, (0.3,), (1.0,))[1])
    assert jnp.allclose(transform.hessian(loop)(0.3), jax.hessian(twin)(0.3))


def test_a_while_loop_whose_condition_is_false_at_once_and_frozen_lanes() -> None:
    n = State(jnp.int32(7), name="n")

    def body(c: Any) -> Any:
        n.value += 1
        return c + 1

    assert transform.while_loop(lambda c: c < 0, body, 0) == 0
    assert n.value == 7
    lanes = transform.vmap(lambda stop: transform.while_loop(lambda c: c < stop, lambda c: c + 1, 0))
    assert lanes(jnp.arange(4)).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("is_compiled", [False, True])
def test_dropout_under_checkpoint_agrees_in_mask_gradient_and_key(is_compiled: bool) -> None:
    results = []
    for wrap in (lambda f: f, ck):
        rng = RandomState(0, name="rng")

        def f(x: Any, rng: RandomState = rng) -> Any:
            return jnp.where(jax.random.bernoulli(rng.split(), 0.5, x.shape), jnp.sin(x), 0.0).sum()

        g = transform.grad(wrap(lambda x, f=f: f(x)))
        g = transform.jit(g) if is_compiled else g
        with jax.debug_key_reuse(True):
            first, second = g(jnp.ones(16)), g(jnp.ones(16))
        results.append((first.tolist(), second.tolist(), jax.random.key_data(rng.key).tolist()))
        assert first.tolist() != second.tolist()
    assert results[0] == results[1]


def test_a_state_may_grow_in_checkpoint_but_not_in_a_carry() -> None:
    s = State({"a": jnp.float32(1)}, name="s")

    def grow(x: Any) -> Any:
        s.value = {**s.value, "b": x}
        return x

    ck(grow)(2.0)
    assert s.value == {"a": 1.0, "b": 2.0}
    s.value = {"a": jnp.float32(1)}
    with pytest.raises(st.StateStructureError, match="State 's'"):
        transform.scan(lambda c, _: (grow(c), None), 1.0, None, length=2)


def test_a_mutable_jax_reference_is_right_or_refused_in_checkpoint() -> None:
    r = jax.new_ref(jnp.float32(1))

    def f(y: Any, r: Any) -> Any:
        out = y * r[...]
        r[...] += 1.0
        return out

    try:
        gradient = transform.grad(ck(f))(1.0, r)
    except Exception:
        assert r[...] == 1.0
    else:
        assert (gradient, r[...]) == (1.0, 2.0)


def test_a_policy_for_a_name_that_nobody_bears_warns_at_the_users_line_and_lists_the_names() -> None:
    """Scene 15."""
    s = State(2.0, name="s")

    @ck(policy=policies.save_only_these_names("Act"))
    def f(x: Any) -> Any:
        return jnp.cos(transform.checkpoint_name(jnp.sin(x * s.value), "act"))

    with pytest.warns(policies.PolicyWarning, match=r"The names seen are .act.\. Did you mean .act.\?") as caught:
        f(1.0)
    assert caught[0].filename == __file__


def test_why_was_this_traced_again() -> None:
    """Scene 17."""
    u = State(jnp.zeros(3), name="u")
    f = transform.jit(lambda x: u.value * x)
    f(1.0), f(2.0)
    u.value = jnp.zeros(5)
    f(1.0)
    report = str(inspect.explain_retrace(f))
    assert "traced 2 times" in report
    assert "float32[3]" in report.splitlines()[-1] and "float32[5]" in report.splitlines()[-1]


@pytest.mark.parametrize("flag", [False, True])
def test_checkpoint_does_not_depend_on_the_new_remat(flag: bool, request: pytest.FixtureRequest) -> None:
    if flag:
        request.getfixturevalue("remat3")
    s, n = State(jnp.float32(2), name="s"), State(jnp.int32(0), name="n")

    @transform.checkpoint
    def f(x: Any) -> Any:
        n.value += 1
        return jnp.sin(s.value * x)

    g = transform.jit(transform.grad(f))
    assert jnp.allclose(g(1.0), 2 * jnp.cos(2.0))
    assert jnp.allclose(transform.grad(f)(1.0), 2 * jnp.cos(2.0))
    s.value = jnp.float32(0)
    assert g(1.0) == 0 and n.value == 3


def test_the_equation_count_is_that_of_the_twin() -> None:
    w, u = Param(jnp.float32(2)), State(jnp.zeros(3))

    def f(x: Any) -> Any:
        u.value = u.value * w.value + x
        return u.value.sum()

    def twin(w: Any, u: Any, x: Any) -> Any:
        u = u * w + x
        return u.sum(), u

    ours = transform.make_jaxpr(transform.grad(ck(f)))(1.0)
    reference = jax.make_jaxpr(lambda w, u, x: jax.grad(lambda x: jax.checkpoint(twin)(w, u, x), has_aux=True)(x))(
        w.value, u.value, 1.0
    )
    assert [str(e.primitive) for e in ours.jaxpr.eqns] == [str(e.primitive) for e in reference.jaxpr.eqns]
    assert len(ours.jaxpr.outvars) == 2
