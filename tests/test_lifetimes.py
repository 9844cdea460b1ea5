"""What lives how long: nothing is kept alive without another reference, and traces live as long as those of JAX."""

from __future__ import annotations

import abc
import dataclasses
import functools
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from statetransform import State, transform

from .tables import ONCE

N = 8
X = jnp.float32(1)


class Model:
    def __init__(self) -> None:
        self.u, self.k = State(jnp.float32(1)), 2

    @property
    def twice(self) -> Any:
        """Looked up on the class."""
        return self.k * 2

    def step(self, x: Any) -> Any:
        self.u.value = self.u.value + x * self.twice
        return self.u.value

    __call__ = step


class Probe:
    """What can be referred to weakly."""


@dataclasses.dataclass(slots=True)
class Slots:
    """What cannot."""

    u: State
    probe: Any


class Owned(State):
    def __init__(self, value: Any, owner: Any) -> None:
        super().__init__(value)
        self.owner = owner


CASES: dict[str, Callable[[], Iterator[Any]]] = {}
held: list[Any] = []


def case(make: Callable[[], Iterator[Any]]) -> Callable[[], Iterator[Any]]:
    """Gives, one after the other, objects that are to be gone at the end; functions in `held` stay."""
    CASES[make.__name__.strip("_").replace("_", " ")] = make
    return make


@case
def instances_given_to_one_function() -> Iterator[Any]:
    held.append(jitted := transform.jit(Model.step))
    held.append(checkpointed := transform.checkpoint(Model.step))
    held.append(nested := transform.jit(lambda models, x: models["m"].step(x)))
    for _ in range(N):
        model = Model()
        jitted(model, X), checkpointed(model, X), nested({"m": model}, X)
        yield model


def wrapped(way: Callable[[Any], Any]) -> Callable[[], Iterator[Any]]:
    def make() -> Iterator[Any]:
        for _ in range(N):
            model: Any = Model()
            function = way(lambda x, model=model: model.step(x))
            model.fast, model.itself = way(model.step), way(model)  # cycles
            for _ in range(2):
                function(X), model.fast(X), model.itself(X)
            yield model
            yield model.u
            yield function

    return make


ways: dict[str, Callable[[Any], Any]] = ONCE | {
    "jit with donation": lambda f: transform.jit(f, donate_states=True),
    "jit, lowered and compiled": lambda f: transform.jit(f).lower(X).compile(),
    "jit of grad of checkpoint": lambda f: transform.jit(transform.grad(transform.checkpoint(f))),
    "grad of jit": lambda f: transform.grad(transform.jit(f)),
    "lift": transform.lift(jax.checkpoint),
    "vmap": lambda f: lambda x: transform.vmap(f, in_axes=None, axis_size=2)(x),
    "partial object": lambda f: transform.jit(functools.partial(f)),
}
CASES.update({f"functions made anew under {name}": wrapped(way) for name, way in ways.items()})


@case
def batches_that_functions_close_over() -> Iterator[Any]:
    model = Model()
    for i in range(N):
        batch = jnp.arange(5.0) + i
        transform.jit(lambda x, batch=batch: model.u.value * batch.sum() * x)(X)
        transform.fori_loop(0, 3, lambda i, c, batch=batch: c + batch.sum(), X)
        yield batch


@case
def old_values_and_states_that_were_replaced() -> Iterator[Any]:
    model = Model()
    held.append(model)
    for function in (transform.jit(model.step), transform.checkpoint(model.step)):
        for _ in range(N):
            function(X)
            yield model.u.value
            yield model.u
            model.u = State(jnp.float32(1))
        held.append(function)


@case
def classes_made_anew() -> Iterator[Any]:
    for _ in range(N // 4):

        class Local(Model):
            @property
            def thrice(self) -> Any:
                return __class__ and self.k * 3  # type: ignore[name-defined]

            @transform.jit
            def move(self, x: Any) -> Any:
                self.u.value = super().step(x) * self.thrice

        local = Local()
        local.move(X), local.move(X)
        yield Local
        yield local


@case
def objects_without_weak_references() -> Iterator[Any]:
    held.append(jitted := transform.jit(lambda slots, x: slots.u.value * x + (slots.probe is None)))
    for _ in range(N):
        slots = Slots(State(jnp.float32(1)), Probe())
        jitted(slots, X)
        yield slots.u
        yield slots.probe


@case
def what_only_an_iterator_or_a_method_of_a_list_leads_to() -> Iterator[Any]:
    class Holder:
        pass

    held.append(jitted := transform.jit(lambda h, x: (h.u.value * x, h.models, h.pairs, h.append)[0]))
    for _ in range(N):
        model, holder = Model(), Holder()
        vars(holder).update(u=State(X), models=iter([model]), pairs=zip([model], [1]), append=[model].append)  # noqa: B905
        jitted(holder, X)
        yield model


@case
def states_that_know_their_owner() -> Iterator[Any]:
    class Owner:
        def __init__(self) -> None:
            self.u = Owned(jnp.float32(1), self)

        @transform.jit
        def step(self) -> Any:
            self.u.value = self.u.value + 1
            return self.u.owner.u.value

    for _ in range(N):
        owner = Owner()
        owner.step(), owner.step()
        yield owner
        yield owner.u


@case
def static_arguments() -> Iterator[Any]:
    @dataclasses.dataclass(frozen=True)
    class Settings:
        k: int

    held.append(jitted := transform.jit(lambda x, settings: x * settings.k, static_argnums=1))
    for i in range(N):
        settings = Settings(i % 3)
        jitted(X, settings)
        yield settings


@case
def traces_that_fail() -> Iterator[Any]:
    def body(model: Any, x: Any) -> Any:
        model.step(x)
        raise LookupError

    held.append(jitted := transform.jit(body))
    for _ in range(N):
        model = Model()
        with pytest.raises(LookupError):
            jitted(model, X)
        yield model


@case
def records_of_functionalize() -> Iterator[Any]:
    for _ in range(N):
        model = Model()
        function = transform.functionalize(model.step)
        function.apply(function.values(X), X)
        yield model


@pytest.mark.parametrize("name", CASES)
def test_nothing_is_kept_alive(name: str) -> None:
    references = [weakref.ref(obj) for obj in CASES[name]()]
    gc.collect()
    alive = [type(obj) for reference in references if (obj := reference()) is not None]
    held.clear()
    assert alive == []
    assert len(references) >= N // 4


def test_an_object_of_a_callback_lives_with_its_program_until_that_is_dropped() -> None:
    """The compiled program calls back into the object itself. Raw JAX also keeps it, with a higher bound."""

    class Logged(Model):
        def __init__(self) -> None:
            super().__init__()
            self.log: list[Any] = []

        @transform.jit
        def step(self, x: Any) -> Any:
            jax.debug.callback(lambda u: self.log.append(u), self.u.value)
            return super().step(x)

    refs = []
    for _ in range(70):
        model = Logged()
        model.step(X)
        refs.append(weakref.ref(model))
    del model
    gc.collect()
    assert sum(ref() is not None for ref in refs) <= 64
    Logged.step.clear_cache()
    gc.collect()
    assert [ref for ref in refs if ref() is not None] == []


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


def test_properties_and_partial_methods_follow_their_instance() -> None:
    a, b = Rich(), Rich()
    assert (a.energy, a.fast(1.0), a.energy, b.power(2.0), b.cube(2.0)) == (2.0, 5.0, 10.0, 4.0, 8.0)
    a.u = State(jnp.float32(10))
    assert (a.energy, a.fast(1.0), a.energy, b.energy) == (20.0, 14.0, 28.0, 2.0)


def test_an_abstract_method_stays_abstract() -> None:
    class Base(abc.ABC):
        @transform.jit
        @abc.abstractmethod
        def inside(self, x: Any) -> Any: ...

        @abc.abstractmethod
        @transform.checkpoint
        def outside(self, x: Any) -> Any: ...

    assert Base.__abstractmethods__ == {"inside", "outside"}
