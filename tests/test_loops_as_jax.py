"""Loops and branches take what JAX's take; what is theirs alone is explained."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from statetransform import State, transform


def test_a_loop_in_python_leaves_the_arrays_of_the_caller_alone() -> None:
    mine = np.zeros(2)

    def body(carry: Any) -> Any:
        i, x = carry
        x += 1
        return i + 1, x

    with jax.disable_jit():
        i, x = transform.while_loop(lambda carry: carry[0] < 2, body, (0, mine))
    assert mine.tolist() == [0.0, 0.0] and x.tolist() == [2.0, 2.0] and isinstance(i, jax.Array)


@pytest.mark.parametrize("derive", [transform.grad, transform.value_and_grad, transform.jacrev, transform.hessian])
def test_the_gradient_of_a_plain_while_loop_says_what_to_write(derive: Any) -> None:
    with pytest.raises(ValueError, match="Reverse-mode") as info:
        derive(lambda x: transform.while_loop(lambda c: c < 20.0, lambda c: c * 1.5, x))(1.0)
    notes = "\n".join(info.value.__notes__)
    assert "checkpoint=20" in notes
    assert notes.count("policies.loops(20)") == 1


@pytest.mark.parametrize("wrap", [transform.jit, transform.checkpoint, transform.named_call])
def test_so_does_a_transform_around_a_gradient_of_jax_and_a_loop_of_jax(wrap: Any) -> None:
    halved = lambda x: jax.lax.while_loop(lambda x: x > 1.0, lambda x: x / 2, x)
    with pytest.raises(ValueError, match="Reverse-mode") as info:
        wrap(lambda x: jax.grad(halved)(x))(5.0)
    assert "\n".join(info.value.__notes__).count("policies.loops(20)") == 1


@pytest.mark.parametrize("wrap", [lambda f: f, transform.jit], ids=["eager", "jit"])
def test_branches_of_different_types_are_named_with_their_types_and_places(wrap: Any) -> None:
    u = State(jnp.ones(3), name="u")

    def first(x: Any) -> Any:
        return u.value * x

    def second(x: Any) -> Any:
        return {"y": x}

    said = r"(?s)true_fun: float32\[3\]   \(first at test_loops_as_jax.py:\d+\).*"
    said += r"false_fun: \{'y': float32\[\]\}   \(second at"
    with pytest.raises(TypeError, match=said) as info:
        wrap(lambda x: transform.cond(x > 0, first, second, x))(1.0)
    assert "_branches.py" not in str(info.value)
    with pytest.raises(TypeError, match=r"(?s)branch 0: float32\[3\].*branch 1: float32\[1\]"):
        wrap(lambda x: transform.switch(0, [first, lambda x: x[None]], x))(1.0)


def test_objects_are_no_arrays_to_loop_over() -> None:
    with pytest.raises(
        ValueError, match=r"pass `xs`, .*`xs` has none: states, and objects that hold states, are passed w"
    ):
        transform.scan(lambda carry, x: (carry, x.value), 0.0, State(jnp.ones(3)))
