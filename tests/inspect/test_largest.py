"""`largest`: the size that fits as compiled, in at most six compilations; `peak`: what an allocator says."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import statetransform as st
from statetransform import Param, inspect, policies, transform
from statetransform.inspect._largest import _next

pytestmark = pytest.mark.optimized
W = jnp.eye(32) * 0.9


def loss(w: Any, x: Any, layers: int = 2) -> Any:
    for _ in range(layers):
        x = jnp.tanh(x @ w)
    return (x**2).sum()


def rows(n: int) -> Any:
    return W, jax.ShapeDtypeStruct((n, 32), jnp.float32)


def temp(n: int) -> int:
    return jax.jit(jax.value_and_grad(loss)).lower(*rows(n)).compile().memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize("n", [7, 1000])
def test_the_largest_size_fits_and_the_next_does_not(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[Any] = []
    compile = jax.stages.Lowered.compile
    monkeypatch.setattr(jax.stages.Lowered, "compile", lambda self, *a: compiled.append(self) or compile(self, *a))
    found = inspect.largest(loss, rows, temp(n), argnums=0)
    assert len(compiled) <= 1 + 6  # and one for `temp`
    assert temp(found) <= temp(n) < temp(found + 1)


GROWTH = {
    "in proportion to the size": (lambda x: (jnp.sin(jnp.tanh(x)) * x).sum(), lambda n: jnp.ones((n, 16))),
    "with its cube": (lambda x: (jnp.sin(jnp.roll(x, 1) + jnp.tanh(x)) ** 2).sum(), lambda n: jnp.ones((n, n, n))),
    "from nothing": (lambda x: jnp.sort(jnp.sin(x) * x).sum(), lambda n: jnp.ones(n)),
}


@pytest.mark.parametrize(
    ("growth", "budget"), [*((growth, 1_000_000) for growth in GROWTH), ("with its cube", 100_000_000)]
)
def test_sizes_that_grow_faster_are_found_too(growth: str, budget: int) -> None:
    f, arguments = GROWTH[growth]
    found = inspect.largest(f, arguments, budget)
    needed = lambda n: inspect.cost(f, arguments(n)).temporary_bytes or 0
    assert needed(found) <= budget < needed(int(1.1 * found) + 1)


BYTES = {
    "in proportion": lambda n: 4_000 * n,
    "with a constant": lambda n: 9_000_000 + 1_000 * n,
    "with the square": lambda n: 8_000_000 + 50 * n**2,
    "with a square at last": lambda n: 100_000 + 20_000 * n + 10 * n**2,
    "with the power 1.5": lambda n: int(1_000_000 + 3_000 * n**1.5),
    "in tiles": lambda n: -(-(1_000_000 + 3_000 * n) // 4096) * 4096,
    "with a jump": lambda n: int(14_000 * n * (1.1 if n > 400 else 1.0)),
}


@pytest.mark.parametrize("edge", [20, 548, 3000])
@pytest.mark.parametrize("growth", BYTES)
def test_six_sizes_lead_to_within_one_percent_of_the_edge(growth: str, edge: int) -> None:
    known: dict[int, int | None] = {1: BYTES[growth](1)}
    budget, fits, too_large = BYTES[growth](edge), 1, 2**31 - 1
    while len(known) < 6 and fits + 1 < too_large:
        n = _next(known, budget, fits, too_large)
        assert fits < n < too_large
        known[n] = size = BYTES[growth](n)
        fits, too_large = (n, too_large) if size <= budget else (fits, n)
    assert edge - max(1, edge // 100) <= fits and BYTES[growth](fits) <= budget


@pytest.mark.parametrize(
    "kind, is_made", [(AxisType.Auto, False), (AxisType.Explicit, False), (AxisType.Explicit, True)]
)
def test_the_size_on_several_devices_counts_the_bytes_of_one(kind: Any, is_made: bool) -> None:
    mesh = jax.make_mesh((jax.device_count(),), ("x",), axis_types=(kind,))
    w, by_rows = jax.device_put(W, NamedSharding(mesh, P())), NamedSharding(mesh, P("x"))

    def sharded(n: int) -> Any:
        shape = (1024 * n, 32)
        if is_made:
            return w, jax.device_put(jnp.ones(shape), by_rows)
        return w, jax.ShapeDtypeStruct(shape, jnp.float32, sharding=by_rows)

    temp = lambda n: jax.jit(jax.value_and_grad(loss)).lower(*sharded(n)).compile().memory_analysis().temp_size_in_bytes
    assert jax.device_count() > 1 and temp(8) < 1024 * 8 * 32 * 4
    found = inspect.largest(loss, sharded, temp(8), argnums=0)
    assert 7 <= found <= 8 and temp(found) <= temp(8)


def test_what_is_no_function_of_the_size_is_refused() -> None:
    with pytest.raises(TypeError, match="`arguments` is a function that gives the arguments for a size"):
        inspect.largest(loss, jnp.ones((4, 4)), "1 MiB")  # type: ignore[arg-type]


def test_the_size_of_a_function_with_states() -> None:
    w = Param(W)
    batch = lambda n: jnp.ones((n, 32))
    by_states = inspect.largest(lambda x: loss(w.value, x), batch, "256 KiB", states=w)
    assert by_states == inspect.largest(loss, rows, "256 KiB", argnums=0)


def test_a_budget_on_the_function_lets_more_in() -> None:
    deep = functools.partial(loss, layers=4)
    fitting = transform.checkpoint(deep, policy=policies.fit("256 KiB"))
    plain = inspect.largest(deep, rows, "256 KiB", argnums=0)
    assert inspect.largest(fitting, rows, "256 KiB", argnums=0) > plain


def test_a_budget_that_one_does_not_meet() -> None:
    with pytest.raises(st.BudgetError, match="does not fit into 16 B for a size of 1"):
        inspect.largest(loss, rows, 16)


class Device:
    def __init__(self, **stats: int) -> None:
        self.stats = stats

    def memory_stats(self) -> dict[str, int]:
        return dict(self.stats)


def test_a_peak_is_that_of_what_ran_and_a_bound_where_there_was_a_higher_one(monkeypatch: pytest.MonkeyPatch) -> None:
    new, old = Device(bytes_in_use=5, peak_bytes_in_use=10), Device(bytes_in_use=5, peak_bytes_in_use=90)
    monkeypatch.setattr(jax, "local_devices", lambda: [new, old])
    monkeypatch.setattr("statetransform.inspect._peak._wait", lambda devices: None)
    with inspect.peak() as found:
        new.stats["peak_bytes_in_use"] = 40
    assert found.by_device == {new: 40, old: 90}
    assert found.bounds == {old} and found.is_bound and found.bytes == 90
    assert found.bytes_before == {new: 5, old: 5}


def test_a_backend_without_an_allocator_gives_none() -> None:
    with inspect.peak() as found:
        jnp.ones(3).block_until_ready()
    assert found.bytes is None and not found.is_bound
    assert "unknown" in str(found)
