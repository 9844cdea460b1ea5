"""A checkpoint that leaves the peak where it was is said in one sentence."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from statetransform import inspect, policies, transform

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


@pytest.mark.parametrize("checkpoint", [transform.checkpoint, jax.checkpoint])
@pytest.mark.parametrize(("fun", "args"), [(net, (W, X)), (loop, (X,))])
def test_a_checkpoint_around_nearly_everything_is_said_in_one_sentence(checkpoint, fun, args):
    (note,) = inspect.residuals(lambda *args: checkpoint(fun)(*args).sum(), *args).notes
    assert note.startswith(f"The checkpoint of {fun.__name__} is around nearly the whole function")
    assert "each layer, or the body of a loop, `scan(checkpoint(body), ...)`." in note


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
