"""`jax.export` of a compiled function: the states' values go in and come out."""

from __future__ import annotations

from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import pytest

from statetransform import Param, RandomState, State, Values, transform


class Rod:
    def __init__(self) -> None:
        self.u = State({"a": jnp.ones(3)}, name="u")
        self.w = Param(jnp.float32(2), name="w")
        self.rng = RandomState(jax.random.PRNGKey(0), name="rng")

    @transform.jit(static_argnums=1)
    def step(self, x: Any, n: int, *, y: Any = 1.0) -> Any:
        for _ in range(n):
            self.u.value = {"a": self.u.value["a"] * self.w.value + x + jax.random.uniform(self.rng.split())}
        return self.u.value["a"].sum() * y


def expected(rod: Rod, x: Any, y: Any) -> tuple[Any, Values]:
    pure = transform.functionalize(rod.step, static_argnums=1)
    return pure.apply(pure.values(x, 2, y=y), x, 2, y=y)


def check(called: tuple[Any, Any], out: Any, new: Values, rod: Rod) -> None:
    assert float(called[0]) == pytest.approx(float(out), rel=1e-6)
    for state in (rod.u, rod.w, rod.rng):
        for a, b in zip(jax.tree.leaves(called[1][state]), jax.tree.leaves(new[state]), strict=True):
            assert jnp.allclose(a, b)


def values_of(rod: Rod) -> Values:
    return Values({rod.u: rod.u.value, rod.w: rod.w.value, rod.rng: rod.rng.value})


def test_values_of_states_are_inputs_and_outputs_and_no_state_is_written() -> None:
    rod, x, y = Rod(), jnp.float32(1.5), jnp.float32(3)
    exported = jax.export.export(rod.step)(x, 2, y=y)
    assert exported.fun_name == "step"
    out, new = expected(rod, x, y)
    check(exported.call(values_of(rod), x, y=y), out, new, rod)
    assert rod.u.value["a"].tolist() == [1.0] * 3


def test_a_program_from_a_file_finds_states_by_their_names() -> None:
    pytest.importorskip("flatbuffers", reason="JAX writes exported programs with flatbuffers")
    rod, other, x, y = Rod(), Rod(), jnp.float32(1.5), jnp.float32(3)
    data = jax.export.export(rod.step)(x, 2, y=y).serialize()
    exported = jax.export.deserialize(data)
    other.w.value = jnp.float32(5)
    out, new = expected(other, x, y)
    check(exported.call(values_of(other), x, y=y), out, new, other)
    values = exported.call(values_of(other), x, y=y)[1]
    with pytest.raises(TypeError, match=r"names of its states only: .*<state 'w'>: Array.* `values\[state\]`"):
        values.items().__iter__().__next__()
    other.w._name = "v"
    with pytest.raises(ValueError, match="tree structure"):
        exported.call(values_of(other), x, y=y)


def test_a_state_without_a_name_cannot_be_written_to_a_file() -> None:
    pytest.importorskip("flatbuffers", reason="JAX writes exported programs with flatbuffers")
    n = State(jnp.float32(1))
    exported = jax.export.export(transform.jit(lambda x: n.value * x))(jnp.float32(2))
    with pytest.raises(ValueError, match=r"find.* states by their names.*State\(value, name=...\)"):
        exported.serialize()


def test_the_derivative_is_exported() -> None:
    w = Param(jnp.float32(3), name="w")
    f = transform.jit(lambda x: w.value * x**2)
    exported = jax.export.export(f)(jnp.float32(2))
    values = Values({w: w.value})
    (by_values, by_x) = jax.grad(lambda values, x: exported.call(values, x)[0], argnums=(0, 1))(values, jnp.float32(2))
    assert (float(by_values[w]), float(by_x)) == (4.0, 12.0)
