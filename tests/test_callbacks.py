"""Host callbacks see and write the states as code outside of every transform does, compiled or not."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import io_callback

from statetransform import State, transform

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
    "grad": transform.grad,
    "jit grad": lambda f: transform.jit(transform.grad(f)),
    "grad jit": lambda f: transform.grad(lambda x: transform.jit(f)(x)),
    "vjp": lambda f: lambda x: transform.vjp(f, x)[1](1.0)[0],
    "jvp": lambda f: lambda x: transform.jvp(f, (x,), (1.0,))[1],
    "checkpoint": transform.checkpoint,
    "named_call": transform.named_call,
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
        log.value = log.value + float(x)

    def f(x: Any) -> Any:
        other.value = other.value * x
        y = CALLBACKS[callback](host, x)
        return stopped(other.value) * x**3 + (0.0 if y is None else stopped(y) * x)

    AROUND[around](f)(jnp.float32(2.0))
    jax.effects_barrier()
    assert set(seen) <= {(1.0, 7.0)}
    assert seen
    assert log.value.tolist() == [2.0 * len(seen)] * 2


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


def test_an_index_written_in_a_callback_is_written_to_the_state() -> None:
    log = State(jnp.zeros(3))

    def host(x: Any) -> None:
        log[1] = log[1] + x

    f = transform.grad(functools.partial(lambda host, x: (jax.debug.callback(host, x), x**2)[1], host))
    assert f(jnp.float32(2.0)) == 4.0
    assert log.value.tolist() == [0.0, 2.0, 0.0]


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
