"""Loops that are run backwards against the plain scan: gradients, counts, drift and memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import statetransform as st
from statetransform import RandomState, State, transform

EVERY = (None, 1, 4, 16, 100)
N = 17


def noise(key: Any, i: Any) -> Any:
    return jax.random.normal(jax.random.fold_in(key, i), (3,))


def by_hand(w: Any, x: Any, xs: Any, **options: Any) -> Any:
    """A forced oscillator of pure JAX, differentiated in a closed-over value, the carry and the inputs."""
    key = jax.random.key(0)

    def step(c: Any, x: Any) -> Any:
        (a, v, n), i = c, x[1]
        v = v - 0.1 * (jnp.sin(w * a) + x[0] + noise(key, i))
        return (a + 0.1 * v, v, n + 1), a * v

    (a, v, n), ys = jax.lax.scan(step, (x, jnp.ones(3), 0), xs, **options)
    return (a * v).sum() + (ys[::2] ** 2).sum() + n * a.sum()


def in_carry(w: Any, x: Any, xs: Any, every: int | None, **options: Any) -> Any:
    """The same with everything in the carry."""
    key = jax.random.key(0)

    def step(c: Any, x: Any) -> Any:
        (a, v, n), i = c, x[1]
        v = v - 0.1 * (jnp.sin(w * a) + x[0] + noise(key, i))
        return (a + 0.1 * v, v, n + 1), a * v

    def back(c: Any, x: Any) -> Any:
        (a, v, n), i = c, x[1]
        a = a - 0.1 * v
        return a, v + 0.1 * (jnp.sin(w * a) + x[0] + noise(key, i)), n - 1

    start = x, jnp.ones(3), 0
    (a, v, n), ys = transform.scan(step, start, xs, checkpoint=st.Reversible(back, every), **options)
    return (a * v).sum() + (ys[::2] ** 2).sum() + n * a.sum()


class Oscillator:
    """The same with states."""

    def __init__(self, w: Any, x: Any) -> None:
        self.w = w
        self.a, self.v, self.n = State(x, name="a"), State(jnp.ones(3), name="v"), State(0, name="n")
        self.rng = RandomState(0)

    def force(self, x: Any, i: Any) -> Any:
        return jnp.sin(self.w * self.a.value) + x + noise(self.rng.key, i)

    def step(self, x: Any, i: Any) -> Any:
        out = self.a.value
        self.v.value = self.v.value - 0.1 * self.force(x, i)
        out = out * self.v.value / self.v.value * self.v.value
        self.a.value = self.a.value + 0.1 * self.v.value
        self.n.value = self.n.value + 1
        return out

    def back(self, x: Any, i: Any) -> None:
        self.n.value = self.n.value - 1
        self.a.value = self.a.value - 0.1 * self.v.value
        self.v.value = self.v.value + 0.1 * self.force(x, i)

    def result(self, ys: Any) -> Any:
        return (self.a.value * self.v.value).sum() + (ys[::2] ** 2).sum() + self.n.value * self.a.value.sum()


def in_states(w: Any, x: Any, xs: Any, every: int | None, **options: Any) -> Any:
    one = Oscillator(w, x)
    ys = transform.for_loop(one.step, *xs, checkpoint=st.Reversible(one.back, every), **options)
    return one.result(ys) + 0 * w.sum()


def in_both(w: Any, x: Any, xs: Any, every: int | None, **options: Any) -> Any:
    one = Oscillator(w, x)

    def step(n: Any, x: Any) -> Any:
        y = one.step(*x)
        return n + 1, y

    def back(n: Any, x: Any) -> Any:
        one.back(*x)
        return n - 1

    n, ys = transform.scan(step, 0, xs, checkpoint=st.Reversible(back, every), **options)
    return one.result(ys) + n - N


def by_index(w: Any, x: Any, xs: Any, every: int | None, reverse: bool = False) -> Any:
    one = Oscillator(w, x)
    index = lambda i: N - 1 - i if reverse else i

    def step(i: Any, ys: Any) -> Any:
        return ys.at[index(i)].set(one.step(*[x[index(i)] for x in xs]))

    def back(i: Any, ys: Any) -> Any:
        one.back(*[x[index(i)] for x in xs])
        return ys.at[index(i)].set(0.0)

    ys = transform.fori_loop(0, N, step, jnp.zeros((N, 3)), checkpoint=st.Reversible(back, every))
    return one.result(ys)


PROGRAMS = {f.__name__: f for f in (in_carry, in_states, in_both, by_index)}


@pytest.fixture(scope="module")
def data() -> Any:
    return jnp.float32(1.3), jnp.linspace(-1.0, 1.0, 3), (jnp.sin(jnp.arange(3.0 * N)).reshape(N, 3), jnp.arange(N))


def inexact(f: Callable[..., Any]) -> Callable[..., Any]:
    """With the integers among the inputs left out of what is differentiated."""
    return lambda w, x, force: f(w, x, (force, jnp.arange(N)))


WAYS: dict[str, Any] = {
    "none": lambda f: f,
    "grad": lambda f: transform.value_and_grad(f, (0, 1, 2)),
    "jit": lambda f: transform.jit(transform.value_and_grad(f, (0, 1, 2))),
    "jvp": lambda f: lambda *args: transform.jvp(f, args, args),
    "vmap of grad": lambda f: (
        lambda w, x, force: transform.vmap(transform.grad(f, (0, 2)), (0, None, None))(jnp.stack([w, 2 * w]), x, force)
    ),
    "grad of vmap": lambda f: transform.grad(
        lambda w, x, force: transform.vmap(lambda x: f(w, x, force))(jnp.stack([x, 2 * x])).sum(), (0, 1, 2)
    ),
    "grad of grad": lambda f: transform.jit(
        transform.grad(lambda w, x, force: transform.grad(f, 1)(w, x, force).sum(), (0, 2))
    ),
    "hessian": lambda f: transform.jit(transform.hessian(f, 1)),
    "checkpoint": lambda f: transform.grad(transform.checkpoint(f), (0, 1, 2)),
}


@pytest.mark.parametrize(
    ("name", "every", "is_reversed"),
    [("in_carry", every, is_reversed) for every in EVERY for is_reversed in (False, True)]
    + [(name, every, True) for name in ("in_states", "in_both", "by_index") for every in (None, 4)],
)
def test_gradients_are_those_of_the_plain_scan(name: str, every: int | None, is_reversed: bool, data: Any) -> None:
    w, x, (force, _) = data
    run = WAYS["jit"](inexact(lambda *args: PROGRAMS[name](*args, every, reverse=is_reversed)))
    expected = jax.jit(jax.value_and_grad(inexact(lambda *args: by_hand(*args, reverse=is_reversed)), (0, 1, 2)))
    _close(run(w, x, force), expected(w, x, force))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["in_carry", "in_states"])
def test_under_every_transform(name: str, way: str, data: Any) -> None:
    w, x, (force, _) = data
    for every in (None, 4):
        ours = WAYS[way](inexact(lambda *args, every=every: PROGRAMS[name](*args, every)))
        _close(ours(w, x, force), WAYS[way](inexact(by_hand))(w, x, force))


def _close(found: Any, expected: Any) -> None:
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4)


def test_states_end_as_after_the_plain_loop(data: Any) -> None:
    w, x, xs = data
    found = []
    for checkpoint in (None, lambda one: st.Reversible(one.back), lambda one: st.Reversible(one.back, 4)):
        one = Oscillator(w, x)

        def loss(one: Any = one, checkpoint: Any = checkpoint) -> Any:
            transform.for_loop(one.step, *xs, checkpoint=checkpoint and checkpoint(one))
            return one.a.value.sum()

        transform.grad(loss, states=one.a)()
        found.append([one.a.value, one.v.value, one.n.value])
    for values in found[1:]:
        jax.tree.map(np.testing.assert_array_equal, values, found[0])


def counting(seen: list[str], name: str, x: Any) -> None:
    jax.debug.callback(lambda _: seen.append(name), x)


@pytest.mark.parametrize("every", [None, 4, 1])
def test_each_step_is_evaluated_once_undone_once_and_differentiated_once(every: int | None) -> None:
    seen: list[str] = []

    @jax.custom_vjp
    def force(a: Any) -> Any:
        counting(seen, "step", a)
        return jnp.sin(a)

    def backward(a: Any, ct: Any) -> Any:
        counting(seen, "differentiated", ct)
        return (ct * jnp.cos(a),)

    force.defvjp(lambda a: (force(a), a), backward)

    def step(c: Any, _: Any) -> Any:
        return (c[0] + 0.1 * c[1] - 0.01 * force(c[0]), c[0]), None

    def back(c: Any, _: Any) -> Any:
        counting(seen, "undone", c[0])
        return c[1], (c[0] - c[1] + 0.01 * jnp.sin(c[1])) / 0.1

    def loss(x: Any, checkpoint: Any) -> Any:
        return transform.scan(step, (x, x), None, N, checkpoint=checkpoint)[0][0]

    jax.block_until_ready(jax.jit(jax.grad(loss), static_argnums=1)(0.5, st.Reversible(back, every)))
    jax.effects_barrier()
    assert {name: seen.count(name) for name in sorted(set(seen))} == {
        "differentiated": N,
        "step": 2 * N,  # one forward, one in its derivative
        "undone": N,
    }


def pendulum(checkpoint: Any, n: int, dt: float = 0.05, friction: float = 0.0) -> Callable[[Any], Any]:
    """Leapfrog, the angle after some time by the length of the rod. With friction, undoing makes errors grow."""

    def angle(length: Any) -> Any:
        a, v = State(jnp.ones_like(length), name="a"), State(jnp.zeros_like(length), name="v")

        def step() -> None:
            v.value = (v.value - dt * jnp.sin(a.value) / length) * (1 - friction)
            a.value = a.value + dt * v.value

        def back() -> None:
            a.value = a.value - dt * v.value
            v.value = v.value / (1 - friction) + dt * jnp.sin(a.value) / length

        transform.for_loop(step, length=n, checkpoint=checkpoint and checkpoint(back))
        return a.value

    return angle


def test_a_pendulum_in_double_precision_has_the_plain_gradient_after_10000_steps() -> None:
    with jax.enable_x64(True):
        for every in (None, 1000):
            plain, ours = (
                transform.jit(transform.grad(pendulum(c, 10_000)))(jnp.float64(1.3))
                for c in (None, lambda back, every=every: st.Reversible(back, every))
            )
            assert abs(plain) > 10
            np.testing.assert_allclose(ours, plain, rtol=1e-10)


def test_single_precision_drifts_and_every_bounds_it() -> None:
    lengths = jnp.linspace(0.5, 2.5, 16)

    def gradient(checkpoint: Any) -> Any:
        angles = lambda lengths: pendulum(checkpoint, 10_000, friction=2e-3)(lengths).sum()
        return transform.jit(transform.grad(angles))(lengths)

    plain = gradient(None)
    error = lambda every: float(
        jnp.abs(gradient(lambda back: st.Reversible(back, every)) - plain).max() / jnp.abs(plain).max()
    )
    assert error(None) > 5e-5
    assert error(100) < 3e-6


def test_the_memory_does_not_grow_with_the_number_of_steps() -> None:
    def temporaries(n: int) -> int:
        f = transform.grad(lambda x: pendulum(st.Reversible, n)(x).sum())
        return transform.jit(f).lower(jnp.ones(10_000)).compile().memory_analysis().temp_size_in_bytes

    assert temporaries(100) == temporaries(10_000) <= 8 * 40_000


def test_every_stores_one_carry_for_so_many_steps() -> None:
    def temporaries(every: int | None) -> int:
        f = transform.grad(lambda x: pendulum(lambda back: st.Reversible(back, every), 1000)(x).sum())
        return transform.jit(f).lower(jnp.ones(10_000)).compile().memory_analysis().temp_size_in_bytes

    carry = 2 * 40_000
    assert 9 * carry <= temporaries(100) - temporaries(None) + carry <= 12 * carry


def test_a_loop_that_is_linear_in_what_is_differentiated_is_not_undone() -> None:
    seen: list[str] = []

    def back(c: Any, _: Any) -> Any:
        counting(seen, "undone", c)
        return c / 0.9

    loss = lambda x: transform.scan(lambda c, _: (0.9 * c, None), x, None, 5, checkpoint=st.Reversible(back))[0]
    np.testing.assert_allclose(jax.jit(jax.grad(loss))(1.0), 0.9**5, rtol=1e-6)
    jax.effects_barrier()
    assert seen == []


def test_what_step_and_inverse_close_over_has_one_cotangent() -> None:
    def loss(w: Any) -> Any:
        step = lambda c, _: (c + 0.1 * jnp.sin(w), None)
        back = st.Reversible(lambda c, _: c - 0.1 * jnp.sin(w))
        return (transform.scan(step, jnp.zeros(1000), None, 3, checkpoint=back)[0] ** 2).sum()

    text = str(jax.make_jaxpr(jax.grad(loss))(jnp.ones(1000)))
    plain = lambda w: (jax.lax.scan(lambda c, _: (c + 0.1 * jnp.sin(w), None), jnp.zeros(1000), None, 3)[0] ** 2).sum()
    np.testing.assert_allclose(jax.grad(loss)(jnp.ones(1000)), jax.grad(plain)(jnp.ones(1000)), rtol=1e-5)
    assert text.count("mul") < 20


def test_progress_is_shown_in_both_directions() -> None:
    pytest.importorskip("tqdm")
    for every in (None, 7):
        loss = lambda x, every=every: transform.scan(
            lambda c, _: (jnp.sin(c) + c, None), x, None, 40,
            checkpoint=st.Reversible(lambda c, _: c, every), progress={"disable": True, "every": 10},
        )[0]  # fmt: skip
        assert jnp.isfinite(jax.grad(loss)(1.0))


def test_without_jit_it_is_the_plain_loop(data: Any) -> None:
    w, x, xs = data
    with jax.disable_jit():
        found = in_states(w, x, xs, None)
    np.testing.assert_allclose(found, by_hand(w, x, xs), rtol=1e-4)


@pytest.mark.parametrize(("n", "every", "stored"), [(10, None, 0), (10, 3, 3), (10, 10, 0), (9, 3, 2), (0, 3, 0)])
def test_the_schedule_says_what_is_stored_and_done(n: int, every: int | None, stored: int) -> None:
    plan = st.schedule(n, st.Reversible(lambda c: c, every))
    assert (plan.n, plan.peak, plan.evaluations, plan.undone) == (n, stored, 2 * n, n)
    kinds = [action.kind for action in plan.actions]
    assert kinds.count("undo") == kinds.count("reverse") == n
    assert kinds.count("store") == kinds.count("restore") == stored
    reversed_steps = [action.start for action in plan.actions if action.kind == "reverse"]
    assert reversed_steps == [*range(n)][::-1]
    assert str(plan) and repr(plan) and plan._repr_html_()
    if n:
        plan.plot()
