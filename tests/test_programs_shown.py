"""`eval_shape` and `make_jaxpr`, `lower` and `trace`: who only looks at a program writes nothing."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from statetransform import Param, State, transform


class Like:
    shape, dtype = (3,), jnp.dtype("float32")


def test_what_has_a_shape_and_a_dtype_stands_for_an_array() -> None:
    w = State(jnp.float32(2))
    assert transform.eval_shape(lambda x: w.value * x, Like()).shape == (3,)
    jaxpr, shape = transform.make_jaxpr(lambda x: w.value * x, return_shape=True)(Like())
    assert shape.shape == (3,) and len(jaxpr.jaxpr.invars) == 2


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Scale:
    w: jax.Array

    def __call__(self, x: Any) -> Any:
        return self.w * x


def test_the_method_of_a_pytree_shows_the_program_that_it_runs() -> None:
    scale = Scale(jnp.arange(3.0))
    jaxpr = transform.make_jaxpr(scale.__call__)(2.0)
    np.testing.assert_array_equal(jax.core.eval_jaxpr(jaxpr.jaxpr, jaxpr.consts, 2.0)[0], [0.0, 2.0, 4.0])


class WithMore(Like):
    shape, weak_type, sharding = (), True, None


def test_the_indices_of_a_method_do_not_count_self() -> None:
    class Scale:
        def __init__(self) -> None:
            self.w = State(2.0, name="w")

        @transform.make_jaxpr(static_argnums=1)
        def power(self, x: Any, n: int) -> Any:
            return self.w.value * x**n

        @classmethod
        @transform.make_jaxpr(static_argnums=0)
        def of_class(cls, n: int, x: Any) -> Any:
            return x * len(cls.__name__ * n)

    scale = Scale()
    expected = str(jax.make_jaxpr(lambda w, x: w * x**3)(2.0, 1.5))
    assert str(scale.power(1.5, 3)) == str(Scale.power(scale, 1.5, 3)) == expected
    assert str(Scale.of_class(2, 1.5)) == str(jax.make_jaxpr(lambda x: x * 10)(1.5))


@pytest.mark.parametrize("method", ["trace", "lower", "eval_shape"])
def test_so_it_does_for_a_compiled_function(method: str) -> None:
    w = State(jnp.float32(2))
    f = lambda x, n, y: {"x": x["a"] * n + y}
    ours = transform.jit(lambda x, n, y: {"x": f(x, n, y)["x"] * w.value}, static_argnums=1)
    shapes = [getattr(j, method)({"a": Like()}, 2, WithMore()) for j in (ours, jax.jit(f, static_argnums=1))]
    leaves = [jax.tree.leaves(shape if method == "eval_shape" else shape.out_info) for shape in shapes]
    assert [(x.shape, x.dtype) for x in leaves[0]] == [(x.shape, x.dtype) for x in leaves[1]]

    class Model:
        @transform.jit
        def step(self, x: Any) -> Any:
            w.value = w.value + 1
            return x * w.value

    assert Model().step.eval_shape(Like()).shape == Model.step.eval_shape(Model(), Like()).shape == (3,)
    with pytest.raises(TypeError):  # but there is nothing to compute with
        ours({"a": Like()}, 2, WithMore())
    assert w.value == 2


def twin(x: Any, n: int, pair: Any = None, *, k: Any = 2.0) -> Any:
    return {"y": x * n + k, "sums": (x.sum(), pair)}


SHOWN = {
    "in_avals": str, "in_tree": lambda x: x, "args_info": str, "out_tree": lambda x: x, "donate_argnums": lambda x: x,
    "out_info": lambda info: jax.tree.map(lambda x: (x.shape, x.dtype), info),
    "input_shardings": lambda x: x, "output_shardings": lambda x: x, "input_formats": str, "output_formats": str,
    "out_avals": str,
}  # fmt: skip


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"donate_argnums": 0},
        {"donate_argnames": "k"},
        {"donate_argnames": ("x", "k")},
        {"keep_unused": True},
        {"donate_states": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("written", [False, True], ids=["read", "written"])
@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
def test_stages_show_the_users_function_as_those_of_jax_do(options: dict[str, Any], written: bool) -> None:
    w, u = State(jnp.float32(2)), State(jnp.ones(3))

    def f(x: Any, n: int, pair: Any = None, *, k: Any = 2.0) -> Any:
        if written:
            u.value = u.value * w.value
        return twin(x * w.value, n, pair, k=k)

    given = {name: value for name, value in options.items() if name != "donate_states"}
    args, kwargs = (np.ones(3, np.float32), 3, (1, None)), {"k": np.float32(1)}
    ours = transform.jit(f, static_argnums=1, **options).trace(*args, **kwargs)
    theirs = jax.jit(twin, static_argnums=1, **given).trace(*args, **kwargs)
    for following in ("lower", "compile", None):
        for name, seen in SHOWN.items():
            assert hasattr(ours, name) == hasattr(theirs, name), name
            if hasattr(theirs, name):
                assert seen(getattr(ours, name)) == seen(getattr(theirs, name)), (name, following)
        assert {*dir(theirs)} <= {*dir(ours)}
        if following:
            ours, theirs = getattr(ours, following)(), getattr(theirs, following)()


def test_objects_are_not_among_the_arguments_that_stages_show() -> None:
    class Model:
        def __init__(self) -> None:
            self.w = State(jnp.float32(2))

        @transform.jit
        def step(self, x: Any) -> Any:
            self.w.value = self.w.value * 2
            return x

    model = Model()
    for lowered in (
        model.step.lower(1.0),
        Model.step.lower(model, 1.0),
        transform.jit(lambda m, x: x).lower(model, 1.0),
    ):
        assert lowered.in_tree == jax.jit(lambda x: x).lower(1.0).in_tree
        assert lowered.out_info.shape == ()


@pytest.mark.parametrize("name", ["eval_shape", "make_jaxpr", "lower", "trace"])
def test_what_only_looks_writes_nothing(name: str) -> None:
    s = State({"a": jnp.float32(1)})

    def f(x: Any) -> Any:
        s.value["a"] = s.value["a"] + x
        s.value = {**s.value, "b": x}
        return x

    looks = {
        "eval_shape": lambda: transform.eval_shape(f, 1.0),
        "make_jaxpr": lambda: transform.make_jaxpr(f)(1.0),
        "lower": lambda: transform.jit(f).lower(1.0),
        "trace": lambda: transform.jit(f).trace(1.0),
    }
    looks[name]()
    assert s.value == {"a": 1.0}


@pytest.mark.parametrize("is_compiled", [False, True], ids=["function", "method_of_jit"])
def test_states_that_are_made_and_returned_have_shapes(is_compiled: bool) -> None:
    class Cell:
        def __init__(self, x: Any) -> None:
            self.u, self.kind = State(x * 2, name="u"), State("lif", static=True)

    seen = State(jnp.float32(1))

    def make(x: Any) -> Any:
        seen.value = seen.value + x.sum()
        return Cell(x), seen, x

    jitted = transform.jit(make)
    for n in (2, 3, 3):
        x = jnp.ones(n)
        cell, same, x = jitted.eval_shape(x) if is_compiled else transform.eval_shape(make, x)
        assert cell.u.value == x == jax.eval_shape(lambda x: x, jnp.ones(n))
        assert cell.kind.value == "lif"
        assert same is seen and seen.value == 1


def test_shapes_keep_what_else_jax_says_of_an_array() -> None:
    mesh = jax.make_mesh((8,), ("i",), axis_types=(jax.sharding.AxisType.Explicit,), devices=jax.devices("cpu"))
    with jax.set_mesh(mesh):
        x = jax.device_put(jnp.ones((8, 3)), jax.P("i"))
        s = State(x)
        f = lambda x: {"x": x * s.value, "state": s}
        expected = jax.eval_shape(lambda x: x * x, x)
        assert expected.sharding.spec == jax.P("i", None)
        assert transform.eval_shape(f, x)["x"] == transform.jit(f).eval_shape(x)["x"] == expected
        assert transform.make_jaxpr(f, return_shape=True)(x)[1]["x"] == expected


class Model:
    def __init__(self) -> None:
        self.u = State({"a": jnp.ones(3)}, name="u")
        self.w = Param(jnp.ones(3), name="layers.0.w")
        self.free = State(jnp.float32(1))
        self.x = State(jnp.float32(1), name="x")

    def step(self, x: Any, n: int, *more: Any, y: Any = 1.0) -> Any:
        self.u.value = jax.tree.map(lambda a: a * x, self.u.value)
        return (self.u.value["a"] * self.w.value).sum() * n + self.free.value + self.x.value + y + sum(more)


def inputs(compiled: Any) -> set[str]:
    entry = compiled.as_text().partition("ENTRY")[2]
    found = re.findall(r'parameter\(\d+\).*op_name="([^"]*)"', entry)
    return {name.replace("\\", "") for name in found}


@pytest.mark.parametrize("donate", [False, True], ids=["kept", "donated"])
def test_inputs_are_named_like_states_and_parameters(donate: bool) -> None:
    model = Model()
    step = transform.jit(model.step, static_argnums=1, donate_states=donate)
    compiled = step.lower(2.0, 3, 4.0, y=5.0).compile()
    assert inputs(compiled) == {"u['a']", "layers_0_w", "state", "x", "x_1", "more_0", "y"}
    expected = 2.0 * 9 + 2 + 5 + 4
    assert float(compiled(2.0, 4.0, y=5.0)) == expected
    model.u.value = {"a": jnp.ones(3)}
    assert float(step(2.0, 3, 4.0, y=5.0)) == expected


def test_a_name_that_python_keeps_for_itself_is_taken() -> None:
    states = [State(jnp.float32(i), name=name) for i, name in enumerate(["lambda", "2d", "", "u", "u"])]
    f = transform.jit(lambda u: sum(s.value for s in states) * u)
    assert inputs(f.lower(1.0).compile()) == {"_lambda", "_2d", "state", "u", "u_1", "u_2"}
    assert float(f(2.0)) == 20.0
