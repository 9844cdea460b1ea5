"""Modules of flax.nnx in raw transforms of JAX: by values, or refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import statetransform as st
from statetransform import transform

from .modules import Net, X, nnx, same

PURE: dict[str, Callable[..., Any]] = {
    "apply": lambda fun: jax.jit(fun.apply),
    "values and apply": lambda fun: jax.jit(lambda _, x: fun.apply(fun.values(x), x)),
    "a transform around apply": lambda fun: jax.jit(lambda v, x: transform.checkpoint(lambda x: fun.apply(v, x))(x)),
    "scan": lambda fun: lambda v, x: jax.lax.scan(lambda v, x: fun.apply(v, x)[::-1], v, x[None])[::-1],
}


@pytest.mark.parametrize("name", PURE)
def test_the_pure_function_of_a_module_that_writes_goes_into_raw_transforms(name: str) -> None:
    net, reference, untouched = Net(), Net(), Net()
    fun = transform.functionalize(lambda x: net(x))
    out, values = PURE[name](fun)(fun.values(X), X)
    same(jnp.ravel(out), jnp.ravel(reference(X)))
    same(net, untouched)
    st.update(list(values), list(values.values()))
    same(net, reference)


CALLS: dict[str, Callable[..., Any]] = {
    "jit": transform.jit,
    "checkpoint": transform.checkpoint,
    "for_loop": lambda f: lambda x: transform.for_loop(f, x[None]),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_was_traced_before_leaves_no_tracer_in_a_variable(name: str) -> None:
    net = Net()
    call = CALLS[name](net)
    call(X)
    before = nnx.state(net)
    flax_errors = pytest.importorskip("flax.errors")
    # In a loop nnx may speak first: the variable is of another trace level.
    said = r"'(self\.)?\w*\.?calls'|written inside a raw JAX transform|different trace level"
    with pytest.raises((st.StateTransformError, flax_errors.TraceContextError), match=said):
        jax.jit(lambda x: call(x))(X)
    same(before, nnx.state(net))
    call(X)


class Growing(nnx.Module):
    """Makes a variable when it is first called, and refuses some arguments after that."""

    def __init__(self) -> None:
        self.kernel = nnx.Param(jnp.ones(3))

    def __call__(self, x: Any) -> Any:
        if not hasattr(self, "total"):
            self.total = nnx.Variable(jnp.zeros(3))
        self.total[...] = self.total[...] + x * self.kernel
        self.kernel = nnx.Param(self.kernel[...] * 2)
        if x.shape != (3,):
            raise ValueError(x.shape)
        return jnp.sum(self.total[...])


@pytest.mark.parametrize("name", CALLS)
def test_variables_that_a_failed_call_has_made_are_not_left_in_the_module(name: str) -> None:
    grown = Growing()
    kernel, before = grown.kernel, nnx.graphdef(grown)
    call = CALLS[name](grown)
    with pytest.raises(ValueError, match="1,"):
        call(jnp.ones(1))
    assert grown.kernel is kernel
    assert not hasattr(grown, "total")
    if "__delattr__" in vars(nnx.Pytree):  # an older flax keeps the name of what is deleted
        assert nnx.graphdef(grown) == before
    if name != "for_loop":  # in which nothing may be made
        assert float(call(jnp.ones(3))) == 3.0
        assert float(grown.kernel[0]) == 2.0


class Counter(nnx.Module):
    def __init__(self) -> None:
        self.n = nnx.Variable(jnp.float32(0.0))

    def step(self, x: Any) -> Any:
        self.n[...] = self.n[...] + x
        return self.n[...] ** 2


def test_a_write_from_a_different_trace_level() -> None:
    counter = Counter()
    with pytest.raises(Exception, match="Cannot mutate Variable from a different trace level") as raised:
        jax.jit(counter.step)(1.0)
    assert type(raised.value).__name__ == "TraceContextError"
    for wrap in (transform.jit, transform.checkpoint, transform.grad):
        wrap(counter.step)(1.0)
    transform.scan(lambda carry, x: (carry, counter.step(x)), None, jnp.ones(2))
    np.testing.assert_allclose(counter.n[...], 5.0)


def test_remat_of_a_bound_method() -> None:
    counter = Counter()
    with pytest.raises(ValueError, match="does not support bound methods"):
        nnx.remat(counter.step)(1.0)
    np.testing.assert_allclose(transform.grad(transform.checkpoint(counter.step))(3.0), 6.0)
    np.testing.assert_allclose(counter.n[...], 3.0)


@pytest.mark.filterwarnings("error::statetransform.RetraceWarning")
def test_a_variable_that_is_not_used_is_not_read_when_tracers_are_looked_for() -> None:
    class Model(nnx.Module):
        def __init__(self) -> None:
            self.w, self.seen = nnx.Param(jnp.ones(2)), nnx.Variable(jnp.zeros(()))

    model, runs = Model(), list[int]()

    def loss(x: Any) -> Any:
        runs.append(1)
        return transform.checkpoint(lambda x: jax.nn.relu(model.w * x))(x).sum()

    step = transform.jit(transform.grad(loss))
    assert [float(step(jnp.ones(2)).sum()) for _ in range(3)] == [2.0] * 3
    assert len(runs) == 1


def counting(rule: str) -> Any:
    count = nnx.Variable(jnp.float32(0))

    def double(x: Any) -> Any:
        count[...] = count[...] + 1
        return 2 * x

    ruled: Any = getattr(transform, rule)(double)
    if rule == "custom_vjp":
        ruled.defvjp(lambda x: (double(x), None), lambda _, ct: (2 * ct,))
    else:
        ruled.defjvp(lambda primals, tangents: (double(*primals), 2 * tangents[0]))
    return ruled, count


@pytest.mark.parametrize("rule", ["custom_vjp", "custom_jvp"])
def test_a_function_with_a_rule_writes_a_variable_under_each_transform(rule: str) -> None:
    ruled, count = counting(rule)
    ways: list[Callable[[], Any]] = [
        lambda: transform.vmap(lambda y: ruled(1.0) * y)(jnp.ones(2))[0],
        lambda: transform.jit(transform.grad(ruled))(1.0),
        lambda: transform.grad(ruled)(1.0),
        lambda: transform.grad(transform.checkpoint(ruled))(1.0),
        lambda: transform.jit(ruled)(1.0),
    ]
    for i, way in enumerate(ways, start=1):
        assert (float(way()), float(count[...])) == (2.0, i)
    with pytest.raises(Exception, match="different trace level"):
        transform.jit(lambda: jax.vmap(lambda y: ruled(y))(jnp.ones(2)))()
    assert float(count[...]) == len(ways)
