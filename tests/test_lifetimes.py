"""What lives how long: no cache keeps anything alive, and traces live as long as JAX's would."""

from __future__ import annotations

import abc
import copy
import functools
import gc
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import statetransform as st
from statetransform import State, transform

WRAPS = {
    "jit": transform.jit,
    "checkpoint": transform.checkpoint,
    "named_call": transform.named_call,
    "grad": transform.grad,
    "jit of checkpoint": lambda f: transform.jit(transform.checkpoint(f)),
    "grad of jit": lambda f: transform.grad(transform.jit(f)),
    "lift": transform.lift(jax.checkpoint),
    "scan": lambda f: lambda x: transform.scan(lambda c, _: (f(c), None), x, None, length=2)[0],
    "for_loop": lambda f: lambda x: transform.for_loop(f, jnp.stack([x, x])),
    "cond": lambda f: lambda x: transform.cond(True, f, f, x),
    "vmap": lambda f: lambda x: transform.vmap(f, in_axes=None, axis_size=2)(x),
    "functionalize": lambda f: lambda x: (fun := transform.functionalize(f)).apply(fun.values(x), x)[0],
}


class Model:
    def __init__(self) -> None:
        self.u = State(jnp.float32(1), name="u")

    def step(self, x: Any) -> Any:
        self.u.value = self.u.value + 1.0
        return self.u.value * x

    def __call__(self, x: Any) -> Any:
        return self.step(x)


class Slots:
    __slots__ = ("__weakref__", "u")

    def __init__(self) -> None:
        self.u = State(jnp.float32(1), name="u")

    def step(self, x: Any) -> Any:
        self.u.value = self.u.value + 1.0
        return self.u.value * x


def is_gone(*refs: weakref.ref[Any]) -> bool:
    gc.collect()
    return [ref() for ref in refs] == [None] * len(refs)


@pytest.mark.parametrize("calls", [1, 3])
@pytest.mark.parametrize("name", WRAPS)
def test_a_transformed_method_kept_on_its_instance_keeps_nothing_alive(name: str, calls: int) -> None:
    m: Any = Model()
    m.fast = WRAPS[name](m.step)
    for _ in range(calls):
        m.fast(jnp.float32(1))
    refs = weakref.ref(m), weakref.ref(m.u)
    del m
    assert is_gone(*refs)


@pytest.mark.parametrize("name", WRAPS)
def test_a_function_and_what_it_closes_over_go_together(name: str) -> None:
    def use() -> Any:
        m = Model()
        f = WRAPS[name](lambda x: m.step(x))
        f(jnp.float32(1)), f(jnp.float32(2))
        return weakref.ref(m), weakref.ref(m.u)

    assert is_gone(*use())


@pytest.mark.parametrize("name", ["jit", "checkpoint", "named_call", "grad", "lift"])
@pytest.mark.parametrize("kind", [Model, Slots])
def test_a_method_of_a_class_keeps_no_instance_alive(name: str, kind: Any) -> None:
    cls = type("Sub", (kind,), {"fast": WRAPS[name](kind.step)})
    a, b = cls(), cls()
    for instance in (a, b, a, b):
        instance.fast(1.0)
    refs = weakref.ref(a), weakref.ref(a.u)
    del a, instance
    b_ref = weakref.ref(b)
    assert is_gone(*refs)
    assert b.fast(1.0) == 4.0
    del b
    assert is_gone(b_ref)


@pytest.mark.parametrize("name", ["jit", "checkpoint", "named_call"])
def test_an_object_passed_as_an_argument_is_not_kept_alive(name: str) -> None:
    f = WRAPS[name](lambda model, x: model["m"].step(x))
    m = Model()
    f({"m": m}, 1.0), f({"m": m}, 1.0)
    refs = weakref.ref(m), weakref.ref(m.u)
    del m
    assert is_gone(*refs)


@pytest.mark.parametrize("name", ["jit", "checkpoint"])
def test_old_values_are_not_kept_alive(name: str) -> None:
    u = State(jnp.ones(1000), name="u")

    def step(x: Any) -> Any:
        u.value = u.value * x
        return x

    f = WRAPS[name](step)
    f(1.0), f(1.0)
    ref = weakref.ref(u.value)
    f(1.0)
    assert is_gone(ref)


def test_a_rebound_state_is_let_go() -> None:
    m = Model()
    f = transform.jit(m)
    f(1.0), f(1.0)
    ref = weakref.ref(m.u)
    m.u = State(jnp.float32(5))
    assert f(1.0) == 6.0
    f(1.0)
    assert is_gone(ref)


@pytest.mark.parametrize("name", ["jit", "checkpoint", "jit of checkpoint", "grad of jit"])
def test_wrappers_made_anew_trace_as_often_as_those_of_jax(name: str) -> None:
    runs, reference, s = [0], [0], State(jnp.float32(1), name="s")
    theirs = {
        "jit": jax.jit,
        "checkpoint": jax.checkpoint,
        "jit of checkpoint": lambda f: jax.jit(jax.checkpoint(f)),
        "grad of jit": lambda f: jax.grad(jax.jit(f), argnums=1, has_aux=True),
    }[name]

    def f(x: Any) -> Any:
        runs[0] += 1
        s.value = s.value + 1.0
        return s.value * x

    def twin(s: Any, x: Any) -> Any:
        reference[0] += 1
        return (s + 1.0) * x, s + 1.0

    value = jnp.float32(1)
    for _ in range(3):
        WRAPS[name](f)(2.0)
        _, value = theirs(twin)(value, 2.0)
    assert s.value == value
    assert runs == reference


def test_wrappers_made_anew_with_other_options_do_not_mix() -> None:
    s = State(jnp.float32(2), name="s")
    f = lambda x, n: s.value * x * (n if isinstance(n, int) else 100)
    for wrap in (transform.jit, transform.checkpoint):
        assert wrap(f, static_argnums=1)(1.0, 3) == 6.0
        assert wrap(f)(1.0, 3) == 200.0
        assert wrap(f, static_argnums=1)(1.0, 3) == 6.0
    other = State(jnp.float32(5), name="other")
    g = lambda x: s.value * other.value * x
    assert transform.checkpoint(g, states=s)(1.0) == transform.checkpoint(g)(1.0) == 10.0
    assert transform.grad(transform.checkpoint(g), states=other)(1.0) == 2.0


def test_jax_clear_caches_is_survived() -> None:
    runs, s = [0], State(jnp.float32(1))

    def f(x: Any) -> Any:
        runs[0] += 1
        s.value = s.value + x
        return s.value

    for wrap in (transform.jit, transform.checkpoint):
        s.value = jnp.float32(1)
        g = wrap(f)
        g(1.0), g(1.0)
        jax.clear_caches()
        assert (g(1.0), g(1.0)) == (4.0, 5.0)


def test_a_copied_model_has_copies_of_its_transformed_methods() -> None:
    m: Any = Model()
    m.fast = transform.jit(m.step)
    m.fast(1.0)
    c = copy.deepcopy(m)
    assert (c.fast(1.0), c.fast(1.0), m.u.value, c.u.value) == (3.0, 4.0, 2.0, 4.0)
    c.u.value = jnp.float32(50)
    assert (m.fast(1.0), c.fast(1.0)) == (3.0, 51.0)


class Rich(Model):
    @property
    @transform.jit
    def energy(self) -> Any:
        return self.u.value * 2.0

    @functools.cached_property
    def fast(self) -> Any:
        return transform.checkpoint(self.step)

    @transform.jit(static_argnums=1)
    def power(self, x: Any, n: int = 2) -> Any:
        return self.u.value * x**n

    cube = functools.partialmethod(power, n=3)


class Richer(Rich):
    @transform.jit(static_argnums=1)
    def power(self, x: Any, n: int = 2) -> Any:
        return super().power(x, n) + self.u.value


def test_properties_partial_methods_and_super_follow_their_instance() -> None:
    a, b = Rich(), Richer()
    assert (a.energy, a.fast(1.0), a.energy, a.power(2.0), a.cube(2.0)) == (2.0, 2.0, 4.0, 8.0, 16.0)
    assert (b.power(2.0), b.power(2.0, 3), b.cube(2.0)) == (5.0, 9.0, 8.0)
    a.u = State(jnp.float32(10))
    assert (a.energy, a.fast(1.0), a.energy) == (20.0, 11.0, 22.0)
    refs = weakref.ref(a), weakref.ref(b)
    del a, b
    assert is_gone(*refs)


def test_an_abstract_method_stays_abstract() -> None:
    class Base(abc.ABC):
        @transform.jit
        @abc.abstractmethod
        def inside(self, x: Any) -> Any: ...

        @abc.abstractmethod
        @transform.checkpoint
        def outside(self, x: Any) -> Any: ...

    assert Base.__abstractmethods__ == {"inside", "outside"}


def test_records_of_functionalize_keep_no_state_alive() -> None:
    m = Model()
    values = transform.functionalize(m).values(1.0)
    ref = weakref.ref(m.u)
    assert isinstance(values, st.Values)
    del m
    assert is_gone(ref)
    assert len(list(values)) == 0
