"""`jit`: values and types as in JAX, what was compiled ahead of time, recursion, many states."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from statetransform import State, transform


def test_a_static_state_that_is_written_holds_its_new_value() -> None:
    mode = State("train", static=True)

    @transform.jit
    def f(x: Any) -> Any:
        mode.value = "eval" if mode.value == "train" else "train"
        return x

    for expected in ("eval", "train", "eval", "train"):
        f(1.0)
        assert mode.value == expected


@pytest.mark.parametrize("value", [1, 1.0, True, 1j, np.float32(1), np.arange(3), np.int8(1), np.float64(1)])
def test_values_are_typed_as_jax_types_the_same_argument(value: Any) -> None:
    s = State(value)

    def f(x: Any) -> Any:
        s.value = s.value + x
        return s.value * x

    twin = jax.jit(lambda v, x: ((v + x) * x, v + x))
    for x in (1, 1.5, jnp.bfloat16(2), jnp.ones(3, jnp.int16), np.float32(1)):
        s.value = value
        out, (reference, new) = transform.jit(f)(x), twin(value, x)
        for ours, theirs in ((out, reference), (s.value, new)):
            assert (ours.dtype, ours.weak_type, ours.shape) == (theirs.dtype, theirs.weak_type, theirs.shape)
            assert jnp.array_equal(ours, theirs)


def test_a_compiled_program_reads_and_writes_the_present_values() -> None:
    s = State(jnp.float32(1), name="s")

    @transform.jit
    def f(x: Any) -> Any:
        s.value = s.value + x
        return s.value * 2

    compiled = f.lower(jnp.float32(0)).compile()
    assert s.value == 1.0
    assert compiled(jnp.float32(2)) == 6.0
    s.value = jnp.float32(10)
    assert compiled(jnp.float32(1)) == 22.0
    assert f.trace(jnp.float32(0)).lower().compile()(jnp.float32(1)) == 24.0
    assert s.value == 12.0


class Heat:
    def __init__(self, value: float) -> None:
        self.u = State(value, name="u")

    @transform.jit(static_argnames="k", donate_argnums=())
    def step(self, x: Any, k: int = 1) -> Any:
        self.u.value = self.u.value + x * k
        return self.u.value


def test_a_method_compiled_of_the_class_takes_the_instance() -> None:
    one, other = Heat(1.0), Heat(100.0)
    for lowered in (Heat.step.lower(one, 1.0, k=2), Heat.step.trace(one, 1.0, 2).lower()):
        compiled, value = lowered.compile(), float(other.u.value)
        assert compiled(other, 3.0) == value + 6.0
        assert (one.u.value, other.u.value) == (1.0, value + 6.0)
        with pytest.raises(
            TypeError, match=r"Heat\.step was compiled for 2 positional argument\(s\); this call gives 1"
        ):
            compiled(3.0)
    bound = one.step.lower(1.0, k=2).compile()
    assert (bound(3.0), other.u.value) == (7.0, 112.0)
    with pytest.raises(TypeError, match="compiled for 1 positional"):
        bound(other, 3.0)
    assert (one.u.value, other.u.value) == (7.0, 112.0)


@pytest.mark.parametrize(
    ("args", "kwargs"), [((1.0,), {"k": 4}), ((1.0, 4), {}), ((), {"x": 1.0}), ((), {}), ((1.0,), {"y": 2.0})]
)
def test_a_compiled_program_refuses_other_arguments_than_it_was_compiled_for(args: Any, kwargs: Any) -> None:
    u = State(1.0, name="u")

    def f(x: Any, k: int = 2) -> Any:
        u.value = u.value + x * k

    for lowered in (
        transform.jit(f, static_argnames="k").lower(1.0, k=3),
        transform.jit(f, static_argnums=1).lower(1.0, 3),
    ):
        compiled = lowered.compile()
        with pytest.raises(TypeError, match="Leave out what is static \\(k=3\\)"):
            compiled(*args, **kwargs)
    assert u.value == 1.0


class Cells:
    def __init__(self) -> None:
        self.u, self.mode, self.scale = State(1.0, name="u"), State("lif", static=True), 2
        self.layers, self.last = [self.u], None

    def step(self, x: Any) -> Any:
        factor = self.scale * len(self.layers) if self.mode.value == "lif" else 1
        self.layers[0].value = self.u.value + x * factor
        return self.u.value if self.last is None else self.last.value


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda m: setattr(m, "scale", 3), "`self.scale` was 2 and is 3"),
        (lambda m: setattr(m.mode, "value", "adex"), "`self.mode` was 'lif' and is 'adex'"),
        (lambda m: m.layers.append(m.u), "`self.layers` was list of 1 and is list of 2"),
        (lambda m: setattr(m, "last", State(0.0)), "`self.last` was None and is State"),
        (lambda m: setattr(m, "u", State(5.0)), "`self.u` was the same object as another and is State"),
    ],
)
def test_a_compiled_program_says_which_object_differs_from_those_it_was_compiled_for(change: Any, told: str) -> None:
    model = Cells()
    compiled = transform.jit(model.step).lower(1.0).compile()
    assert compiled(1.0) == 3.0
    change(model)
    with pytest.raises(TypeError, match=f"Cells.step was compiled for objects .*: {told}. Lower and compile"):
        compiled(1.0)
    assert model.layers[0].value == 3.0


def test_a_function_may_call_itself() -> None:
    n = State(jnp.int32(0))

    @transform.jit(static_argnums=0)
    def f(depth: int, x: Any) -> Any:
        n.value = n.value + 1
        return x if depth == 0 else f(depth - 1, x * 2.0)

    assert f(4, 1.0) == 16.0
    assert n.value == 5
    assert f(4, 1.0) == 16.0
    assert n.value == 10


def test_functions_that_jax_makes_of_others_by_binding_compile() -> None:
    def root(x: Any) -> Any:
        return jax.lax.custom_root(lambda v: v - x**2, 1.0, lambda f, v: v - f(v), lambda g, y: y / g(1.0))

    s = State(jnp.float32(2.0))
    assert float(transform.jit(lambda x: root(x) * s.value)(3.0)) == 18.0
    assert float(transform.jit(transform.grad(root))(3.0)) == 6.0
    assert float(transform.cond(jnp.bool_(True), root, lambda x: x, 3.0)) == 9.0


def test_what_is_set_on_a_function_is_there_on_the_compiled_one() -> None:
    def f(x: Any) -> Any:
        return x

    f.unit, f.trace = "mV", "not ours to hide"  # type: ignore[attr-defined]
    for transformed in (transform.jit(f), transform.checkpoint(f), transform.grad(f)):
        assert transformed.unit == "mV"
    assert callable(transform.jit(f).trace)


def test_a_call_has_its_own_states_whatever_other_programs_of_the_function_have_read() -> None:
    states = [State(1.0), State(2.0), State(3.0)]
    f = transform.jit(lambda x: x * states[x.ndim].value)
    for _ in range(2):
        for ndim, state in enumerate(states):
            assert f(jnp.ones((1,) * ndim)).item() == state.value
