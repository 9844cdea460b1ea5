"""A checkpoint that cannot lower memory, and a policy that keeps nothing, are said in one sentence."""

from __future__ import annotations

import re
import warnings

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from statetransform import State, inspect, policies, transform

W = jnp.ones((64, 64))
X = jnp.ones((64,))
body = lambda c, _: (jnp.sin(W @ jnp.tanh(c)), None)
layer = lambda w, x: jnp.tanh(jnp.sin(w @ x))
loop = lambda x: lax.scan(body, x, None, length=50)[0]


def net(w, x):
    for _ in range(4):
        x = layer(w, x)
    return x


def careful(w, x):
    for _ in range(4):
        x = transform.checkpoint(layer)(w, x)
    return x


WHOLE_LOOP = ("is around a whole loop", "the residuals of all 50 iterations (", "scan(checkpoint(body), ...)")
act = transform.checkpoint(lambda y: jnp.maximum(y, 0.0) * 2.0)
no_batch = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
batched = jax.vmap(transform.checkpoint(layer, policy=no_batch))


def never(*_, **__):
    """A policy of one's own that chooses nothing."""
    return False


SAID = {
    "around a whole loop": (transform.checkpoint(loop), (X,), WHOLE_LOOP),
    "around a whole loop, by JAX": (jax.checkpoint(loop), (X,), WHOLE_LOOP),
    "around nearly everything": (
        transform.checkpoint(net),
        (W, X),
        ("The checkpoint of net (test_advice.py:", "one checkpoint for each of several pieces"),
    ),
    "around what fuses": (
        lambda w, x: w @ act(w @ x),
        (W, X),
        ("does not lower what is kept", "elementwise operations only, which XLA fuses"),
    ),
    "batched products": (
        batched,
        (jnp.ones((3, 64, 64)), jnp.ones((3, 64))),
        ("all have a batch dimension, as under `vmap` over weights; try `policies.dots_saveable`",),
    ),
    "products where there are none": (
        transform.checkpoint(jnp.sin, policy=policies.dots_saveable),
        (X,),
        ("there is no matrix product in it",),
    ),
    "a policy that chooses nothing": (
        transform.checkpoint(net, policy=never),
        (W, X),
        ("never of the checkpoint of net", "chooses none of the values there"),
    ),
}


@pytest.mark.parametrize("case", SAID)
def test_what_does_not_help_is_said_in_one_sentence(case):
    fun, args, words = SAID[case]
    (note,) = inspect.residuals(fun, *args).notes
    for text in words:
        assert text in note


def test_a_policy_that_looks_for_another_name():
    named = lambda x: jnp.sin(checkpoint_name(jnp.sin(x), "act"))
    for policy in (policies.save_only_these_names("Act"), jax.checkpoint_policies.save_only_these_names("Act")):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", policies.PolicyWarning)  # of our own policies, which remember their names
            report = inspect.residuals(transform.checkpoint(named, policy=policy), X)
        (note,) = report.notes
        assert re.match("The policy save_?only_?these_?names", note, re.IGNORECASE)
        assert "keeps nothing: the names there are 'act'; try" in note


def test_a_policy_of_names_where_nothing_has_one_says_how_to_give_one():
    w = State(jnp.ones((4, 4)), name="w")

    def layer(x):
        return jnp.tanh(w.value @ x)

    again = transform.checkpoint(layer, policy=policies.save_only_these_names("act"))
    with pytest.warns(policies.PolicyWarning):
        (note,) = inspect.residuals(lambda x: again(x).sum(), jnp.ones(4)).notes
    assert "of the checkpoint of layer (test_advice.py:" in note
    assert "keeps nothing: no value there has a name; give one with `checkpoint_name(value, name)`" in note


@pytest.mark.parametrize(
    "fun",
    [
        net,
        careful,
        lambda w, x: lax.scan(jax.checkpoint(body), x, None, length=50)[0],
        transform.checkpoint(net, policy=policies.dots_saveable),
        lambda w, x: transform.checkpoint(net)(w, transform.checkpoint(net)(w, x)),
    ],
)
def test_a_checkpoint_that_helps_is_not_talked_about(fun):
    assert inspect.residuals(fun, W, X).notes == ()


def test_a_step_of_a_simulation_is_not_talked_about():
    u = State(X, name="u")

    @transform.checkpoint
    def step(dt):
        u.value = u.value + dt * jnp.sin(W @ u.value)

    def run(dt):
        transform.for_loop(lambda: step(dt), length=10)
        return u.value.sum()

    assert inspect.residuals(run, 0.1).notes == ()
    assert all("returns nothing" in note for note in inspect.residuals(step, 0.1).notes)
