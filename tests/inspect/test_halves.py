"""The stateless view of a function, its gradient step, and what is alive in it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from statetransform import State, inspect, transform
from statetransform._jaxpr.rewrite import inlined
from statetransform._jaxpr.walk import backward_slice
from statetransform._planner.view import named_arguments, view_of
from statetransform.inspect._gradient import step_of

X = jnp.linspace(0.1, 1.0, 4)


def program():
    w = State(X, name="w")
    n = State(0, name="n")

    def f(x, scale=2.0):
        n.value = n.value + 1
        return (jnp.sin(w.value * x) * scale).sum()

    return f, w, n


def test_the_flat_function_computes_what_the_function_does():
    f, w, n = program()
    view = view_of(f, (X,), {"scale": 3.0})
    out, aux = view.fun(*view.inputs)
    np.testing.assert_allclose(out[0], (jnp.sin(X * X) * 3.0).sum(), rtol=1e-6)
    assert [int(a) for a in aux] == [1]
    assert n.value == 0
    assert [label.name for label in view.labels] == ["x", "scale", "w", "n"]
    del w


@pytest.mark.parametrize("wrap", [lambda f: f, transform.jit, transform.checkpoint])
def test_the_joint_program_gives_the_gradients(wrap):
    f, w, _ = program()
    wrapped = wrap(f)
    step = step_of(view_of(wrapped, (X,), {}))
    results = step.version.as_outermost(step.version.plain_step)(*step.inputs)
    expected = jax.grad(lambda x, w: (jnp.sin(w * x) * 2.0).sum(), argnums=(0, 1))(X, w.value)
    # The output, the gradients of x and of w, then the counter.
    np.testing.assert_allclose(results[1], expected[0], rtol=1e-6)
    np.testing.assert_allclose(results[2], expected[1], rtol=1e-6)


def test_checkpoints_can_be_taken_out():
    f, _, _ = program()
    step = step_of(view_of(transform.checkpoint(f), (X,), {}))
    assert step.has_checkpoints
    assert not step.without_checkpoints().has_checkpoints


def test_dead_code_is_left_out_and_effects_are_not():
    def f(x):
        jax.debug.print("{}", x)
        jnp.cos(x)
        return jnp.sin(x)

    jaxpr = jax.make_jaxpr(f)(1.0)
    names = [eqn.primitive.name for eqn in backward_slice(jaxpr, list(jaxpr.jaxpr.outvars))]
    assert names[-1] == "sin"
    assert "cos" not in names
    assert len(names) == 2


def test_what_is_alive_begins_with_the_arguments_and_ends_with_the_gradients():
    found = inspect.timeline(lambda x: jnp.sum(jnp.exp(x) * x), X, compile=False)
    assert found[0].live["arguments"] == 16
    assert found[-1].phase == "backward"
    assert all(sum(moment.live.values()) == moment.bytes for moment in found)


def test_inlining_gives_library_code_the_line_of_its_call():
    def f(x):
        return jax.nn.gelu(x)

    line = f.__code__.co_firstlineno + 1
    jax.nn.gelu(X)
    jaxpr = inlined(jax.make_jaxpr(f)(X))
    from statetransform._jaxpr.sources import source_of

    assert {source_of(eqn).line for eqn in jaxpr.jaxpr.eqns} == {line}


@pytest.mark.parametrize(
    ("fun", "args", "kwargs", "names"),
    [
        (lambda x, y=2: None, (1,), {}, ["x"]),
        (lambda x, *, k: None, (1,), {"k": 2}, ["x", "k"]),
        (lambda x, y: None, (), {"y": 1, "x": 2}, ["x", "y"]),
        (
            lambda *xs, **ks: None,
            (1, [2, 3]),
            {"b": 4, "a": 5},
            ["xs[0]", "xs[1][0]", "xs[1][1]", "ks['a']", "ks['b']"],
        ),
        (max, (1, 2), {}, ["args[0]", "args[1]"]),
    ],
)
def test_arguments_are_named_as_the_user_would(fun, args, kwargs, names):
    assert [name for name, _ in named_arguments(fun, args, kwargs)] == names
    leaves = [leaf for _, leaf in named_arguments(fun, args, kwargs)]
    assert leaves == jax.tree.leaves((args, kwargs))
