"""Host callbacks see and write the states as code outside of every transform does, compiled or not."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import io_callback

from statetransform import State, transform

from .tables import ONCE

SCALAR = jax.ShapeDtypeStruct((), jnp.float32)
stopped = jax.lax.stop_gradient


def by_debug(host: Callable[..., Any], x: Any) -> None:
    jax.debug.callback(host, x)


def by_pure(host: Callable[..., Any], x: Any) -> Any:
    return jax.pure_callback(lambda x: (host(x), x)[1], SCALAR, stopped(x))


def by_io(host: Callable[..., Any], x: Any) -> Any:
    return io_callback(lambda x: (host(x), x)[1], SCALAR, stopped(x))


CALLBACKS = {"debug.callback": by_debug, "pure_callback": by_pure, "io_callback": by_io}


def with_rule(f: Callable[..., Any]) -> Callable[..., Any]:
    g = transform.custom_vjp(f)
    g.defvjp(lambda x: (f(x), x), lambda x, ct: (ct,))
    return g


def without_compiling(f: Callable[..., Any], x: Any) -> Any:
    with jax.disable_jit():
        return f(x)


AROUND: dict[str, Callable[..., Any]] = {
    **{name: ONCE[name] for name in ("checkpoint", "named_call", "value_and_grad", "jit of value_and_grad", "jvp")},
    "grad jit": lambda f: transform.grad(lambda x: transform.jit(f)(x)),
    "vjp": lambda f: lambda x: transform.vjp(f, x)[1](1.0)[0],
    "named_call named_call": lambda f: transform.named_call(transform.named_call(f)),
    "custom_vjp": with_rule,
    "grad custom_vjp": lambda f: transform.grad(with_rule(f)),
    "disable_jit": lambda f: functools.partial(without_compiling, transform.jit(f)),
    "vmap": lambda f: lambda x: transform.vmap(f, in_axes=None, axis_size=1, axis_name="lane")(x)[0],
}


@pytest.mark.parametrize("callback", CALLBACKS)
@pytest.mark.parametrize("around", AROUND)
def test_a_callback_reads_the_values_before_the_call_and_its_writes_stay(around: str, callback: str) -> None:
    seen, cell, log = [], State(jnp.float32(1.0)), State(jnp.zeros(2))
    other = State(jnp.float32(7.0))

    def host(x: Any) -> None:
        seen.append((float(cell.value), float(other.value)))
        log[1] = log[1] + float(x)

    def f(x: Any) -> Any:
        other.value = other.value * x
        y = CALLBACKS[callback](host, x)
        return stopped(other.value) * x**3 + (0.0 if y is None else stopped(y) * x)

    AROUND[around](f)(jnp.float32(2.0))
    jax.effects_barrier()
    assert set(seen) <= {(1.0, 7.0)}
    assert seen
    assert log.value.tolist() == [0.0, 2.0 * len(seen)]


def test_a_transform_in_a_callback_begins_anew() -> None:
    cell, other, count, seen = State(jnp.float32(1.0)), State(jnp.float32(1.0)), State(0), []

    @transform.jit
    def compiled(x: Any) -> Any:
        count.value = count.value + 1
        return cell.value * x

    def doubles(x: Any) -> Any:
        other.value = other.value * x
        return x * jax.lax.scan(lambda c, _: (c + other.value, None), 0.0, length=2)[0]  # in a raw transform

    def host(x: Any) -> None:
        seen.append(float(compiled(x)))
        seen.append(float(transform.grad(lambda x: x * cell.value)(x)))
        seen.append(float(transform.for_loop(lambda: cell.value, length=2).sum()))
        seen.append(float(transform.grad(doubles)(x)))

    def f(x: Any) -> Any:
        cell.value = cell.value * x
        jax.debug.callback(host, x)
        return cell.value

    for _ in range(2):  # the second time without a trace
        cell.value, other.value = jnp.float32(3.0), jnp.float32(1.0)
        assert transform.grad(f)(jnp.float32(2.0)) == 3.0
        assert float(cell.value) == 6.0
    assert seen == [6.0, 3.0, 6.0, 8.0] * 2
    assert int(count.value) == 2


def test_a_state_made_in_a_callback_has_its_value() -> None:
    made: list[State] = []

    def f(x: Any) -> Any:
        jax.debug.callback(lambda x: made.append(State(x + 1.0)), x)
        return x**2

    assert transform.grad(f)(jnp.float32(2.0)) == 4.0
    assert float(made[0].value) == 3.0
    made[0].value = 5.0


@pytest.mark.filterwarnings("ignore::statetransform.RetraceWarning")
@pytest.mark.parametrize("donates", [False, True])
@pytest.mark.parametrize("callback", ["debug.callback", "io_callback"])
def test_what_a_callback_changes_is_seen_by_the_next_call(callback: str, donates: bool) -> None:
    class Model:
        def __init__(self) -> None:
            self.u, self.w, self.n = State(jnp.zeros(3)), jnp.ones(3), 0

        def host(self, x: Any) -> None:
            self.n += 1

        def step(self, x: Any) -> Any:
            self.u.value = self.u.value + x
            CALLBACKS[callback](self.host, x)
            return self.w.sum() * self.n

    model = Model()
    step = transform.jit(model.step, donate_states=donates)
    for i in range(3):
        assert float(step(jnp.float32(1))) == 3.0 * i
        jax.effects_barrier()
        assert (model.u.value.tolist(), model.n) == ([i + 1.0] * 3, i + 1)


def test_a_late_change_by_a_callback_loses_nothing_of_a_call_that_makes_states() -> None:
    class Model:
        def __init__(self) -> None:
            self.u, self.is_late, self.calls = State(jnp.zeros(2)), False, 0

        def host(self, x: Any) -> None:
            self.calls += 1
            self.is_late = self.calls == 30  # by then the way in is written down

        def step(self, x: Any) -> Any:
            self.u.value = self.u.value + x
            jax.debug.callback(self.host, x)
            return State(self.u.value.sum() * (0.0 if self.is_late else 1.0))

    model = Model()
    step = transform.jit(model.step)
    for i in range(1, 40):
        made = step(1.0)
        jax.effects_barrier()
        assert (float(made.value), model.u.value.tolist()) == (0.0 if i == 31 else 2.0 * i, [i] * 2)


# -- traces: a callback or the rule of a derivative sees the object of its own call


class Ruled:
    def __init__(self, slope: float) -> None:
        self.u, self.slope = State(jnp.float32(0), name="u"), slope

    @transform.jit
    def ruled(self, x: Any) -> Any:
        @jax.custom_vjp
        def f(x: Any) -> Any:
            return x

        f.defvjp(lambda x: (x, None), lambda _, ct: (ct * self.slope,))
        return f(x) + self.u.value


def test_a_callback_of_a_function_made_anew_is_its_own() -> None:
    def count() -> int:
        seen: list[int] = []
        f = transform.jit(lambda x: (jax.debug.callback(lambda: seen.append(1)), x)[1])
        f(1.0), f(1.0)
        jax.effects_barrier()
        return len(seen)

    assert [count() for _ in range(3)] == [2, 2, 2]


@pytest.mark.parametrize("checkpoint", [3, "step", None])
def test_a_callback_in_an_eager_gradient_of_a_loop_is_its_own(checkpoint: Any) -> None:
    def make() -> tuple[Any, list[int]]:
        said: list[int] = []

        def body(c: Any, x: Any) -> Any:
            jax.debug.callback(said.append, 1)
            return c * x, None

        return transform.grad(lambda x: transform.scan(body, x, jnp.ones(8), checkpoint=checkpoint)[0]), said

    (one, said), (other, heard) = make(), make()
    for gradient, full, empty in ((one, said, heard), (other, heard, said)):
        gradient(1.0)
        jax.effects_barrier()
        assert full
        full.clear()
        assert not empty


def test_a_rule_that_looks_at_an_object_later_looks_at_the_object_of_its_own_call() -> None:
    one, two = Ruled(10.0), Ruled(20.0)
    slope = lambda logged: float(transform.grad(logged.ruled)(1.0))
    assert [slope(logged) for logged in (one, two, one, two)] == [10.0, 20.0, 10.0, 20.0]
    one.slope = 30.0
    assert slope(one) == 30.0


def noted(labels: Any, sim: Any, x: Any) -> None:
    sim.log.append(float(x))


class Sim:
    def __init__(self) -> None:
        self.u, self.log = State(jnp.float32(0)), []

    @transform.jit
    def step(self, n: Any) -> None:
        labels = [(i, [i]) for i in range(20_000)]
        self.u.value = self.u.value + n
        jax.debug.callback(functools.partial(noted, labels, self), self.u.value)


def test_a_callback_is_about_the_objects_of_its_call() -> None:
    one, two = Sim(), Sim()
    for sim in (one, two, two):
        sim.step(1.0)
    jax.effects_barrier()
    assert (one.log, two.log) == ([1.0], [1.0, 2.0])


def test_a_callback_over_a_logger_writes_into_that_logger() -> None:
    seen: list[str] = []

    class Named:
        def __init__(self, name: str) -> None:
            self.log = logging.Logger(name)
            self.log.addFilter(lambda record: seen.append(record.name) is not None)

        @transform.jit
        def step(self, x: Any) -> Any:
            log = self.log
            jax.debug.callback(lambda v: log.error("%s", v), x)
            return x

    for name in ("a", "b", "a"):
        Named(name).step(1.0)
    jax.effects_barrier()
    assert seen == ["a", "b", "a"]
