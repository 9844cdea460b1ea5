"""Loops that others wrote: `policies.loops` against the same steps written out."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import statetransform as st
from statetransform import RandomState, State, policies, transform

X = jnp.linspace(0.3, 0.9, 4)


def treated(fun: Callable[..., Any], k: Any = 2) -> Callable[..., Any]:
    return transform.checkpoint(fun, policy=policies.loops(k))


def step(x: Any) -> Any:
    return jnp.sin(x) * 1.2 + 0.1 * x


def repeated(n: int, x: Any) -> Any:
    for _ in range(n):
        x = step(x)
    return x


def by_scan(n: Any, x: Any) -> Any:
    return lax.scan(lambda x, _: (step(x), None), x, None, length=n)[0]


def by_fori(n: Any, x: Any) -> Any:
    return lax.fori_loop(0, n, lambda i, x: step(x), x)


def by_traced_fori(n: Any, x: Any) -> Any:
    return lax.fori_loop(0, jnp.asarray(n), lambda i, x: step(x), x)


def by_while(n: Any, x: Any) -> Any:
    return lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, step(c[1])), (0, x))[1]


LOOPS = {"scan": by_scan, "fori_loop": by_fori, "fori_loop to a traced bound": by_traced_fori, "while_loop": by_while}


@pytest.fixture(params=LOOPS)
def loop(request: pytest.FixtureRequest) -> Any:
    return LOOPS[request.param]


def same(f: Callable[..., Any], g: Callable[..., Any], *args: Any, tolerance: float = 1e-5) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=1e-6), f(*args), g(*args))


@pytest.mark.parametrize("k", [0, 1, 20, st.MemoryBudget("1 MiB")])
def test_value_and_gradient(loop: Any, k: Any) -> None:
    f, written_out = (lambda x: loop(7, x).sum()), (lambda x: repeated(7, x).sum())
    for wrap in (lambda f: f, transform.jit):
        same(wrap(transform.value_and_grad(treated(f, k))), jax.value_and_grad(written_out), X)


@pytest.mark.parametrize("k", ["step", "sqrt", "log"])
@pytest.mark.parametrize("loop", [by_scan, by_fori])
def test_names_where_the_number_of_steps_is_known(loop: Any, k: str) -> None:
    same(transform.grad(treated(lambda x: loop(9, x).sum(), k)), jax.grad(lambda x: repeated(9, x).sum()), X)


def test_forward_mode_and_second_derivatives(loop: Any) -> None:
    f, written_out = treated(functools.partial(loop, 5)), functools.partial(repeated, 5)
    same(lambda x: transform.jvp(f, (x,), (x,)), lambda x: jax.jvp(written_out, (x,), (x,)), X)
    scalar = lambda f: lambda x: (f(x) ** 2).sum()
    same(transform.jit(transform.hessian(scalar(f))), jax.jit(jax.hessian(scalar(written_out))), X, tolerance=1e-4)


def test_lanes_inside_and_outside(loop: Any) -> None:
    xs = jnp.stack([X, 2 * X])
    reference = jax.grad(lambda xs: sum(repeated(5, x).sum() for x in xs))
    same(transform.grad(lambda xs: transform.vmap(treated(functools.partial(loop, 5)))(xs).sum()), reference, xs)
    same(transform.grad(treated(lambda xs: jax.vmap(functools.partial(loop, 5))(xs).sum())), reference, xs)


def test_lanes_inside_that_take_different_numbers_of_steps() -> None:
    halved = lambda x: lax.while_loop(lambda x: x > 1.0, lambda x: x * x / 3, x)
    xs = jnp.array([2.9, 2.0, 1.5, 0.5])
    found = transform.grad(treated(lambda xs: jax.vmap(halved)(xs).sum()))(xs)
    expected = jnp.stack([jax.jacfwd(halved)(x) for x in xs])
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def in_while(f: Callable[[Any], Any], x: Any) -> Any:
    return lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, f(c[1])), (0, x))[1]


def with_vjp(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    ruled = jax.custom_vjp(f)
    ruled.defvjp(lambda x: (f(x), f(x)), lambda kept, ct: (3.0 * ct * f(kept),))
    return ruled


def with_a_loop_of_tangents(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    ruled = jax.custom_jvp(f)

    def rule(primals: Any, dots: Any) -> Any:
        step = lambda c, _: ((jnp.sin(c[0]), jnp.cos(c[0]) * c[1]), c)
        (_, dot), (xs, moved) = lax.scan(step, (f(*primals), dots[0]), None, 3)
        return f(*primals), dot + (jnp.cos(xs) * moved).sum(0)

    ruled.defjvp(rule)
    return ruled


def on_two_devices(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    mesh = jax.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    return jax.jit(jax.shard_map(f, mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P("i")))


def twice(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    f = jax.jit(f)
    return lambda x: f(f(x))


#: What is around the loop.
NESTS: dict[str, Callable[[Any], Any]] = {
    "scan": lambda f: lambda x: lax.scan(lambda c, s: (f(c * s), c.sum()), x, jnp.linspace(1.0, 0.9, 3))[0],
    "cond": lambda f: lambda x: lax.cond(x.sum() > 0, f, jnp.cos, x),
    "switch in jit": lambda f: jax.jit(lambda x: lax.switch(1, [jnp.cos, f], x)),
    "while_loop": lambda f: lambda x: in_while(f, x),
    "two calls of one jit": twice,
    "checkpoint with a policy": lambda f: jax.checkpoint(f, policy=jax.checkpoint_policies.dots_saveable),
    "custom_jvp with a loop of tangents": with_a_loop_of_tangents,
    "custom_vjp": with_vjp,
    "vmap": jax.vmap,
    "shard_map": on_two_devices,
    "linearize": lambda f: lambda x: jax.linearize(f, x)[1](x),
    "jvp": lambda f: lambda x: jax.jvp(f, (x,), (jnp.cos(x),))[1],
}
WRITTEN_OUT = {"while_loop": lambda f: lambda x: f(f(f(x))), "shard_map": lambda f: f}  # where it is not the same


@pytest.mark.parametrize("loop", [by_while, by_scan])
@pytest.mark.parametrize("how", NESTS)
def test_loops_are_found_wherever_they_are(how: str, loop: Any) -> None:
    found = treated(NESTS[how](lambda x: loop(4, x)))
    reference = WRITTEN_OUT.get(how, NESTS[how])(lambda x: repeated(4, x))
    same(transform.grad(lambda x: (found(x) ** 2).sum()), jax.grad(lambda x: (reference(x) ** 2).sum()), X)


@pytest.mark.parametrize("custom_vjp", [jax.custom_vjp, transform.custom_vjp])
def test_loops_in_a_backward_rule_can_be_reversed_again(custom_vjp: Any) -> None:
    ruled = custom_vjp(lambda x: by_while(3, x))
    ruled.defvjp(lambda x: (by_while(3, x), x), lambda x, ct: (ct * by_while(2, x),))
    found = lambda x: transform.grad(treated(ruled))(x)
    same(transform.value_and_grad(found), jax.value_and_grad(functools.partial(repeated, 2)), 0.7)


def test_states_around_and_within() -> None:
    rate, count, rng = State(1.5, name="rate"), State(0, name="count"), RandomState(0)

    @transform.checkpoint(policy=policies.loops(2))
    def simulate(x: Any) -> Any:
        def body(x: Any) -> Any:
            count.value += 1
            return jnp.sin(x * rate.value) + 0.1 * jax.random.normal(rng.split(), x.shape)

        x = transform.for_loop(lambda: None, length=1) or x
        x = lax.while_loop(lambda x: x.sum() > 1e9, lambda x: x * rate.value, x)  # a raw read
        return transform.while_loop(lambda x: count.value < 5, body, x).sum()

    def pure(rate: Any, x: Any) -> Any:
        key = jax.random.key(0)
        for _ in range(5):
            key, used = jax.random.split(key)
            x = jnp.sin(x * rate) + 0.1 * jax.random.normal(used, x.shape)
        return x.sum()

    by_rate, by_x = transform.grad(simulate, argnums=0, states=rate)(X)
    expected = jax.grad(pure, (0, 1))(1.5, X)
    np.testing.assert_allclose(by_rate, expected[0], rtol=1e-5)
    np.testing.assert_allclose(by_x, expected[1], rtol=1e-5)
    assert int(count.value) == 5


def test_a_function_without_loops_stays_as_it_is() -> None:
    f = lambda x: jax.checkpoint(lambda x: lax.cond(x.sum() > 0, jax.nn.gelu, jnp.cos, with_vjp(jnp.square)(x)))(
        x
    ).sum()
    for look in (lambda f: f, jax.value_and_grad):
        ours, plain = (re.sub(r" at 0x[0-9a-f]+", "", str(jax.make_jaxpr(look(g))(X))) for g in (treated(f), f))
        assert ours == plain


def test_complex_values(loop: Any) -> None:
    """As in spectral solvers, around loops and in their carries; JAX's own checkpoints cannot keep such a value."""

    def spectral(run: Callable[..., Any]) -> Callable[[Any], Any]:
        wave = lambda z: jnp.exp(1j * z) * (1 + z)
        return lambda x: jnp.abs(wave(run(5, wave(x)))).sum()

    same(jax.grad(treated(spectral(loop))), jax.grad(spectral(repeated)), X)


def evaluations(f: Callable[..., Any], *args: Any) -> int:
    """How many steps a gradient evaluates."""
    said: list[int] = []
    note = lambda: jax.debug.callback(lambda: said.append(1))
    jax.block_until_ready(transform.grad(lambda *args: f(note, *args))(*args))
    jax.effects_barrier()
    return len(said)


def test_steps_are_evaluated_as_often_as_in_loops_of_this_package() -> None:
    def ours(note: Any, x: Any) -> Any:
        body = lambda c: (note(), (c[0] + 1, step(c[1])))[1]
        x = transform.while_loop(lambda c: c[0] < 20, body, (0, x), checkpoint=3)[1]
        return transform.scan(lambda x, _: (note(), (step(x), None))[1], x, length=20, checkpoint=3)[0].sum()

    def theirs(note: Any, x: Any) -> Any:
        x = lax.while_loop(lambda c: c[0] < 20, lambda c: (note(), (c[0] + 1, step(c[1])))[1], (0, x))[1]
        return lax.scan(lambda x, _: (note(), (step(x), None))[1], x, length=20)[0].sum()

    assert evaluations(lambda note, x: treated(functools.partial(theirs, note), 3)(x), X) == evaluations(ours, X)


@pytest.mark.optimized
def test_memory_is_that_of_the_stored_carries(loop: Any) -> None:
    x = jnp.ones(10_000)
    f = treated(lambda x: loop(200, x).sum(), 5)
    compiled = transform.jit(transform.grad(f)).lower(x).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 20 * x.nbytes


def test_a_loop_with_a_number_of_its_own_keeps_it() -> None:
    f = lambda note, x: transform.scan(lambda x, _: (note(), (step(x), None))[1], x, length=20, checkpoint=3)[0].sum()
    assert evaluations(lambda note, x: treated(functools.partial(f, note), 0)(x), X) == evaluations(f, X)


def test_loops_without_floating_point_stay() -> None:
    f = lambda n, x: x * lax.while_loop(lambda i: i * i < n, lambda i: i + 1, 0)
    assert "custom_jvp" not in str(jax.make_jaxpr(treated(f))(10, 2.0))
    assert float(transform.grad(treated(f), argnums=1)(10, 2.0)) == 4.0


def test_a_budget_is_for_each_loop() -> None:
    budget = st.MemoryBudget(1033)  # no other test's: equal budgets share their choices
    transform.grad(treated(lambda x: (by_while(40, x) + by_scan(400, x)).sum(), budget))(X)
    assert [choice.n for choice in budget.choices] == [None, 400]


def test_loops_in_one_step_share_half_of_the_budget() -> None:
    budget, half = st.MemoryBudget("64 KiB"), st.MemoryBudget("32 KiB")
    f = treated(lambda x: in_while(functools.partial(by_while, 4), x).sum(), budget)
    same(transform.grad(f), jax.grad(lambda x: repeated(12, x).sum()), X)
    assert max(budget.choices[-1].bytes, 2 * half.choices[-1].bytes) <= budget.bytes
    both = lambda x: by_while(4, by_while(4, x))
    f = treated(lambda x: lax.scan(lambda x, _: (both(x), None), x, length=3)[0].sum(), budget)
    same(transform.grad(f), jax.grad(lambda x: repeated(24, x).sum()), X)
    assert budget.choices[-1].n == 3
    assert budget.choices[-1].bytes <= budget.bytes


def test_an_effect_in_order_is_refused_in_a_while_loop_and_leaves_a_scan_as_it_is() -> None:
    def printed(x: Any) -> Any:
        jax.debug.print("{}", x, ordered=True)
        return x * x

    endless = treated(lambda x: lax.while_loop(lambda x: x < 9.0, printed, x))
    with pytest.raises(TypeError, match=r"the while_loop at test_others.py:\d+ has an effect .* \(OrderedDebug\)"):
        transform.grad(endless)(2.0)
    scanned = treated(lambda x: lax.scan(lambda x, _: (printed(x), None), x, length=2)[0])
    with pytest.warns(policies.PolicyWarning, match=r"the scan at test_others.py:\d+ keeps all its residuals"):
        assert float(transform.grad(scanned)(2.0)) == 32.0


def test_a_name_for_a_while_loop_is_refused_where_it_is_reversed() -> None:
    named = treated(lambda x: by_while(5, x).sum(), "sqrt")
    np.testing.assert_allclose(named(X), repeated(5, X).sum(), rtol=1e-6)
    same(lambda x: transform.jvp(named, (x,), (x,)), lambda x: jax.jvp(lambda x: repeated(5, x).sum(), (x,), (x,)), X)
    with pytest.raises(ValueError, match=r"loops\('sqrt'\): .* of the while_loop at test_others.py:\d+ is not known"):
        transform.grad(named)(X)


def test_it_is_for_checkpoint_alone() -> None:
    assert repr(policies.loops(20)) == "loops(20)"
    assert repr(policies.loops(st.MemoryBudget("2 GiB"))) == "loops(MemoryBudget('2 GiB'))"
    assert policies.loops(20) == policies.loops(20) != policies.loops(21)
    with pytest.raises(TypeError, match=r"policies.loops makes a policy.*policy=policies.loops\(checkpoint\)"):
        transform.checkpoint(jnp.sin, policy=policies.loops)
    for policy in (policies.loops(20), policies.any_of(policies.loops(20), policies.dots_saveable)):
        with pytest.raises(TypeError, match=r"as `transform.checkpoint\(f, policy=policies.loops\(20\)\)`, not in"):
            jax.grad(jax.checkpoint(jnp.sin, policy=policy))(1.0)
