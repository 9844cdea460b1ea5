"""Cells of several frameworks and states of this package in one function."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import statetransform as st
from statetransform import transform

bs = pytest.importorskip("brainstate")
nnx = pytest.importorskip("flax.nnx")


class Plain:
    n: Any


class All:
    def __init__(self) -> None:
        self.a, self.b = st.State(jnp.float32(1)), bs.State(jnp.float32(2))
        self.c, self.d, self.e = nnx.Variable(jnp.float32(3)), jax.new_ref(jnp.float32(4)), Plain()
        self.e.n = jnp.float32(5)
        st.attr(self.e, "n")

    def step(self, x: Any) -> Any:
        self.a.value, self.b.value = self.b.value * x, self.a.value + x
        self.c[...] = self.c[...] * self.a.value
        self.d[...] = self.d[...] + self.c[...]
        self.e.n = self.e.n * self.d[...]
        return self.e.n

    def values(self) -> list[Any]:
        return [self.a.value, self.b.value, self.c[...], self.d[...], self.e.n]


def pure(values: Any, x: Any) -> Any:
    a, b, c, d, e = values
    a, b = b * x, a + x
    c = c * a
    d = d + c
    e = e * d
    return e, [a, b, c, d, e]


@pytest.mark.parametrize(
    "wrap", [transform.jit, transform.checkpoint, lambda f: transform.jit(transform.checkpoint(f))]
)
def test_all_in_one_function(wrap: Any) -> None:
    obj, x = All(), jnp.float32(1.1)
    values, step = obj.values(), wrap(obj.step)
    for _ in range(3):
        expected, values = pure(values, x)
        np.testing.assert_allclose(step(x), expected, rtol=1e-5)
        np.testing.assert_allclose(obj.values(), values, rtol=1e-5)
    states = st.states(obj)
    assert list(states) == ["a", "b", "c", "d", "e.n"]
    gradient = transform.grad(step, states=states)(x)
    expected = jax.grad(lambda v: pure(v, x)[0])(values)
    np.testing.assert_allclose(list(gradient.values()), expected, rtol=1e-5)


def test_errors_name_cells_by_their_paths() -> None:
    obj = All()
    transform.jit(obj.step)(1.0)
    with pytest.raises(st.StateStructureError, match="'b'"):
        transform.scan(lambda c, x: (c, setattr(obj.b, "value", jnp.ones(2))), None, jnp.ones(3))


@pytest.mark.parametrize("around", ["grad", "jit grad", "vjp", "jvp", "vmap", "jit"])
def test_a_callback_sees_them_as_before_the_call_and_its_writes_stay(around: str) -> None:
    wraps: dict[str, Any] = {
        "grad": transform.grad,
        "jit grad": lambda f: transform.jit(transform.grad(f)),
        "vjp": lambda f: lambda x: transform.vjp(f, x)[1](jnp.float32(1)),
        "jvp": lambda f: lambda x: transform.jvp(f, (x,), (jnp.float32(1),)),
        "vmap": lambda f: transform.vmap(f, in_axes=None, axis_size=1),
        "jit": transform.jit,
    }
    obj, logs, seen = All(), All(), []
    transform.jit(lambda: logs.step(jnp.float32(1)))()  # the logs are cells, too
    before = [float(value) for value in obj.values()]

    def host(x: Any) -> None:
        seen.append([float(value) for value in obj.values()])
        logs.a.value, logs.b.value, logs.c[...], logs.d[...], logs.e.n = [jnp.float32(x) + i for i in range(5)]

    def f(x: Any) -> Any:
        out = obj.step(x)
        jax.debug.callback(host, jax.lax.stop_gradient(x))
        return out

    wraps[around](f)(jnp.float32(2))
    jax.effects_barrier()
    np.testing.assert_allclose(seen, [before] * len(seen))
    np.testing.assert_allclose(logs.values(), [2, 3, 4, 5, 6])
    assert seen


def test_a_batched_write_is_refused_by_the_path_to_the_cell_and_the_users_line() -> None:
    class Model:
        def __init__(self) -> None:
            self.norms = [nnx.BatchNorm(3, rngs=nnx.Rngs(0))]
            self.other = bs.nn.BatchNorm0d((3,))

    model = Model()
    with pytest.raises(st.StateAxisError, match=r"'model\.norms\.0\.mean' .*written to it at test_mixed\.py"):
        transform.vmap(lambda x: model.norms[0](x[None]))(jnp.ones((2, 3)))
    with (
        bs.environ.context(fit=True),
        pytest.raises(st.StateAxisError, match=r"'model\.other\..*written to it at test_mixed\.py"),
    ):
        transform.vmap(lambda x: model.other(x[None]))(jnp.ones((2, 3)))
