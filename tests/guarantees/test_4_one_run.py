"""Guarantee 4: the body runs once per trace, and not at all on a compiled call whose signature was seen before."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from statetransform import State, transform

from ..tables import BY_NAME, Row

STAGED = ["checkpoint", "jit", "scan", "for_loop", "fori_loop", "while_loop", "cond"]
DIRECT = ["named_call", "discard_writes", "grad", "jvp", "vjp", "vmap"]


def counting() -> tuple[Any, list[int], State]:
    runs, n = [0], State(jnp.int32(0), name="n")

    def f(x: Any) -> Any:
        runs[0] += 1
        n.value = n.value + 1
        return jnp.sin(x) * n.value

    return f, runs, n


@pytest.mark.parametrize("name", STAGED + DIRECT)
def test_the_body_runs_once_for_the_first_call(name: str) -> None:
    f, runs, _ = counting()
    BY_NAME[name].ours(f)(jnp.float32(1))
    assert runs == [1]


@pytest.mark.parametrize("name", ["checkpoint", "jit"])
def test_the_body_does_not_run_for_a_signature_seen_before(name: str) -> None:
    f, runs, n = counting()
    g = BY_NAME[name].ours(f)
    for i in range(1, 4):
        g(jnp.float32(i))
        assert n.value == i
    assert runs == [1]
    g(jnp.ones(2))
    assert runs == [2]
    g(jnp.float32(1))
    assert runs == [2]


DEEP = ["scan", "checkpoint", "grad", "cond", "jit", "vmap", "checkpoint"]


@pytest.mark.parametrize("depth", range(1, 7))
@pytest.mark.parametrize("order", [DEEP, DEEP[::-1]], ids=["scan first", "checkpoint first"])
def test_the_body_runs_once_at_any_depth(depth: int, order: list[str]) -> None:
    f, runs, _ = counting()
    for name in order[:depth]:
        f = BY_NAME[name].ours(f)
    g = transform.jit(f)
    g(jnp.float32(1))
    assert runs == [1]
    g(jnp.float32(2))
    assert runs == [1]


@pytest.mark.parametrize("depth", range(1, 7))
def test_the_body_runs_once_when_inner_wrappers_are_created_anew(depth: int) -> None:
    f, runs, _ = counting()

    def nest(level: int) -> Any:
        if level == 0:
            return f
        row: Row = BY_NAME[DEEP[level % len(DEEP)]]
        return lambda x: row.ours(nest(level - 1))(x)

    transform.jit(nest(depth))(jnp.float32(1))
    assert runs == [1]


def test_a_function_used_several_times_in_a_trace_is_traced_once_as_in_jax() -> None:
    f, runs, n = counting()
    step = transform.checkpoint(f)
    transform.grad(lambda x: step(x) + step(x) + step(x) + step(x))(jnp.float32(1))
    assert runs == [1]
    assert n.value == 4


def test_a_loop_whose_carry_loses_its_weak_type_traces_twice_as_in_jax() -> None:
    s, runs, reference = State(0, name="s"), [0], [0]

    def body(c: Any, _: Any) -> Any:
        runs[0] += 1
        s.value = s.value + 0.5
        return c, s.value

    def twin(c: Any, _: Any) -> Any:
        reference[0] += 1
        return c + 0.5, c + 0.5

    _, ys = transform.scan(body, None, None, length=3)
    value, expected = jax.lax.scan(twin, 0, None, length=3)
    assert ys.tolist() == expected.tolist()
    assert s.value == value
    assert runs == reference == [2]


def test_a_python_scalar_state_does_not_compile_more_often_than_the_twin() -> None:
    s, runs, reference = State(0.0), [0], [0]

    @transform.jit
    def f(x: Any) -> None:
        runs[0] += 1
        s.value = s.value + x

    @jax.jit
    def twin(v: Any, x: Any) -> Any:
        reference[0] += 1
        return v + x

    v: Any = 0.0
    for x in (1.0, 1.0, jnp.float32(1), jnp.float32(1), 1.0):
        f(x)
        v = twin(v, x)
    assert s.value == v
    assert runs == reference
