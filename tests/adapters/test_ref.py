"""`jax.Ref` closed over, passed and written: the guarantees."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import statetransform as st
from statetransform import transform

N = jnp.array([0.3, 0.5, 0.7])
X = jnp.array(1.5)


def pure(n: Any, x: Any) -> Any:
    n = (n * x).at[1].add(x)
    return jnp.sum(jnp.sin(n)), n


def step_of(ref: Any) -> Any:
    def step(x: Any) -> Any:
        ref[...] = ref[...] * x
        ref[1] = ref[1] + x
        return jnp.sum(jnp.sin(ref[...]))

    return step


def functions_step_of(ref: Any) -> Any:
    def step(x: Any) -> Any:
        jax.ref.set(ref, ..., jax.ref.get(ref) * x)
        jax.ref.addupdate(ref, 1, x)
        before = jax.ref.swap(ref, 0, jnp.float32(0.0))
        ref.addupdate(before, 0)
        return jnp.sum(jnp.sin(ref[...]))

    return step


@pytest.fixture(params=[step_of, functions_step_of])
def pair(request: Any) -> Any:
    ref = jax.new_ref(N)
    return ref, request.param(ref)


@pytest.mark.parametrize("name", ["jit", "checkpoint", "named_call"])
def test_a_ref_closed_over_and_written_gives_what_the_hand_threaded_function_gives(pair: Any, name: str) -> None:
    ref, step = pair
    wrapped, n = getattr(transform, name)(step), N
    for _ in range(4):
        out, n = pure(n, X)
        np.testing.assert_allclose(wrapped(X), out, rtol=1e-5)
        np.testing.assert_allclose(ref[...], n, rtol=1e-5)


def test_a_written_ref_is_differentiated_and_checkpointed(pair: Any) -> None:
    ref, step = pair
    expected = jax.grad(lambda n, x: pure(n, x)[0], (0, 1))(N, X)
    for around in (lambda f: f, transform.jit, transform.checkpoint, lambda f: transform.jit(transform.checkpoint(f))):
        ref[...] = jnp.copy(N)
        by_ref, (by_x,) = transform.grad(around(step), argnums=(0,), states=ref)(X)
        np.testing.assert_allclose(by_ref, expected[0], rtol=1e-5)
        np.testing.assert_allclose(by_x, expected[1], rtol=1e-5)
        np.testing.assert_allclose(ref[...], pure(N, X)[1], rtol=1e-5)


def test_a_pullback_keeps_its_residuals_when_the_ref_is_written_in_place(pair: Any) -> None:
    ref, _ = pair
    _, pull = transform.vjp(lambda x: jnp.sum(ref[...] * x), X)
    ref[...] = jnp.full(3, 100.0)
    np.testing.assert_allclose(pull(jnp.float32(1.0))[0], jnp.sum(N), rtol=1e-6)


def test_lanes_of_a_ref(pair: Any) -> None:
    ref, _ = pair

    def double() -> None:
        ref[...] = ref[...] * 2

    transform.vmap(double, axis_size=3, state_axes={ref: 0})()
    np.testing.assert_allclose(ref[...], 2 * N)
    with pytest.raises(st.StateAxisError, match="Ref "):
        transform.vmap(lambda x: ref.__setitem__(0, x))(N)
    np.testing.assert_allclose(ref[...], 2 * N)


def test_a_write_in_a_raw_transform_inside_ours_is_refused(pair: Any) -> None:
    ref, step = pair
    with pytest.raises(st.StateTraceError, match="raw JAX transform"):
        transform.jit(lambda x: jax.lax.scan(lambda c, x: (c, step(x)), None, x))(N)
    np.testing.assert_allclose(ref[...], N)


def test_ours_inside_raw_jit_reads_and_writes_in_the_raw_trace(pair: Any) -> None:
    ref, step = pair

    @jax.jit
    def raw(x: Any) -> Any:
        return transform.checkpoint(step)(x) + transform.grad(lambda x: jnp.sum(ref[...] * x))(x)

    n = N
    for i in range(3):
        ref[...] = n = N + i
        out, n = pure(n, X)
        np.testing.assert_allclose(raw(X), out + jnp.sum(n), rtol=1e-5)
        np.testing.assert_allclose(ref[...], n, rtol=1e-5)


def test_types_are_kept_as_in_jax(pair: Any) -> None:
    ref, _ = pair
    for write in (
        lambda: ref.__setitem__(..., 5.0),
        lambda: ref.__setitem__(0, 1),
        lambda: ref.__setitem__(slice(0, 2), 1.0),
        lambda: ref.addupdate(1.0),
        lambda: setattr(next(iter(st.states([ref]).values())), "value", 1.0),
    ):
        with pytest.raises(ValueError):
            write()
        with pytest.raises(ValueError):
            transform.jit(write)()
    transform.jit(lambda: ref.__setitem__(0, 5.0))()
    assert ref[0] == 5


def test_a_view_and_a_freeze_inside_are_refused_by_name(pair: Any) -> None:
    ref, _ = pair
    with pytest.raises(st.StateTraceError, match="Index the Ref itself"):
        transform.jit(lambda: ref.at[0])()
    with pytest.raises(st.StateTraceError, match="freeze it outside"):
        transform.jit(lambda: jax.ref.freeze(ref))()
    np.testing.assert_allclose(jax.ref.freeze(ref), N)


def test_a_ref_made_inside_is_of_jax(pair: Any) -> None:
    def body(x: Any) -> Any:
        inner = jax.new_ref(N)
        inner[...] = inner[...] * x
        return jnp.sum(inner[...])

    for wrap in (transform.jit, transform.checkpoint, lambda f: f):
        np.testing.assert_allclose(wrap(body)(X), jnp.sum(N * X), rtol=1e-6)
    np.testing.assert_allclose(transform.grad(body)(X), jnp.sum(N), rtol=1e-6)


def test_refs_are_found_named_and_freed(pair: Any) -> None:
    ref, _ = pair
    assert list(st.states({"a": {"r": ref}}, jax.Ref)) == ["a.r"]
    assert st.states({"a": {"r": ref}})["a.r"].name == "a.r"
    other = jax.new_ref(N)
    transform.jit(lambda r, x: step_of(r)(x))(other, X)
    gone = weakref.ref(other)
    gc.collect()
    del other
    assert gone() is None


def test_what_a_compiled_call_returns_is_not_overwritten_by_the_next_write() -> None:
    ref = jax.new_ref(N)

    @transform.jit
    def step(x: Any) -> Any:
        before = ref[...]
        ref[...] = before * x
        return before, ref[...]

    n, seen = N, []
    for _ in range(40):  # until the way in of a call is written down
        seen.append((step(X * 0.9), n))
        n = n * (X * 0.9)
        ref[0] = jnp.float32(0.1)
        n = n.at[0].set(0.1)
    for (before, after), expected in seen:
        np.testing.assert_allclose(before, expected, rtol=1e-4)
        np.testing.assert_allclose(after, expected * X * 0.9, rtol=1e-4)


@pytest.mark.parametrize("wrap", [lambda f: f, transform.jit, transform.grad], ids=["eager", "jit", "grad"])
def test_a_ref_that_is_not_lifted_is_a_constant_of_the_call(wrap: Any) -> None:
    f = wrap(transform.checkpoint(lambda x, r: r[...] * x**2, states=st.Param))
    ref, values = jax.new_ref(2.0), (2.0, 5.0)
    expected = [wrap(lambda x, v=v: v * x**2)(3.0) for v in values]
    found = []
    with pytest.warns(UserWarning, match="matches none of the states"):
        for value in values:
            ref[...] = value
            found.append(f(3.0, ref))
    assert found == expected
