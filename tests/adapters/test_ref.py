"""`jax.Ref`: what no other cell has; the guarantees are in `test_guarantees.py`."""

from __future__ import annotations

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
    """Writes all of it, a part of it, and by each function of `jax.ref`."""

    def step(x: Any) -> Any:
        ref[...] = jax.ref.get(ref) * x
        ref[1] = ref[1] + x / 2
        jax.ref.addupdate(ref, 1, x / 2)
        before = jax.ref.swap(ref, 0, x)
        ref.addupdate(before - x, 0)
        jax.ref.set(ref, 2, ref[2])
        return jnp.sum(jnp.sin(ref[...]))

    return step


@pytest.fixture
def ref() -> Any:
    return jax.new_ref(N)


def test_a_ref_that_is_written_in_every_way_gives_what_the_hand_threaded_function_gives(ref: Any) -> None:
    expected = jax.value_and_grad(lambda n, x: pure(n, x)[0], (0, 1))(N, X)
    for around in (lambda f: f, transform.jit, transform.checkpoint, lambda f: transform.jit(transform.checkpoint(f))):
        gradient = transform.value_and_grad(around(step_of(ref)), argnums=0, states=ref)
        for _ in range(2):
            ref[...] = jnp.copy(N)
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), gradient(X), expected)
            np.testing.assert_allclose(ref[...], pure(N, X)[1], rtol=1e-5)


def test_a_pullback_keeps_its_residuals_when_the_ref_is_written_in_place(ref: Any) -> None:
    _, pull = transform.vjp(lambda x: jnp.sum(ref[...] * x), X)
    ref[...] = jnp.full(3, 100.0)
    np.testing.assert_allclose(pull(jnp.float32(1.0))[0], jnp.sum(N), rtol=1e-6)


def test_ours_inside_raw_jit_reads_and_writes_in_the_raw_trace(ref: Any) -> None:
    step = step_of(ref)

    @jax.jit
    def raw(x: Any) -> Any:
        return transform.checkpoint(step)(x) + transform.grad(lambda x: jnp.sum(ref[...] * x))(x)

    n = N
    for i in range(3):
        ref[...] = n = N + i
        out, n = pure(n, X)
        np.testing.assert_allclose(raw(X), out + jnp.sum(n), rtol=1e-5)
        np.testing.assert_allclose(ref[...], n, rtol=1e-5)


def test_types_are_kept_as_in_jax(ref: Any) -> None:
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


def test_a_view_and_a_freeze_inside_are_refused_by_name(ref: Any) -> None:
    with pytest.raises(st.StateTraceError, match="Index the Ref itself"):
        transform.jit(lambda: ref.at[0])()
    with pytest.raises(st.StateTraceError, match="freeze it outside"):
        transform.jit(lambda: jax.ref.freeze(ref))()
    np.testing.assert_allclose(jax.ref.freeze(ref), N)


def test_a_ref_made_inside_is_of_jax() -> None:
    def body(x: Any) -> Any:
        inner = jax.new_ref(N)
        inner[...] = inner[...] * x
        return jnp.sum(inner[...])

    for wrap in (transform.jit, transform.checkpoint, lambda f: f):
        np.testing.assert_allclose(wrap(body)(X), jnp.sum(N * X), rtol=1e-6)
    np.testing.assert_allclose(transform.grad(body)(X), jnp.sum(N), rtol=1e-6)


def test_refs_are_found_and_named(ref: Any) -> None:
    assert list(st.states({"a": {"r": ref}}, jax.Ref)) == ["a.r"]
    assert st.states({"a": {"r": ref}})["a.r"].name == "a.r"


def test_what_a_compiled_call_returns_is_not_overwritten_by_the_next_write(ref: Any) -> None:
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


@pytest.mark.parametrize("wrap", [transform.jit, transform.checkpoint, lambda f: transform.jit(transform.grad(f))])
def test_a_raw_transform_of_which_it_is_an_argument_is_refused_beside_uses_of_our_own(wrap: Any) -> None:
    ref = jax.new_ref(1.0)
    add = jax.jit(lambda ref, x: ref.__setitem__(..., ref[...] + x))

    def step(x: Any) -> Any:
        add(ref, 1.0)
        return ref[...] * x

    with pytest.raises(st.StateTraceError, match=r"Ref 'ref' .* is an argument of a raw JAX transform"):
        wrap(step)(2.0)
    assert ref[...] == 1
    only_raw = wrap(lambda x: (add(ref, 1.0), 2 * x)[1])
    assert only_raw(2.0) in (2, 4)
    assert ref[...] == 2
