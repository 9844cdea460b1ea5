"""Guarantee 7: decorators work bare, with arguments and as a call, on everything that can be called."""

from __future__ import annotations

import copy
import functools
import inspect
import pickle
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from statetransform import State, transform

TRACES: list[int] = []  # the static argument of each run of a body


class Sim:
    """A simulation."""

    def __init__(self) -> None:
        self.u = State(jnp.zeros(2), name="u")

    @transform.checkpoint(static_argnums=(1,))
    def step(self, x: Any, n: int = 1) -> Any:
        """Adds `x`, `n` times."""
        TRACES.append(n)
        for _ in range(n):
            self.u.value = self.u.value + x
        return self.u.value.sum()

    @transform.jit(static_argnames="n")
    def fast(self, x: Any, n: int = 1) -> Any:
        TRACES.append(n)
        self.u.value = self.u.value + x * n
        return self.u.value.sum()

    @transform.jit
    def bare(self, x: Any) -> Any:
        self.u.value = self.u.value + x
        return self.u.value.sum()

    @transform.checkpoint
    def __call__(self, x: Any) -> Any:
        return x * self.u.value.sum()


class Child(Sim):
    def step(self, x: Any, n: int = 1) -> Any:
        return super().step(x, n) * 10


@pytest.mark.parametrize("method", ["step", "fast"])
def test_positional_keyword_and_omitted_static_arguments_agree(method: str) -> None:
    class Fresh(Sim):
        """Not yet traced."""

    s = Fresh()
    TRACES.clear()
    f = getattr(s, method)
    assert f(1.0, 2) == 4.0
    assert f(1.0, n=2) == 8.0
    assert f(x=1.0, n=2) == 12.0
    assert f(1.0) == 14.0
    assert TRACES == [2, 2, 2, 1]  # by keyword is another structure of arguments, as in JAX


def test_one_trace_for_each_static_value_serves_all_instances() -> None:
    class Fresh(Sim):
        """Not yet traced."""

    TRACES.clear()
    a, b = Fresh(), Fresh()
    for _ in range(3):
        a.step(1.0, 2), b.step(1.0, 2), a.fast(1.0, n=3), b.fast(1.0, n=3)
    assert TRACES == [2, 3]


def test_super_explicit_class_call_and_bound_function_agree() -> None:
    assert Child().step(1.0, 2) == 40.0
    s = Sim()
    assert Sim.step(s, 1.0, 2) == 4.0
    assert transform.checkpoint(s.bare)(1.0) == 6.0
    assert functools.partial(s.step, n=2)(1.0) == 10.0
    assert transform.jit(functools.partial(Sim.step.__wrapped__, s, n=2))(1.0) == 14.0
    assert transform.checkpoint(s)(1.0) == 14.0


def test_signature_name_docstring_and_original_are_kept() -> None:
    assert Sim.step.__name__ == "step"
    assert Sim.step.__doc__ == Sim().step.__doc__ == "Adds `x`, `n` times."
    assert Sim().step.__name__ == "step"
    assert list(inspect.signature(Sim.step).parameters) == ["self", "x", "n"]
    assert list(inspect.signature(Sim().step).parameters) == ["x", "n"]
    assert Sim.step.__wrapped__(Sim(), 1.0, 1) == 2.0
    assert all(t(max).__wrapped__ is max for t in (transform.jit, transform.make_jaxpr, transform.checkify))
    f = transform.jit(transform.vmap(lambda x, *, y=1: x))
    assert str(inspect.signature(f)) == "(x, *, y=1)"


def test_under_checkpoint_negative_static_argnums_count_from_the_last_argument_given() -> None:
    def f(x: Any, kind: str, scale: float = 3.0) -> Any:
        return x * scale if kind == "s" else x

    for checkpoint in (transform.checkpoint, jax.checkpoint):
        assert checkpoint(f, static_argnums=(-1,))(1.0, "s") == 3.0
        with pytest.raises(ValueError, match="static_argnums"):
            checkpoint(f, static_argnums=(-3,))(1.0, "s")
    model = Negative()
    assert model.f(1.0, "s") == Negative.f(model, 1.0, "s") == 3.0


class Negative:
    @transform.checkpoint(static_argnums=-1)
    def f(self, x: Any, kind: str, scale: float = 3.0) -> Any:
        return x * scale if kind == "s" else x


def test_equal_static_values_of_different_types_are_different() -> None:
    f = transform.checkpoint(lambda x, n: x if isinstance(n, bool) else -x, static_argnums=1)
    assert (f(1.0, True), f(1.0, 1), f(1.0, 1.0)) == (1.0, -1.0, -1.0)


@pytest.mark.parametrize("wrap", [transform.jit, transform.checkpoint])
def test_an_unhashable_static_argument_is_named(wrap: Any) -> None:
    f = wrap(lambda x, sizes: x, static_argnums=1)
    with pytest.raises(TypeError, match=r"argument 'sizes'.*list is not hashable"):
        f(1.0, [1, 2])
    with pytest.raises(TypeError, match="argument 'sizes'"):
        f(1.0, sizes=[1])


def test_a_static_argnum_out_of_range_is_refused() -> None:
    with pytest.raises(ValueError, match="static_argnums=5"):
        transform.checkpoint(lambda x: x, static_argnums=5)(1.0)


def cubed(x: Any) -> Any:
    return x**3


@transform.jit
def module_level(x: Any) -> Any:
    return x


class Holder:
    def __init__(self, made: Callable[[Callable[..., Any]], Any]) -> None:
        self.u = State(jnp.float32(0), name="u")
        self.kept = [made(self.step), {"of": functools.partial(made(functools.partial(moved, self)))}]

    def step(self, x: Any) -> Any:
        return moved(self, x)


def moved(holder: Holder, x: Any) -> Any:
    holder.u.value = holder.u.value + x
    return holder.u.value * x


def ruled(fun: Callable[..., Any]) -> Any:
    f = transform.custom_jvp(cubed)
    f.defjvp(half_slope)
    return transform.jit(Composed(fun, f))


class Composed:
    def __init__(self, fun: Any, f: Any) -> None:
        self.fun, self.f = fun, f

    def __call__(self, x: Any) -> Any:
        return self.fun(self.f(x))


def half_slope(primals: Any, tangents: Any) -> Any:
    return primals[0] ** 3, 0.5 * tangents[0]


KEPT: dict[str, Callable[[Any], Any]] = {
    "jit": transform.jit,
    "checkpoint": lambda f: transform.checkpoint(f, policy=jax.checkpoint_policies.everything_saveable),
    "grad of jit": lambda f: transform.grad(transform.jit(f)),
    "static": lambda f: transform.jit(f, static_argnums=0),
    "rule": ruled,
}


@pytest.mark.parametrize("name", KEPT)
def test_a_model_that_keeps_its_methods_under_transforms_can_be_pickled(name: str) -> None:
    model = Holder(KEPT[name])
    call = lambda model: (model.kept[0](1.0), model.kept[1]["of"](1.0))
    expected = call(model)
    for clone in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        clone.u.value = jnp.float32(0)
        assert call(clone) == expected
        assert float(clone.u.value) == float(model.u.value) == 2.0


def test_a_function_under_a_transform_made_by_a_call_can_be_pickled() -> None:
    rule = transform.custom_jvp(cubed)
    rule.defjvp(half_slope)
    lanes = transform.vmap(cubed, in_axes=None, axis_size=1)
    for f in (transform.jit(cubed), rule, transform.value_and_grad(cubed), lanes):
        again = pickle.loads(pickle.dumps(f))
        assert str(again(2.0)) == str(f(2.0))
    assert transform.grad(pickle.loads(pickle.dumps(rule)))(2.0) == 0.5
    assert pickle.loads(pickle.dumps(module_level)) is module_level


class Scaled:
    """Its `by` is a transform of a method that was made by a call, and has no name under which it is found."""

    factor = 3.0

    def _by(self, n: Any) -> Any:
        return jnp.float32(self.factor) if n > 1 else jnp.float32(0)

    by = transform.jit(_by, static_argnums=0)  # no index counts `self`


def test_a_method_keeps_its_class_when_it_is_pickled() -> None:
    again = pickle.loads(pickle.dumps(Scaled.by))
    assert again is not Scaled.by
    assert float(again(Scaled(), 2)) == float(Scaled.by(Scaled(), 2)) == 3.0


def test_a_pure_function_can_be_copied_and_pickled() -> None:
    pure = transform.functionalize(cubed, static_argnums=())
    values, (out, _) = pure.values(2.0), pure.apply({}, 2.0)
    assert len(values) == 0
    for again in (copy.deepcopy(pure), pickle.loads(pickle.dumps(pure))):
        assert again is not pure
        assert float(again.apply({}, 2.0)[0]) == float(out) == 8.0


def logged(fun: Any) -> Any:
    @functools.wraps(fun)
    def wrapper(*args: Any) -> Any:
        return fun(*args)

    return wrapper


class Stacked:
    """Methods under several transforms: no index counts `self`, whatever stands above."""

    def __init__(self) -> None:
        self.w = State(jnp.float32(2), name="w")
        self.n = State(0, name="n")

    def body(self, x: Any, n: int = 2) -> Any:
        self.n.value = self.n.value + 1
        return self.w.value * x**n

    @transform.jit
    @transform.value_and_grad
    def compiled(self, x: Any) -> Any:
        return self.body(x)

    @transform.jit(static_argnums=1)
    @transform.checkpoint(static_argnums=(1,))
    def twice_static(self, x: Any, n: int = 2) -> Any:
        return self.body(x, n)

    @transform.grad
    @transform.jit(static_argnums=-1)
    @transform.checkpoint(static_argnums=1)
    def three(self, x: Any, n: int = 2) -> Any:
        return self.body(x, n)

    @transform.vmap(in_axes=(None, 0))
    @transform.grad(argnums=1)
    def lanes(self, n: Any, x: Any) -> Any:
        return self.w.value * x**2 * n

    @transform.jit
    @logged
    @transform.named_call
    @transform.grad
    def around(self, x: Any) -> Any:
        return self.body(x)

    total = State(jnp.float32(1), name="total")

    @classmethod
    @transform.jit(static_argnums=1)
    @transform.checkpoint(static_argnums=1)
    def of_class(cls, x: Any, n: int = 2) -> Any:
        return cls.total.value * x**n

    @transform.jit(static_argnums=1)
    @classmethod
    @transform.checkpoint(static_argnums=1)
    def of_class_inside(cls, x: Any, n: int = 2) -> Any:
        return cls.total.value * x**n

    @transform.jit
    @staticmethod
    @transform.grad(argnums=1)
    def static(x: Any, y: Any) -> Any:
        return x * y


def test_transforms_under_transforms_do_not_count_self_either() -> None:
    sim = Stacked()
    for call in (lambda name, *args: getattr(sim, name)(*args), lambda name, *args: getattr(Stacked, name)(sim, *args)):
        assert [float(x) for x in call("compiled", 3.0)] == [18.0, 12.0]
        assert float(call("twice_static", 3.0, 3)) == 54.0
        assert float(call("three", 3.0, 3)) == 54.0
        assert call("lanes", 2.0, jnp.arange(3.0)).tolist() == [0.0, 8.0, 16.0]
        assert float(call("around", 3.0)) == 12.0
    assert int(sim.n.value) == 8
    for owner in (sim, Stacked):
        assert float(owner.of_class(3.0, 3)) == float(owner.of_class_inside(3.0, 3)) == 27.0
        assert float(owner.static(3.0, 4.0)) == 3.0
    sim.w.value = jnp.float32(1)
    assert float(sim.three(3.0, 3)) == 27.0
