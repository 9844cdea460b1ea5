"""Bars from inside compiled loops: they move, forward and backward, and change nothing."""

from __future__ import annotations

import io
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tqdm

from statetransform import State, transform


def shown(run: Any) -> str:
    file = io.StringIO()
    run(file)
    jax.effects_barrier()
    return file.getvalue()


@pytest.mark.parametrize("checkpoint", [None, "step", 3])
@pytest.mark.parametrize("is_reversed", [False, True])
def test_a_bar_for_each_sweep_and_the_same_bits(checkpoint: Any, is_reversed: bool) -> None:
    def run(progress: Any) -> Any:
        u = State(jnp.ones(3), name="u")

        def loss(x: Any) -> Any:
            def step(carry: Any, x: Any) -> Any:
                u.value = jnp.sin(u.value * carry + x)
                return carry * 1.01, u.value.sum()

            options = {"checkpoint": checkpoint, "progress": progress, "reverse": is_reversed}
            carry, ys = transform.scan(step, x, jnp.arange(20.0), **options)
            return carry + ys.sum()

        return *transform.jit(transform.value_and_grad(loss))(0.5), *u.value.tolist()

    found = []
    text = shown(lambda file: found.append(run({"file": file, "every": 5})))
    assert found[0] == run(None)
    assert "scan:" in text and "20/20" in text.split("(backward)")[0]
    assert "20/20" in text.split("(backward)")[-1]


def test_other_loops() -> None:
    text = shown(lambda file: transform.for_loop(lambda x: x, jnp.arange(3), progress={"file": file, "desc": "mine"}))
    assert "mine:" in text and "3/3" in text
    text = shown(lambda file: transform.fori_loop(2, 9, lambda i, c: c + i, 0.0, progress={"file": file}))
    assert "fori_loop:" in text and "7/7" in text
    loop = lambda x, file: transform.while_loop(
        lambda x: x < 20, lambda x: x * 1.5, x, checkpoint=2, progress={"file": file, "every": 2}
    )
    text = shown(lambda file: jax.grad(loop)(1.0, file))
    assert "while_loop:" in text and "8/8" in text.split("(backward)")[-1]


def test_a_compiled_gradient_shows_one_bar_that_ends_full() -> None:
    loop = lambda w, file: transform.fori_loop(
        0, 5, lambda i, c: jnp.sin(c * w), w, checkpoint=2, progress={"file": file, "every": 1, "mininterval": 0}
    )
    text = shown(lambda file: transform.jit(lambda w: transform.grad(loop)(w, file))(1.0)).split("(backward)")[0]
    assert text.count("0/5") == 1 and text.rindex("5/5") > text.rindex("4/5")


def test_each_run_has_its_own_bar() -> None:
    def run(file: Any) -> None:
        loop = jax.jit(lambda x: transform.scan(lambda c, _: (c + 1, None), x, None, 4, progress={"file": file})[0])
        for _ in range(3):
            loop(0.0).block_until_ready()
            jax.effects_barrier()

    assert shown(run).count("4/4") == 3


@pytest.mark.parametrize("checkpoint", [None, 2])
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
def test_a_loop_of_unknown_length_closes_its_bar(compiled: bool, checkpoint: Any) -> None:
    def run(file: Any) -> None:
        def loop(n: Any) -> Any:
            options = {"checkpoint": checkpoint, "progress": {"file": file, "every": 2}}
            return transform.while_loop(lambda i: i < n, lambda i: i + 1, jnp.zeros_like(n), **options)

        loop = transform.jit(loop) if compiled else loop
        for n in (3.0, 4.0, 5.0):
            assert loop(jnp.float32(n)) == n
            jax.effects_barrier()

    before = len(tqdm.tqdm._instances)
    lines = [line.split("\r")[-1] for line in shown(run).split("\n")]
    assert len(tqdm.tqdm._instances) == before
    assert [line.split("it ")[0].split(": ")[1] for line in lines if line] == ["3", "4", "5"]


@pytest.mark.parametrize("n", [1, 7, 20, 41, 1009])
@pytest.mark.parametrize("is_reversed", [False, True])
def test_chunks_of_any_size_are_the_plain_scan(n: int, is_reversed: bool) -> None:
    step = lambda c, x: (jnp.sin(c + x["a"]), (c, x["a"] * 2))
    xs = {"a": jnp.linspace(0, 1, n)}
    expected = jax.lax.scan(step, 0.5, xs, reverse=is_reversed)
    found = []
    shown(lambda file: found.append(transform.scan(step, 0.5, xs, reverse=is_reversed, progress={"file": file})))
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b), found[0], expected)


def test_under_vmap() -> None:
    loop = lambda x, file: transform.scan(lambda c, _: (jnp.sin(c), None), x, None, 6, progress={"file": file})[0]
    found = []
    text = shown(lambda file: found.append(jax.vmap(jax.grad(lambda x: loop(x, file)))(jnp.arange(3.0))))
    assert "6/6" in text
    plain = lambda x: jax.lax.scan(lambda c, _: (jnp.sin(c), None), x, None, 6)[0]
    assert (found[0] == jax.vmap(jax.grad(plain))(jnp.arange(3.0))).all()


@pytest.mark.parametrize("progress", [1.5, object(), {"every": 0}, {"every": 1.5}, {"color": "red", "unit": "step"}])
def test_what_is_no_configuration_is_refused(progress: Any) -> None:
    text = r"scan: .*(`progress` must be True|`every` is|`tqdm` does not know: \['color'\])"
    with pytest.raises((TypeError, ValueError), match=text):
        transform.scan(lambda c, _: (c, None), 0.0, None, 3, progress=progress)
