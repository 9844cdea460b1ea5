"""Loops and branches in eager mode and in eager `grad` and the like: one program each, kept with the trace."""

from __future__ import annotations

import enum
import functools
import gc
import operator
import weakref
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import statetransform as st
from statetransform import MemoryBudget, State, transform

from .core.compiling import compilations
from .tables import JAX

XS = jnp.arange(4.0)
INIT = jnp.float32(0.5)


def rod(t: Any, dt: Any, **options: Any) -> Any:
    """A state that is stepped, and the same by hand."""
    u = State(jnp.linspace(0.0, 1.0, 5), name="u")
    if t is JAX:
        step = lambda u, _: (u + dt * (jnp.roll(u, 1) - u), None)
        return jnp.sum(jax.lax.scan(step, u.value, None, length=6)[0] ** 2)
    transform.for_loop(
        lambda: setattr(u, "value", u.value + dt * (jnp.roll(u.value, 1) - u.value)), length=6, **options
    )
    return jnp.sum(u.value**2)


def with_container(t: Any, w: Any) -> Any:
    params = {"w": w, "parts": [w * 2, 3], "kind": "tanh"}

    def body(c: Any, x: Any) -> Any:
        f = jnp.tanh if params["kind"] == "tanh" else jnp.sin
        return f(c * params["w"] + x * params["parts"][0] + params["parts"][1]), None

    return t.scan(body, INIT, XS)[0]


def affine(w: Any, c: Any, x: Any) -> Any:
    return c * w + x, None


def with_two(t: Any, w: Any) -> Any:
    """The hole is where the number was in another loop of the same code."""
    out = 0.0
    for a, b in ((w, 2.0), (2.0, w), (w, w)):
        out = out + t.scan(lambda c, x, a=a: (c * a + x * b, None), INIT, XS)[0]  # noqa: B023
    return out


def with_functions(t: Any, w: Any) -> Any:
    """Functions that the body closes over do so in their turn."""
    step = lambda c, x: c * w + x
    twice = lambda c, x: step(step(c, x), x)
    add = functools.partial(lambda c, w: c + w, w=w)
    return t.scan(lambda c, x: (add(twice(c, x)), None), INIT, XS)[0]


def while_loop(t: Any, w: Any) -> Any:
    if t is JAX:  # which cannot reverse it
        return jax.lax.fori_loop(0, 2, lambda i, c: c * 2 + w, INIT)
    return transform.while_loop(lambda c: c < 4 * w, lambda c: c * 2 + w, INIT, checkpoint=3)


def with_itself(t: Any, w: Any) -> Any:
    power = lambda x, n: power(x * w, n - 1) if n else x
    return t.scan(lambda c, x: (power(c, 3) + x, None), INIT, XS)[0]


def with_each_other(t: Any, w: Any) -> Any:
    functions: list[Any] = []
    for i in range(30):
        functions.append(lambda x, n, i=i: functions[i - 1](x * w, n - 1) if n else x)
    last = functions[-1]
    return t.scan(lambda c, x: (last(c, 2) + x, None), INIT, XS)[0]


def with_functions_hundreds_deep(t: Any, w: Any) -> Any:
    f = lambda x: x * w
    for _ in range(300):
        f = lambda x, g=f: g(x) + 1
    return t.scan(lambda c, x: (f(c) + x, None), INIT, XS)[0]


#: Programs of a number, by this package or by JAX.
CASES: dict[str, Callable[[Any, Any], Any]] = {
    "default": lambda t, w: t.scan(lambda c, x, w=w: (c * w + x, None), INIT, XS)[0],
    "container": with_container,
    "functions": with_functions,
    "itself": with_itself,
    "each other": with_each_other,
    "hundreds deep": with_functions_hundreds_deep,
    "partial": lambda t, w: t.scan(functools.partial(affine, w), INIT, XS)[0],
    "two": with_two,
    "for_loop": rod,
    "for_loop, checkpoint=2": lambda t, w: rod(t, w, checkpoint=2),
    "fori_loop": lambda t, w: t.fori_loop(0, 3, lambda i, c: c * w + i, INIT),
    "fori_loop with an array for a bound": lambda t, w: t.fori_loop(0, jnp.int32(3), lambda i, c: c * w + i, INIT),
    "while_loop": while_loop,
    "map": lambda t, w: t.map(lambda x: x * w, XS).sum(),
    "for_loop within a budget": lambda t, w: rod(t, w, checkpoint=MemoryBudget("1MiB")),
    "cond": lambda t, w: t.cond(w > 0, lambda: jnp.sin(w), lambda: -w),
    "cond of functions of a library": lambda t, w: t.cond(True, jnp.sin, jnp.cos, w),
    "switch": lambda t, w: t.switch(1, [lambda: w, lambda: w * w]),
}
TRANSFORMS: dict[str, Callable[[Any, Any], Any]] = {
    "none": lambda t, f: f,
    "grad of another": lambda t, f: lambda w: t.grad(lambda z: z * f(w))(1.0),
    "grad": lambda t, f: t.grad(f),
    "hessian": lambda t, f: t.hessian(f),
    "jvp": lambda t, f: lambda w: t.jvp(f, (w,), (w,)),
    "vmap": lambda t, f: lambda w: t.vmap(f)(jnp.stack([w, 2 * w])),
}


@pytest.mark.parametrize(
    ("name", "way"),
    [(name, "grad") for name in CASES]
    + [
        (name, way)
        for name in ("container", "for_loop", "while_loop", "cond")
        for way in ("grad of another", "hessian", "jvp", "vmap")
    ]
    + [("for_loop within a budget", "vmap")],
)
def test_results_are_those_of_jax_whatever_a_loop_closes_over(name: str, way: str) -> None:
    run = lambda t, w: TRANSFORMS[way](t, functools.partial(CASES[name], t))(w)
    for w in (0.9, 0.8):
        w = jnp.float32(w)
        for a, b in zip(jax.tree.leaves(run(transform, w)), jax.tree.leaves(run(JAX, w)), strict=True):
            assert jnp.allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", [name for name in CASES if name != "container"])  # which makes arrays
def test_a_second_call_that_closes_over_the_same_objects_compiles_nothing(name: str) -> None:
    w = jnp.float32(0.9)
    for i in range(3):
        with compilations() as made:
            found = CASES[name](transform, w)
        assert i < 2 or made == []
        assert jnp.allclose(found, CASES[name](JAX, w), rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(jax.__version_info__ < (0, 11), reason="JAX 0.10 compiles the derivative of an inlined `jit` anew")
@pytest.mark.parametrize("checkpoint", [None, 2])
def test_an_eager_gradient_of_what_goes_through_the_carry_compiles_once(checkpoint: Any) -> None:
    u = State(jnp.linspace(0.0, 1.0, 5), name="u")

    def step(c: Any, x: Any) -> Any:
        u.value = jnp.sin(u.value) * c
        return c * 0.9, u.value.sum() * x

    def loss(w: Any, xs: Any) -> Any:
        c, ys = transform.scan(step, w, xs, checkpoint=checkpoint)
        return c + ys.sum()

    for i in range(4):
        with compilations() as made:
            transform.grad(loss, (0, 1))(jnp.float32(0.5 + i), XS * i)
        assert i < 2 or made == []


def test_other_options_are_other_programs() -> None:
    step = lambda i, c: c * 2 + i
    for _ in range(2):
        for lower, upper in ((0, 3), (1, 3), (0, 4), (jnp.int8(0), jnp.int8(3)), (0, True + 2)):
            found = transform.fori_loop(lower, upper, step, 1)
            assert found == jax.lax.fori_loop(lower, upper, step, 1)
        for length in (2, 5):
            assert transform.scan(lambda c, _: (c + 1, None), 0, None, length)[0] == length
        for reverse in (False, True):
            total = transform.scan(lambda c, x: (c * 2 + x, None), 0.0, XS, reverse=reverse)[0]
            assert total == jax.lax.scan(lambda c, x: (c * 2 + x, None), 0.0, XS, reverse=reverse)[0]


def test_a_body_that_raises_runs_once() -> None:
    runs, w = [0], jnp.ones(3)

    def body(*args: Any) -> Any:
        runs[0] += 1
        raise ValueError(w.shape)

    for run in (
        lambda: transform.scan(body, INIT, XS),
        lambda: transform.for_loop(body, XS),
        lambda: transform.fori_loop(0, 3, body, INIT),
        lambda: transform.while_loop(lambda c: c < 3, body, INIT),
        lambda: transform.cond(True, body, lambda: 1.0),
    ):
        runs[0] = 0
        with pytest.raises(ValueError, match="3"):
            run()
        assert runs == [1]


class Model:
    """A state and plain arrays that loops read."""

    def __init__(self) -> None:
        self.u, self.table = State(jnp.zeros(100)), jnp.ones(100)
        self.inner = jax.jit(lambda c: c + self.table)

    def by_lambda(self) -> Any:
        return transform.scan(lambda c, _: (c + self.table, None), jnp.zeros(100), length=2)

    def by_state(self) -> None:
        transform.for_loop(lambda: setattr(self.u, "value", self.u.value + self.table), length=2, checkpoint=1)

    def reversible(self) -> None:
        back = st.Reversible(lambda: setattr(self.u, "value", self.u.value - self.table))
        transform.for_loop(lambda: setattr(self.u, "value", self.u.value + self.table), length=2, checkpoint=back)

    def by_index(self) -> Any:
        return transform.fori_loop(0, 2, lambda i, c: c + self.table, jnp.zeros(100))

    def by_while(self) -> Any:
        return transform.while_loop(lambda c: (c < self.table).all(), lambda c: c + self.table, jnp.zeros(100))

    def by_cond(self) -> Any:
        return transform.cond(True, lambda: self.table + 1, lambda: self.table)

    def by_jitted(self) -> Any:
        return transform.scan(lambda c, _: (self.inner(c), None), jnp.zeros(100), length=2)

    def by_map(self) -> Any:
        return transform.map(lambda x: x + self.table, XS)

    def in_grad(self) -> Any:
        return transform.grad(lambda w: (self.by_lambda()[0] * w).sum())(1.0)

    def in_jit(self) -> Any:
        return transform.jit(lambda: self.by_lambda()[0])()

    @transform.jit
    def in_method(self) -> Any:
        return self.by_lambda()[0]


@pytest.mark.parametrize("way", [name for name in vars(Model) if not name.startswith("_")])
def test_an_array_that_a_loop_has_read_dies_with_its_object(way: str) -> None:
    tables = []
    for _ in range(3):
        model = Model()
        getattr(model, way)()
        getattr(model, way)()
        tables.append(weakref.ref(model.table))
        del model
    gc.collect()
    assert [table() for table in tables] == [None] * 3


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


@pytest.mark.parametrize("take", [float, bool, np.asarray, operator.index])
def test_python_may_decide_on_arrays_that_the_body_closes_over(take: Callable[[Any], Any]) -> None:
    loss = lambda z, w: transform.scan(lambda c, x: (c * take(w) * z + x, None), INIT, XS)[0]
    by_hand = lambda z, w: jax.lax.scan(lambda c, x: (c * take(w) * z + x, None), INIT, XS)[0]
    for w in (jnp.int32(0), jnp.int32(1)):
        assert loss(2.0, w) == by_hand(2.0, w)
        assert transform.grad(loss)(2.0, w) == jax.grad(by_hand)(2.0, w)


class Side(enum.Enum):
    LEFT, RIGHT = "left", "right"


def in_order_of_a_dict(t: Any, w: Any) -> Any:
    factors = {"w": w, "b": jnp.float32(3)}

    def step(c: Any, _: Any) -> Any:
        for factor, power in zip(factors.values(), (1, 2), strict=True):
            c = c * factor**power
        return c, None

    return t.scan(step, jnp.float32(1), None, 1)[0]


def with_the_last_layer(t: Any, w: Any) -> Any:
    layers = [{"w": w}, {"w": w * 2}]
    last = layers[-1]
    body = lambda c, _: (functools.reduce(lambda c, one: c * (1 if one is last else one["w"]), layers, c), None)
    return t.scan(body, jnp.float32(1), None, 2)[0]


def with_keys_that_cannot_be_sorted(t: Any, w: Any) -> Any:
    at = {Side.RIGHT: w, Side.LEFT: jnp.float32(2)}
    return t.scan(lambda c, _: (c * at[Side.RIGHT] + at[Side.LEFT], None), jnp.float32(1), None, 2)[0]


def with_a_size(t: Any, w: Any) -> Any:
    n = jnp.int32(2)
    return t.scan(lambda c, _: (c + w * jnp.ones(n).sum() + c[None, None][:n].size, None), jnp.float32(1), None, 2)[0]


def with_a_note(t: Any, w: Any) -> Any:
    settings = {"w": jnp.float32(2), "runs": "never"}

    def step(c: Any, _: Any) -> Any:
        settings["runs"] = "traced"
        return c * settings["w"] * w, None

    found = t.scan(step, jnp.float32(1), None, 2)[0]
    return found, len(settings["runs"])


@pytest.mark.parametrize("way", ["none", "grad of another", "grad", "vmap"])
@pytest.mark.parametrize(
    "program",
    [in_order_of_a_dict, with_the_last_layer, with_keys_that_cannot_be_sorted, with_a_size, with_a_note],
    ids=lambda f: f.__name__,
)
def test_what_a_body_closes_over_stays_what_it_is(program: Callable[[Any, Any], Any], way: str) -> None:
    run = lambda t: TRANSFORMS[way](t, lambda w: jax.tree.leaves(program(t, w))[0])(jnp.float32(0.9))
    np.testing.assert_allclose(run(transform), run(JAX), rtol=1e-6)
    assert way != "none" or jax.tree.leaves(program(transform, 1.0))[1:] == jax.tree.leaves(program(JAX, 1.0))[1:]


def test_an_error_of_one_call_has_no_effect_on_later_ones() -> None:
    def loop(w: Any, init: Any) -> Any:
        return transform.scan(lambda c, _: (c * w, None), init, None, 2)[0]

    with pytest.raises((TypeError, ValueError)):
        loop(jnp.ones(2), jnp.ones(3))
    for i in range(3):
        assert loop(jnp.full(3, 2.0 + i), jnp.ones(3))[0] == (2.0 + i) ** 2
