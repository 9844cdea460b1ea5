"""`jax.export` of a function that uses states, made pure: the states' values go in and come out."""

from __future__ import annotations

from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

from statetransform import Param, RandomState, State, Values, transform


class Rod:
    def __init__(self) -> None:
        self.u = State({"a": jnp.ones(3)}, name="u")
        self.w = Param(jnp.float32(2), name="w")
        self.rng = RandomState(jax.random.PRNGKey(0), name="rng")

    def step(self, x: Any, *, y: Any = 1.0) -> Any:
        self.u.value = {"a": self.u.value["a"] * self.w.value + x + jax.random.uniform(self.rng.split())}
        return self.u.value["a"].sum() * y

    def values(self) -> Values:
        return Values({state: state.value for state in (self.u, self.w, self.rng)})


X, Y = jnp.float32(1.5), jnp.float32(3)


def export(fun: Any, *args: Any, **kwargs: Any) -> Any:
    pure = transform.functionalize(fun)
    return jax.export.export(jax.jit(pure.apply))(pure.values(*args, **kwargs), *args, **kwargs)


def check(exported: Any, rod: Rod) -> None:
    out, new = exported.call(before := rod.values(), X, y=Y)
    assert jax.tree.all(jax.tree.map(jnp.array_equal, rod.values(), before))
    assert float(out) == pytest.approx(float(rod.step(X, y=Y)), rel=1e-6)
    for state, value in rod.values().items():
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), new[state], value)


def test_values_of_states_are_inputs_and_outputs_and_no_state_is_written() -> None:
    rod = Rod()
    check(export(rod.step, X, y=Y), rod)


def test_a_compiled_function_says_how_to_export_it() -> None:
    with pytest.raises(TypeError, match=r"(?s)step uses states.*fun = transform.functionalize\(step\).*fun.apply"):
        jax.export.export(transform.jit(Rod().step))(X)


def test_a_program_from_a_file_finds_states_by_their_names() -> None:
    pytest.importorskip("flatbuffers", reason="JAX writes exported programs with flatbuffers")
    rod, other = Rod(), Rod()
    exported = jax.export.deserialize(export(rod.step, X, y=Y).serialize())
    other.w.value = jnp.float32(5)
    values = exported.call(other.values(), X, y=Y)[1]
    check(exported, other)
    with pytest.raises(TypeError, match=r"names of its states only: .*<state 'w'>: Array.* `values\[state\]`"):
        values.items().__iter__().__next__()
    other.w._name = "v"
    with pytest.raises(ValueError, match="tree structure"):
        exported.call(other.values(), X, y=Y)


def test_a_state_without_a_name_cannot_be_written_to_a_file() -> None:
    pytest.importorskip("flatbuffers", reason="JAX writes exported programs with flatbuffers")
    n = State(jnp.float32(1))
    exported = export(lambda x: n.value * x, jnp.float32(2))
    with pytest.raises(ValueError, match=r"find.* states by their names.*State\(value, name=...\)"):
        exported.serialize()


def test_the_derivative_is_exported() -> None:
    w = Param(jnp.float32(3), name="w")
    exported = export(lambda x: w.value * x**2, jnp.float32(2))
    values = Values({w: w.value})
    (by_values, by_x) = jax.grad(lambda values, x: exported.call(values, x)[0], argnums=(0, 1))(values, jnp.float32(2))
    assert (float(by_values[w]), float(by_x)) == (4.0, 12.0)


def test_sizes_may_be_symbolic() -> None:
    w = Param(jnp.float32(3), name="w")
    (n,) = jax.export.symbolic_shape("n")
    exported = export(lambda x: transform.vmap(lambda x: w.value * x)(x).sum(), jax.ShapeDtypeStruct((n,), jnp.float32))
    for size in (2, 5):
        assert float(exported.call(Values({w: w.value}), jnp.ones(size))[0]) == 3.0 * size
