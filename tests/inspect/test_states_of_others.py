"""Reports name the cells of other frameworks as the states that they are, wherever a function finds them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import statetransform as st
from statetransform import inspect, policies, transform

X = jnp.linspace(0.1, 1.0, 4)
W = jnp.eye(4)


def of_nnx():
    nnx = pytest.importorskip("flax.nnx")

    class Model(nnx.Module):
        def __init__(self):
            self.w = nnx.Param(W)
            self.count = nnx.Variable(jnp.array(0))

        def __call__(self, x):
            self.count[...] = self.count[...] + 1
            return jnp.sin(self.w[...] @ x).sum()

    model = Model()
    return model, model.w, nnx.state(model, nnx.Param)


def of_attributes():
    class Model:
        def __init__(self):
            self.w = W

        def __call__(self, x):
            return jnp.sin(self.w @ x).sum()

    model = Model()
    w = st.attr(model, "w")
    return model, w, [w]


@pytest.mark.parametrize("make", [of_nnx, of_attributes])
@pytest.mark.parametrize("wrap", [lambda f: f, transform.jit], ids=["bare", "jit"])
@pytest.mark.parametrize("is_argument", [False, True], ids=["closed over", "argument"])
def test_they_are_states_with_their_names(make, wrap, is_argument):
    model, w, some = make()
    loss = wrap((lambda m, x: m(x)) if is_argument else (lambda x: model(x)))
    args = (model, X) if is_argument else (X,)
    found = inspect.residuals(loss, *args)
    assert found.totals == {"argument": 16, "state": 64, "computed": 16}
    (name,) = [r.name for r in found if r.kind == "state"]
    assert name in ("w", "model.w")
    for states in (w, some, st.states(model)["w"]):
        assert inspect.residuals(loss, *args, states=states).totals == {"argument": 16, "computed": 16}
        assert inspect.cost(loss, *args, states=states, compile=False).output_bytes in (4 + 64, 4 + 64 + 4)
    last = inspect.fwd_bwd(loss, *args).backward[-1]
    assert f"d {name} = " in last
    table = inspect.compare({"plain": loss, "nothing": policies.nothing_saveable}, *args, compile=False)
    assert table["nothing"].residual_bytes == 64 + 16


def test_arrays_beside_states_in_an_argument_are_differentiated_as_grad_does():
    w = st.State(W, name="w")
    loss = lambda d: jnp.sin(d["w"].value @ d["x"]).sum()
    found = inspect.fwd_bwd(loss, {"w": w, "x": X}, argnums=0)
    assert found.backward[-1].startswith("out   d d['x'] = ")
    assert jax.tree.leaves(transform.grad(loss)({"w": w, "x": X})["x"])


def test_variables_among_the_options_of_a_transform_are_called_what_the_user_calls_them():
    nnx = pytest.importorskip("flax.nnx")

    class Model(nnx.Module):
        def __init__(self):
            self.inner = nnx.Linear(4, 4, rngs=nnx.Rngs(0))

        def __call__(self, x):
            return jnp.sin(self.inner(x)).sum()

    for select in (lambda m: nnx.state(m, nnx.Param), lambda m: (m.inner.kernel, m.inner.bias)):
        model = Model()
        step = transform.jit(transform.grad(lambda x, model=model: model(x), states=select(model)))
        step(X)
        assert "_options.states" not in (text := str(inspect.explain_retrace(step))) and "_mapping" not in text
        names = [record.name for record in inspect.residuals(model, X) if record.kind == "state"]
        assert names and all(name.endswith(("inner.kernel", "inner.bias")) for name in names), names
