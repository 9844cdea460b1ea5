"""Over states the list is that of the hand-threaded program, whose new values are auxiliary."""

from __future__ import annotations

from collections import Counter

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name

from statetransform import State, inspect, policies, transform
from statetransform.policies._apply import checkpointed

from ..cases import CASES

PAIRS = {
    "bare": (lambda f: f, lambda f: f),
    "jit": (transform.jit, jax.jit),
    "checkpoint": (transform.checkpoint, jax.checkpoint),
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


W = State(jnp.full((4, 4), 0.1), name="W")
X = jnp.ones(4)
layer = lambda x: jnp.sin(W.value @ x)


def stacked(around):
    def three(x):
        for _ in range(3):
            x = around(layer)(x)
        return x

    return three


def computed(fun) -> list[str | None]:
    return sorted(str(r.name or r.primitive) for r in inspect.residuals(fun, X) if r.kind in ("computed", "named"))


def products(f):
    return transform.checkpoint(f, policy=policies.dots_with_no_batch_dims_saveable)


@pytest.mark.parametrize(
    ("around", "kept"),
    [
        (lambda f: f, ["cos", "cos", "cos", "sin", "sin"]),
        (transform.checkpoint, ["sin", "sin"]),
        (products, ["dot_general", "dot_general", "dot_general", "sin", "sin"]),
    ],
    ids=["no checkpoint", "a checkpoint on each", "products are saved"],
)
def test_three_stacked_layers(around, kept):
    assert computed(stacked(around)) == kept


def test_a_name_among_three_stacked_layers():
    def named(x):
        x = checkpoint_name(layer(x), "a")
        return layer(layer(x))

    policy = policies.save_only_these_names("a")
    found = inspect.residuals(transform.checkpoint(named, policy=policy), X)
    assert [(r.name, r.primitive) for r in found if r.kind == "named"] == [("a", "sin")]
    assert found.totals == {"argument": 16, "state": 64, "named": 16}


def test_a_relu_pipeline_with_a_policy_that_saves_has_the_same_gradient():
    def relus(w, x):
        for _ in range(3):
            x = jax.nn.relu(checkpoint_name(w @ x, "pre"))
        return x.sum()

    again = checkpointed(relus, policy=policies.save_only_these_names("pre"))
    assert (jax.grad(again)(W.value, X) == jax.grad(relus)(W.value, X)).all()
    found = inspect.residuals(again, W.value, X)
    assert [r.name for r in found if r.kind == "named"] == ["pre", "pre", "pre"]
