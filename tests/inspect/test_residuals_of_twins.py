"""Over states the list is that of the hand-threaded program, whose new values are auxiliary."""

from __future__ import annotations

from collections import Counter

import jax
import jax.numpy as jnp
import pytest

from statetransform import inspect, transform

from ..cases import CASES

PAIRS = {
    "bare": (lambda f: f, lambda f: f),
    "jit": (transform.jit, jax.jit),
    "checkpoint of jit": (lambda f: transform.checkpoint(transform.jit(f)), lambda f: jax.checkpoint(jax.jit(f))),
    "in a loop": (
        lambda f: lambda x: transform.for_loop(lambda: f(x), length=3).sum(),
        lambda f: lambda v, x: _looped(f, v, x),
    ),
}


def _looped(f, values, x):
    def body(v, _):
        out, v = f(v, x)
        return v, out

    values, out = jax.lax.scan(body, values, None, length=3)
    return out.sum(), values


def types(found) -> Counter:
    return Counter((record.shape, record.dtype) for record in found if record.kind != "constant")


# A loop's carry keeps its type.
TAKEN = [(pair, case) for pair in PAIRS for case in CASES if pair != "in a loop" or case.carries]


@pytest.mark.parametrize(("pair", "case"), TAKEN, ids=lambda part: getattr(part, "name", part))
def test_the_list_is_that_of_the_hand_threaded_program(case, pair):
    ours, theirs = PAIRS[pair]
    initial = jax.tree.map(jnp.asarray, case.initial())
    twin = theirs(case.twin)
    found = inspect.residuals(ours(case.make(case.states())), 2.0)
    reference = inspect.residuals(lambda values, x: twin(values, x)[0], initial, 2.0)
    if (case.name, pair) == ("numpy", "in a loop"):  # JAX converts the scalar once more in the loop by hand
        assert abs(found.bytes - reference.bytes) <= 4
    else:
        assert types(found) == types(reference)
    assert {record.name for record in found if record.kind == "state"} <= _names(case)


def _names(case) -> set[str]:
    return {
        name + jax.tree_util.keystr(path)
        for name, value in case.initial().items()
        for path, _ in jax.tree_util.tree_leaves_with_path(value)
    }
