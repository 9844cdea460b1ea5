"""States, and objects that hold them, as arguments: they go by reference, other arguments as to the plain function."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest

from statetransform import State, transform


@pytest.mark.parametrize("name", ["jit", "checkpoint", "named_call"])
def test_one_state_passed_twice_is_one_state(name: str) -> None:
    def add(pair: Any, more: Any) -> Any:
        for state in (*pair.values(), more):
            state.value = state.value * 2.0
        return pair["left"].value * 100 + pair["right"].value + more.value

    f, a, b = getattr(transform, name)(add), State(jnp.float32(1)), State(jnp.float32(10))
    for left, right in [(a, a), (a, b), (b, a), (b, b)] * 2:
        a.value, b.value = jnp.float32(1), jnp.float32(10)
        out = f({"left": left, "right": right}, a)
        found, (a.value, b.value) = (a.value, b.value), (jnp.float32(1), jnp.float32(10))
        assert out == add({"left": left, "right": right}, a)
        assert found == (a.value, b.value)


def test_the_same_array_in_two_states_and_an_argument() -> None:
    array = jnp.float32(2)
    a, b = State(array), State(array)

    @transform.jit
    def f(x: Any) -> Any:
        a.value = a.value * x
        return a.value + b.value

    assert f(array) == 6.0
    assert (a.value, b.value, array) == (4.0, 2.0, 2.0)


class Named(NamedTuple):
    s: State
    k: Any


@dataclasses.dataclass
class Plain:
    s: State
    k: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Registered:
    s: State
    k: Any


@pytest.mark.parametrize("kind", [Named, Plain, Registered, lambda s, k: {"s": s, "k": k}, lambda s, k: [s, k]])
@pytest.mark.parametrize("name", ["jit", "checkpoint", "named_call"])
def test_a_state_in_the_structure_of_an_argument_is_lifted(name: str, kind: Any) -> None:
    def parts(arg: Any) -> Any:
        if isinstance(arg, dict):
            return arg["s"], arg["k"]
        return tuple(arg) if isinstance(arg, list | tuple) else (arg.s, arg.k)

    def f(arg: Any, x: Any) -> Any:
        s, k = parts(arg)
        s.value = s.value + k * x
        return s.value

    g = getattr(transform, name)(f)
    a, b = State(jnp.float32(1)), State(jnp.float32(10))
    assert [g(kind(a, 2.0), 1.0), g(kind(b, 2.0), 1.0), g(kind(a, 2.0), 2.0)] == [3.0, 12.0, 7.0]
    assert (a.value, b.value) == (7.0, 12.0)
    a.value = jnp.float32(0)
    assert g(kind(a, 2.0), 1.0) == 2.0


def repeated(x: Any, n: int, *more: Any) -> Any:
    return sum([x] * n, *more)


SIGNATURES: list[tuple[Any, dict[str, Any], tuple[Any, ...], dict[str, Any]]] = [
    (lambda x, n: x * n if n > 1 else x, {"static_argnums": 1}, (2.0, 3), {}),
    (lambda x, n: x * n if n > 1 else x, {"static_argnums": (-1,)}, (2.0,), {"n": 3}),
    (lambda x, n=2: x * n if n > 1 else x, {"static_argnames": "n"}, (2.0,), {}),
    (lambda x, n=2: x * n if n > 1 else x, {"static_argnames": ("n",)}, (2.0, 5), {}),
    (lambda x, /, n: x * n if n > 1 else x, {"static_argnums": 1}, (2.0, 5), {}),
    (lambda x, *, n: x * n if n > 1 else x, {"static_argnames": ["n"]}, (2.0,), {"n": 4}),
    (lambda x, *ns: x * ns[0] if ns[1] > 1 else x, {"static_argnums": 2}, (2.0, 3.0, 4), {}),
    (lambda x, *ns: x * ns[0] if ns[1] > 1 else x, {"static_argnums": -1}, (2.0, 3.0, 4), {}),
    (repeated, {"static_argnums": 1}, (2.0, 3, 1.0), {}),
    (repeated, {"static_argnums": 1}, (2.0,), {"n": 3}),
    (repeated, {"static_argnames": "n"}, (2.0, 3, 1.0), {}),
    (repeated, {"static_argnames": "n"}, (2.0,), {"n": 3}),
    (lambda *xs, **kw: xs[0] * xs[1] if kw["flag"] else xs[0], {"static_argnames": "flag"}, (2.0, 3.0), {"flag": True}),
    (lambda n, x, mode="a": x * n if mode == "a" else x, {"static_argnums": (0, 2)}, (3, 2.0, "b"), {}),
    (lambda x, shape=(2, 3), dtype="int32": x * jnp.ones(shape, dtype).sum(), {}, (2.0,), {}),
    (lambda x, cfg: x * cfg["a"] + cfg["b"][0], {}, (2.0, {"a": 3.0, "b": (1.0,)}), {}),
    (lambda x, nothing: x, {}, (2.0, None), {}),
]


@pytest.mark.parametrize("signature", SIGNATURES, ids=lambda s: str(s[1]))
@pytest.mark.parametrize("name", ["jit", "checkpoint", "named_call"])
def test_arguments_are_taken_as_by_the_plain_function(signature: Any, name: str) -> None:
    fun, options, args, kwargs = signature
    if name == "named_call" and options:
        return  # it takes no static arguments, as in JAX
    if name == "checkpoint" and options.get("static_argnums") == (-1,):
        return  # as in JAX, it counts from the last argument given by position, `jit` from the last parameter
    n = State(jnp.float32(0), name="n")

    @functools.wraps(fun)
    def counted(*args: Any, **kwargs: Any) -> Any:
        n.value = n.value + 1.0
        return fun(*args, **kwargs)

    f = getattr(transform, name)(counted, **options)
    for i in range(1, 4):
        assert jnp.allclose(f(*args, **kwargs), fun(*args, **kwargs))
        assert n.value == i


def test_keywords_need_not_be_identifiers() -> None:
    assert float(transform.jit(lambda **given: given["args"] + given["a-b"])(**{"args": 1.0, "a-b": 2.0})) == 3.0


def test_a_keyword_may_have_any_name() -> None:
    scale = State(jnp.float32(2.0))
    names = ("args", "kwargs", "self", "passed", "donated", "instance", "values", "obj")

    def f(p: Any, /, **named: Any) -> Any:
        scale.value = scale.value * 1
        return p * sum(named[name] for name in names) * scale.value

    given = dict.fromkeys(names, 0.375)
    pure = transform.functionalize(f)
    calls = {
        "jit": lambda: transform.jit(f)(1.0, **given),
        "donating": lambda: transform.jit(f, donate_states=True)(1.0, **given),
        "grad": lambda: transform.grad(f)(1.0, **given),
        "checkpoint": lambda: transform.checkpoint(f)(1.0, **given),
        "lift": lambda: transform.lift(jax.jit)(f)(1.0, **given),
        "functionalize": lambda: pure.apply(pure.values(1.0, **given), 1.0, **given)[0],
        "eval_shape": lambda: 6.0 * (transform.eval_shape(f, 1.0, **given).shape == ()),
        "make_jaxpr": lambda: 6.0 * bool(transform.make_jaxpr(f)(1.0, **given).eqns),
        "lower": lambda: 6.0 * bool(transform.jit(f).lower(1.0, **given).as_text()),
        "trace": lambda: 6.0 * bool(transform.jit(f).trace(1.0, **given).jaxpr),
    }
    assert {way: float(call()) for way, call in calls.items()} == dict.fromkeys(calls, 6.0)
    assert float(transform.jit(lambda *, fun: fun * scale.value)(fun=3.0)) == 6.0


@pytest.mark.parametrize("name", ["jit", "checkpoint"])
@pytest.mark.parametrize("place", [1, -1])
def test_a_position_counts_the_arguments_of_a_bound_method_without_its_instance(name: str, place: int) -> None:
    class Model:
        def __init__(self) -> None:
            self.s = State(jnp.float32(3.0), name="s")

        def step(self, x: Any, order: int) -> Any:
            return x * self.s.value if order > 1 else x

    step = getattr(transform, name)(Model().step, static_argnums=place)
    assert [float(step(2.0, order)) for order in (1, 2, 1)] == [2.0, 6.0, 2.0]


def test_an_argument_before_others_of_any_number_is_donated_by_name() -> None:
    x = jnp.ones(3)
    transform.jit(lambda x, *more: x * 2, donate_argnames="x")(x)
    assert x.is_deleted()


def test_an_argument_that_is_donated_by_name_may_be_left_out() -> None:
    f = transform.jit(lambda x, y=1.0, *, z=2.0: x * y * z, donate_argnames=("y", "z"))
    assert (f(2.0), f(2.0, 3.0), f(2.0, z=4.0), f(2.0, y=jnp.ones(()))) == (4.0, 12.0, 8.0, 4.0)


def test_a_function_whose_first_parameter_is_called_cls_is_no_class_method() -> None:
    class Kind:
        w = 2.0

        @staticmethod
        @transform.jit(static_argnums=1)
        def static(cls: Any, n: Any, x: Any) -> Any:
            assert type(n) is int
            return x * n * cls.w

        @classmethod
        @transform.jit(static_argnums=0)
        def of_class(klass: Any, n: Any, x: Any) -> Any:
            assert type(n) is int
            return x * n * klass.w

    @transform.jit(static_argnums=1)
    def build(cls: Any, n: Any, x: Any) -> Any:
        assert type(n) is int
        return x * n * cls.w

    for _ in range(4):
        assert build(Kind, 3, 1.0) == Kind.static(Kind, 3, 1.0) == Kind.of_class(3, 1.0) == 6.0
    assert build.lower(Kind, 3, 1.0).compile()(Kind, 1.0) == 6.0
