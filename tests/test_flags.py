"""JAX's debugging and precision flags: as for the hand-threaded program under the same flag."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from statetransform import MemoryBudget, Param, State, StateTraceError, policies, transform

from .cases import CASES, Case
from .rules.functions import X, by_jvp, by_vjp

TRANSFORMS = {
    "jit": (transform.jit, jax.jit),
    "jit_checkpoint": (lambda f: transform.jit(transform.checkpoint(f)), lambda f: jax.jit(jax.checkpoint(f))),
}
IDS = [case.name for case in CASES]


def run(case: Case, name: str, x: Any) -> None:
    states, values = case.states(), case.initial()
    ours, by_hand = TRANSFORMS[name]
    f, twin = ours(case.make(states)), by_hand(case.twin)
    for _ in range(2):
        found = f(x)
        expected, values = twin(values, x)
        same = lambda a, b: np.testing.assert_allclose(_plain(a), _plain(b), rtol=1e-6)
        jax.tree.map(same, found, expected)
        jax.tree.map(same, {n: states[n].value for n in values}, dict(values))


def _plain(x: Any) -> Any:
    return jax.random.key_data(x) if jnp.issubdtype(jnp.result_type(x), jax.dtypes.prng_key) else x


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_no_tracer_leaks(case: Case) -> None:
    with jax.checking_leaks():
        run(case, "jit_checkpoint", 0.5)


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_double_precision(case: Case) -> None:
    with jax.enable_x64(True):
        run(case, "jit_checkpoint", 0.5)


def test_the_programs_of_a_budget_are_well_formed() -> None:
    weights = [jnp.full((16, 16), 0.1 * i) for i in range(1, 6)]

    def loss(weights: Any, x: Any) -> Any:
        for w in weights:
            x = jnp.where(x > 0.01, jnp.sin(x @ w), 0.0)
        return (x**2).sum()

    x = jnp.ones((64, 16))
    expected = jax.grad(loss)(weights, x)
    with jax.enable_checks(True):
        found = jax.grad(transform.checkpoint(loss, policy=policies.fit("16 KiB", compile=False)))(weights, x)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), found, expected)


@pytest.fixture(params=["jax_scan3", "jax_custom_vjp3", "jax_custom_jvp3", "jax_remat_barrier_no_cotangents"])
def coming(request: pytest.FixtureRequest) -> Iterator[None]:
    """A flag for what is coming in JAX, where it has one."""
    if request.param not in jax.config.values:
        pytest.skip(f"this JAX has no {request.param}")
    before = getattr(jax.config, request.param)
    jax.config.update(request.param, True)
    yield
    jax.config.update(request.param, before)


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_what_is_coming_in_jax(case: Case, coming: None) -> None:
    try:
        jax.jit(jax.checkpoint(case.twin))(case.initial(), 0.5)
    except NotImplementedError as error:
        pytest.skip(f"JAX itself cannot yet: {error}")
    run(case, "jit_checkpoint", 0.5)


@pytest.mark.parametrize("make", [by_vjp, by_jvp])
def test_rules_that_read_states_with_what_is_coming_in_jax(make: Any, coming: None) -> None:
    tripled = lambda x: jax.lax.scan(lambda c, _: (3 * c, None), x, length=3)[0]
    if jax.linear_transpose(tripled, X)(X) != (27 * X,):
        pytest.skip("JAX itself cannot yet: the transpose of a scan is wrong")
    if not hasattr(jax.custom_vjp(lambda x: x), "nondiff_argnums"):
        pytest.skip("JAX itself cannot yet: its `custom_vjp` takes no `nondiff_argnums`")
    w, n = Param(jnp.float32(3), name="w"), State(jnp.int32(0), name="n")
    f = make(w, n)
    loop = lambda x: transform.scan(lambda c, _: (f(c), None), x, length=3, checkpoint=2)[0]
    for wrap in (lambda f: f, transform.jit):
        assert wrap(transform.grad(f))(X) == 30.0
        assert wrap(transform.grad(loop))(X) == 30.0**3
        for g in (f, loop):
            with pytest.raises(StateTraceError, match="reads Param 'w'"):
                wrap(transform.grad(g, states=w))(X)
    assert n.value == 2 * (1 + 3)


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_disable_jit(case: Case) -> None:
    with jax.disable_jit():
        run(case, "jit", 0.5)


def test_no_gradient_leaks() -> None:
    u = State(jnp.ones(3), name="u")

    @transform.checkpoint
    def step(x: Any) -> Any:
        u.value = jnp.sin(u.value * x)
        return x * 1.5

    def loss(x: Any, checkpoint: Any) -> Any:
        transform.scan(lambda x, _: (step(x), None), x, None, 5, checkpoint=checkpoint)
        return u.value.sum()

    with jax.checking_leaks():
        for checkpoint in (None, "step", 2):
            transform.jit(transform.grad(loss), static_argnums=1)(0.5, checkpoint)
            transform.grad(transform.grad(loss))(0.5, checkpoint)
            transform.vmap(lambda x: transform.cond(x > 0, lambda: u.value.sum() * x, lambda: x))(jnp.arange(3.0))


@contextlib.contextmanager
def strict() -> Iterator[None]:
    """All that is checked while a program is traced."""
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"), jax.checking_leaks():
        yield


SETTINGS = {"strict": strict, "x64": lambda: jax.enable_x64(True), "debug_nans": lambda: jax.debug_nans(True)}


def scan(x: Any, w: Any, checkpoint: Any) -> Any:
    step = lambda c, s: (jnp.sin(c * w + s), c.sum())
    carry, ys = transform.scan(step, x, jnp.linspace(0, 1, 9, dtype=x.dtype), checkpoint=checkpoint)
    return carry.sum() + ys.sum()


def fori_loop(x: Any, w: Any, checkpoint: Any) -> Any:
    body = lambda i, c: jnp.sin(c * w + i.astype(x.dtype) / 10)
    return transform.jit(lambda n: transform.fori_loop(0, n, body, x, checkpoint=checkpoint))(9).sum()


def while_loop(x: Any, w: Any, checkpoint: Any) -> Any:
    body = lambda c: (c[0] + 1, jnp.sin(c[1] * w))
    return transform.while_loop(lambda c: c[0] < 9, body, (0, x), max_steps=20, checkpoint=checkpoint)[1].sum()


@pytest.mark.parametrize(
    ("loop", "checkpoint"), [(scan, 3), (scan, 0), (scan, MemoryBudget(440)), (fori_loop, 3), (while_loop, 3)]
)
@pytest.mark.parametrize("setting", SETTINGS)
def test_loops_with_few_carries_have_their_derivatives(setting: str, loop: Any, checkpoint: Any) -> None:
    with SETTINGS[setting]():
        dtype, rtol = (jnp.float64, 1e-10) if setting == "x64" else (jnp.float32, 2e-4)
        x, w = jnp.linspace(0, 1, 4, dtype=dtype), jnp.asarray(0.9, dtype)
        plain, few = (lambda x, w, k=k: loop(x, w, k) for k in (None, checkpoint))
        expected = jax.jit(lambda: [jax.jacfwd(plain, (0, 1))(x, w), jax.jacfwd(jax.jacfwd(plain, 1), 0)(x, w)])()
        found = jax.jit(lambda: [jax.grad(few, (0, 1))(x, w), jax.jacfwd(jax.grad(few, 1), 0)(x, w)])()
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol / 10), found, expected)
        assert all(leaf.dtype == dtype for leaf in jax.tree.leaves(found))


@pytest.mark.parametrize("name", ["jit", "grad", "checkpoint", "scan"])
def test_a_nan_is_found_and_nothing_is_written(name: str) -> None:
    u = State(jnp.float32(4), name="u")

    def f(x: Any) -> Any:
        u.value = u.value - x
        return jnp.log(u.value)

    wrapped = {
        "jit": transform.jit(f),
        "grad": transform.grad(f),
        "checkpoint": transform.checkpoint(f),
        "scan": lambda x: transform.scan(lambda c, _: (c + f(x), None), 0.0, None, 2)[0],
    }[name]
    with jax.debug_nans(True):
        wrapped(1.0)
        before = float(u.value)
        with pytest.raises(FloatingPointError):
            wrapped(7.0)
        assert u.value == before
        wrapped(0.5)  # the corrected call works
    assert u.value < before


def test_the_new_remat_changes_nothing(request: pytest.FixtureRequest) -> None:
    def outcomes() -> list[Any]:
        functions = [transform.jit(transform.checkpoint(case.make(case.states()))) for case in CASES]
        return [jax.tree.map(np.asarray, (f(0.5), f(0.5))) for f in functions]

    expected = outcomes()
    request.getfixturevalue("remat3")
    jax.tree.map(np.testing.assert_array_equal, outcomes(), expected)
