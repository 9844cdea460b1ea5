"""`map` with checkpoints, progress and batches."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import statetransform as st
from statetransform import RandomState, State, transform

XS = jnp.linspace(0.1, 1.0, 7)


def program(t: Any, w: Any, **options: Any) -> Any:
    """A running sum as a state, or by hand."""
    if t is jax:
        step = lambda s, x: (s + jnp.tanh(w * x), jnp.sin(w * x) * s)
        s, ys = jax.lax.scan(step, jnp.float32(0.5), XS)
        return s + ys.sum()
    s = State(jnp.float32(0.5), name="s")

    def f(x: Any) -> Any:
        y = jnp.sin(w * x) * s.value
        s.value = s.value + jnp.tanh(w * x)
        return y

    ys = transform.map(f, XS, **options)
    return s.value + ys.sum()


@pytest.mark.parametrize("checkpoint", [None, "step", 2, "sqrt", st.MemoryBudget("1KiB")], ids=str)
@pytest.mark.parametrize("way", [lambda f: f, transform.jit], ids=["eager", "jit"])
def test_gradients_with_checkpoints_are_those_of_the_loop(checkpoint: Any, way: Any) -> None:
    found = way(transform.value_and_grad(lambda w: program(transform, w, checkpoint=checkpoint)))(0.7)
    np.testing.assert_allclose(found, jax.value_and_grad(lambda w: program(jax, w))(0.7), rtol=1e-5)


def wide(x: Any) -> Any:
    for _ in range(10):
        x = jnp.sin(jnp.outer(x, x)).sum(0)
    return x.sum()


@pytest.mark.parametrize(("batch_size", "n"), [(None, 7), (3, 7), (7, 7), (9, 7), (0, 7), (2, 6)])
def test_what_the_slices_need_is_recomputed(batch_size: int | None, n: int) -> None:
    xs = jnp.sin(jnp.arange(200.0 * n)).reshape(n, 200)
    plain = jax.jit(jax.grad(lambda xs: jax.lax.map(wide, xs).sum()))
    gradient = lambda checkpoint: jax.jit(
        jax.grad(lambda xs: transform.map(wide, xs, batch_size=batch_size, checkpoint=checkpoint).sum())
    )
    np.testing.assert_allclose(gradient("step")(xs), plain(xs), rtol=1e-4, atol=1e-5)
    size = lambda f: f.lower(xs).compile().memory_analysis().temp_size_in_bytes
    if batch_size is None:
        assert size(gradient("step")) < 0.5 * size(gradient(None))


def test_a_bar_moves() -> None:
    pytest.importorskip("tqdm")
    found = transform.map(jnp.sin, XS, progress={"disable": True, "every": 2})
    np.testing.assert_allclose(found, jnp.sin(XS), rtol=1e-6)
    np.testing.assert_allclose(transform.map(jnp.sin, XS, batch_size=2, progress={"disable": True}), found)


def test_a_batch_sees_what_the_one_before_wrote() -> None:
    n, rng = State(0, name="n"), RandomState(0)

    def f(x: Any) -> Any:
        n.value = n.value + 1
        return n.value, jax.random.normal(rng.split())

    seen, drawn = transform.map(f, XS, batch_size=3)
    assert seen.tolist() == [1, 1, 1, 2, 2, 2, 3]
    assert n.value == 3
    assert len(set(drawn.tolist())) == 7


@pytest.mark.parametrize("way", [lambda f: f, transform.jit], ids=["eager", "jit"])
def test_a_write_that_differs_within_a_batch_is_refused_in_words_of_map(way: Any) -> None:
    total = State(0.0, name="total")

    def f(x: Any) -> None:
        total.value = total.value + x

    for size in (2, 7, 0):
        with pytest.raises(st.StateAxisError) as error:
            way(lambda size=size: transform.map(f, XS, batch_size=size))()
        text = str(error.value)
        assert text.startswith("map: State 'total' (created at test_map.py:")
        assert "With `batch_size=`, the slices of a batch are evaluated at once. Leave it out" in text
        assert "state_axes" not in text
        assert total.value == 0.0
    transform.map(f, XS)
    np.testing.assert_allclose(total.value, XS.sum(), rtol=1e-6)
