"""`policies.loops` on random programs of JAX's own loops, against the same steps written out in Python.

A program maps `(x, n, key)` to the same: an array, a counter and a random key. `Staged` runs its description with JAX's
loops, branches and calls; `WrittenOut` runs it step by step, on values.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as hs
from jax import lax

import statetransform as st
from statetransform import policies, transform

Carry = tuple[Any, Any, Any]
LANES = np.array([1.0, 0.7])


@dataclasses.dataclass(frozen=True)
class Part:
    """One part of a program.

    Attributes:
      kind: what it does.
      number: a coefficient, or a number of steps.
      inside: the programs in it.
    """

    kind: str
    number: float = 0.0
    inside: tuple[tuple[Part, ...], ...] = ()


Program = tuple[Part, ...]


def programs(depth: int) -> hs.SearchStrategy[Program]:
    """Random programs, nested at most so deep."""
    numbers = hs.sampled_from([-0.7, 0.3, 1.1])
    simple = hs.builds(Part, hs.sampled_from(["mix", "table", "count", "draw", "print"]), numbers)
    if depth == 0:
        return hs.lists(simple, min_size=1, max_size=2).map(tuple)
    inner = programs(depth - 1)
    one, steps = hs.tuples(inner), hs.sampled_from([0.0, 1.0, 2.0, 5.0])
    loops = ["scan", "reversed scan", "fori_loop", "fori_loop to a traced bound", "while_loop", "while_loop by value"]
    calls = ["jit", "checkpoint", "vmap", "shard_map", "custom_jvp", "custom_vjp", "named_call"]
    part = hs.one_of(
        simple,
        hs.builds(Part, hs.sampled_from(loops), steps, one),
        hs.builds(Part, hs.sampled_from(loops), steps, one),
        hs.builds(Part, hs.sampled_from(calls), hs.just(0.0), one),
        hs.builds(Part, hs.sampled_from(["cond", "switch"]), numbers, hs.tuples(inner, inner)),
    )
    return hs.lists(part, min_size=1, max_size=2).map(tuple)


def simple(part: Part, x: Any, n: Any, key: Any) -> Carry:
    """A part without others inside."""
    if part.kind == "mix":
        x = jnp.sin(x) + part.number * jnp.roll(x, 1)
    elif part.kind == "table":
        x = x * jnp.asarray(np.linspace(0.5, 1.0, 3))[n % 3]
    elif part.kind == "count":
        n, x = n + 1, x + 0.1 * (n % 3) * jnp.cos(x)
    elif part.kind == "draw":
        key, used = jax.random.split(key)
        x = x + part.number * jax.random.normal(used, x.shape, x.dtype)
    else:
        jax.debug.callback(lambda x: None, x)
    return x, n, key


class Run:
    """Runs programs; how it runs what is in a loop, branch or call is for its subclasses."""

    def run(self, program: Program, x: Any, n: Any, key: Any) -> Carry:
        for part in program:
            if part.inside:
                inside = [functools.partial(self._within, inner) for inner in part.inside]
                x, n, key = self._nested(part, inside, (x, n, key))
            else:
                x, n, key = simple(part, x, n, key)
        return x, n, key

    def _within(self, program: Program, carry: Carry) -> Carry:
        return self.run(program, *carry)

    def _nested(self, part: Part, inside: list[Callable[[Carry], Carry]], carry: Carry) -> Carry:
        raise NotImplementedError


class Staged(Run):
    """Runs programs with loops, branches and calls of JAX."""

    def _nested(self, part: Part, inside: list[Callable[[Carry], Carry]], carry: Carry) -> Carry:
        f, steps = inside[0], int(part.number)
        (x, n, key), kind = carry, part.kind
        if kind in ("scan", "reversed scan"):
            body = lambda c, a: ((y := f((c[0] + a, *c[1:]))), y[0] * a)
            carry, ys = lax.scan(body, carry, jnp.arange(steps) / 5, reverse=kind != "scan")
            return carry[0] + ys.sum(0), *carry[1:]
        if kind == "fori_loop":
            return lax.fori_loop(0, steps, lambda i, c: f((c[0] + i / 5, *c[1:])), carry)
        if kind == "fori_loop to a traced bound":
            return lax.fori_loop(0, steps + n % 2, lambda i, c: f((c[0] + i / 5, *c[1:])), carry)
        if kind.startswith("while_loop"):
            goes_on = lambda c: (c[0] < steps) & ((kind == "while_loop") | (jnp.abs(c[1][0]).max() < 1.7))
            return lax.while_loop(goes_on, lambda c: (c[0] + 1, f(c[1])), (0, carry))[1]
        if kind == "cond":
            return lax.cond(x.sum() > part.number, *inside, carry)
        if kind == "switch":
            return lax.switch(n % 2, inside, carry)
        if kind == "vmap":
            lanes = jax.vmap(lambda a: f((a * x, n, key))[0])(jnp.asarray(LANES))
            return lanes.sum(0), n, key
        return self._called(kind, f, carry)

    def _called(self, kind: str, f: Callable[[Carry], Carry], carry: Carry) -> Carry:
        x, n, key = carry
        if kind == "shard_map" and x.shape == (2,):  # it is on one of the devices
            return f(carry)[0], n, key
        if kind == "shard_map":
            mesh = jax.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
            run = lambda x, n, key: f((x, n, key))[0]
            whole, parts = jax.P(), jax.P("i")
            options = {"mesh": mesh, "in_specs": (parts, whole, whole), "out_specs": parts, "check_vma": False}
            return jax.jit(jax.shard_map(run, **options))(x, n, key), n, key
        if kind == "custom_jvp":
            ruled = jax.custom_jvp(lambda x, n, key: f((x, n, key))[0])  # a rule closes over no tracer
            ruled.defjvp(lambda primals, dots: (ruled(*primals), dots[0] * f(primals)[0]))
            return ruled(x, n, key), n, key
        if kind == "custom_vjp":
            ruled = jax.custom_vjp(lambda x, n, key: f((x, n, key))[0])
            forward = lambda x, n, key: (f((x, n, key))[0], (x, n, key))
            ruled.defvjp(forward, lambda kept, ct: (ct * f(kept)[0], None, None))
            return ruled(x, n, key), n, key
        wrap = {"jit": jax.jit, "checkpoint": jax.checkpoint, "named_call": jax.named_call}[kind]
        return wrap(lambda carry: f(carry))(carry)


class WrittenOut(Run):
    def _nested(self, part: Part, inside: list[Callable[[Carry], Carry]], carry: Carry) -> Carry:
        f, steps = inside[0], int(part.number)
        (x, n, key), kind = carry, part.kind
        if kind in ("scan", "reversed scan"):
            total = jnp.zeros_like(x)
            for i in range(steps) if kind == "scan" else reversed(range(steps)):
                carry = f((carry[0] + i / 5, *carry[1:]))
                total += carry[0] * i / 5
            return carry[0] + total, *carry[1:]
        if kind.startswith("fori_loop"):
            for i in range(steps if kind == "fori_loop" else steps + int(n) % 2):
                carry = f((carry[0] + i / 5, *carry[1:]))
            return carry
        if kind.startswith("while_loop"):
            for _ in range(steps):
                if kind != "while_loop" and not jnp.abs(carry[0]).max() < 1.7:
                    break
                carry = f(carry)
            return carry
        if kind in ("cond", "switch"):
            return inside[0 if (x.sum() > part.number if kind == "cond" else int(n) % 2 == 0) else 1](carry)
        if kind == "vmap":
            return sum(f((a * x, n, key))[0] for a in LANES), n, key
        if kind == "shard_map":
            halves = [x] if x.shape == (2,) else jnp.split(x, 2)
            return jnp.concatenate([f((half, n, key))[0] for half in halves]), n, key
        if kind.startswith("custom"):
            # Twice the value with a slope of the value: what the rules say.
            value = lax.stop_gradient(f((lax.stop_gradient(x), n, key))[0])
            return value + (x - lax.stop_gradient(x)) * value, n, key
        return f(carry)


@pytest.fixture(autouse=True)
def programs_of_a_test_are_forgotten() -> Any:
    """A module's worth of them would take a gigabyte."""
    yield
    jax.clear_caches()


def test_gradients_are_those_of_the_steps_written_out(request: pytest.FixtureRequest) -> None:
    """Property: value and gradient of a random nest of loops, under `policies.loops` with a random number."""
    cases = max(request.config.getoption("--cases") // 10, 1)
    numbers = hs.sampled_from([0, 1, 3, 20, st.MemoryBudget("64 KiB")])

    @hypothesis.settings(max_examples=cases, suppress_health_check=list(hypothesis.HealthCheck))
    @hypothesis.given(program=programs(3), k=numbers)
    def test(program: Program, k: Any) -> None:
        with jax.enable_x64(True):  # so that no condition depends on rounding
            x, w, key = jnp.linspace(-0.4, 0.9, 4), jnp.array([1.0, -0.5, 2.0, 0.3]), jax.random.key(3)
            loss = lambda how: lambda x: (how.run(program, x, jnp.int32(1), key)[0] * w).sum()
            expected = jax.value_and_grad(loss(WrittenOut()))(x)
            reversible = transform.checkpoint(loss(Staged()), policy=policies.loops(k))
            found = transform.value_and_grad(reversible)(x)
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-8), found, expected)

    test()
