"""Reads of states inside raw JAX transforms, which cache what they trace by the identity of a function."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from statetransform import Param, StaleReadWarning, transform


@pytest.fixture(autouse=True)
def other_tests_do_not_pay() -> Iterator[None]:
    yield
    jax.clear_caches()


def make() -> tuple[Param, Any]:
    """A state, and a function that reads it in the body of a raw scan."""
    w = Param(1.0, name="w")
    body = lambda c, _: (c + w.value, None)
    return w, lambda: jax.lax.scan(body, 0.0, length=2)[0]


TRANSFORMS = {
    "jit": lambda f, w: transform.jit(f)(),
    "checkpoint": lambda f, w: transform.checkpoint(f)(),
    "value_and_grad": lambda f, w: transform.value_and_grad(f, states=w)()[0],
    "jit of grad": lambda f, w: transform.jit(transform.value_and_grad(f, states=w))()[0],
    "in a loop": lambda f, w: transform.for_loop(lambda: f(), length=1)[0],
}


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("is_read_before", [False, True])
def test_a_read_in_a_raw_transform_is_fresh_under_ours(name: str, is_read_before: bool) -> None:
    w, f = make()
    if is_read_before:
        with pytest.warns(StaleReadWarning, match="Param 'w' .* is read inside a raw JAX transform"):
            f()
    for value in (3.0, 5.0, 7.0):
        w.value = value
        assert TRANSFORMS[name](f, w) == 2 * value


def test_the_gradient_flows_through_a_read_in_a_raw_transform() -> None:
    w, f = make()
    assert [float(transform.grad(f, states=w)()) for _ in range(2)] == [2.0, 2.0]


def test_a_raw_function_in_two_traces_keeps_no_tracer_of_the_first() -> None:
    w = Param(3.0)
    h = jax.jit(lambda x: w.value * x)
    f = transform.jit(lambda x, y: h(x) + y.sum())
    assert (f(1.0, jnp.ones(1)), f(1.0, jnp.ones(2))) == (4.0, 5.0)


def test_a_write_in_the_same_trace_is_seen_by_the_next_read() -> None:
    w = Param(3.0)
    h = jax.jit(lambda x: w.value * x)

    def f(x: Any) -> Any:
        before = h(x)
        w.value = w.value + 1
        return before, h(x)

    assert transform.jit(f)(1.0) == (3.0, 4.0)
    assert transform.checkpoint(f)(1.0) == (4.0, 5.0)
    assert w.value == 5.0


def test_under_raw_jax_alone_a_warning_says_so_once_for_each_place() -> None:
    w = Param(1.0, name="w")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(2):
            jax.jit(lambda x: w.value * x)(1.0)
        jax.grad(lambda x: w.value * x)(1.0)  # runs at once, and caches nothing
    assert [warning.category for warning in seen] == [StaleReadWarning]
    assert seen[0].filename == __file__


def test_programs_without_such_reads_are_not_traced_again() -> None:
    w, runs = Param(2.0), []
    h = jax.jit(lambda x: (runs.append(1), x * 2)[1])
    for n in range(1, 4):
        transform.jit(lambda x, n=n: h(x) * w.value * n)(1.0)
    assert len(runs) == 1
