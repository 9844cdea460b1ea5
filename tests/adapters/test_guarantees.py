"""The guarantees over cells of each framework alone, and over all in one function."""

from __future__ import annotations

import functools
import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import statetransform as st
from statetransform import transform

bs = pytest.importorskip("brainstate")
nnx = pytest.importorskip("flax.nnx")

from .modules import HIJAX, REF  # noqa: E402 - after the skip

X = jnp.float32(1.5)


class Plain:
    def __init__(self, n: Any) -> None:
        self.n = n


def attribute(n: Any) -> Any:
    obj = Plain(n)
    st.attr(obj, "n")
    return obj


#: How a cell of each kind is made, read and written.
KINDS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any], Callable[[Any, Any], Any]]] = {
    "state": (st.State, lambda c: c.value, lambda c, v: setattr(c, "value", v)),
    "brainstate": (bs.State, lambda c: c.value, lambda c, v: setattr(c, "value", v)),
    "nnx": (nnx.Variable, lambda c: c[...], lambda c, v: c.set_value(v)),
    "nnx-hijax": (functools.partial(nnx.Variable, **HIJAX), lambda c: c[...], lambda c, v: c.set_value(v)),
    "nnx-ref": (functools.partial(nnx.Variable, **REF), lambda c: c[...], lambda c, v: c.set_value(v)),
    "nnx-both": (functools.partial(nnx.Variable, **HIJAX, **REF), lambda c: c[...], lambda c, v: c.set_value(v)),
    "ref": (jax.new_ref, lambda c: c[...], lambda c, v: c.__setitem__(..., v)),
    "attribute": (attribute, lambda c: c.n, lambda c, v: setattr(c, "n", v)),
}

MIXED = tuple(KINDS)
ALL = [*[(kind, kind) for kind in KINDS if kind != "state"], MIXED]


class Model:
    """A cell of each of some kinds; each is written with what the one before it has."""

    def __init__(self, kinds: tuple[str, ...]) -> None:
        self.kinds = kinds
        self.cells = [KINDS[kind][0](jnp.float32(i + 1)) for i, kind in enumerate(kinds)]
        self.training = True

    def step(self, x: Any) -> Any:
        for kind, cell in zip(self.kinds, self.cells, strict=True):
            _, get, put = KINDS[kind]
            put(cell, jnp.sin(get(cell)) + x if self.training else get(cell) * x)
            x = get(cell)
        return x

    def values(self) -> list[float]:
        return [float(KINDS[kind][1](cell)) for kind, cell in zip(self.kinds, self.cells, strict=True)]


def pure(values: Any, x: Any, training: bool = True) -> tuple[Any, list[Any]]:
    new = []
    for value in values:
        x = jnp.sin(value) + x if training else value * x
        new.append(x)
    return x, new


WRAPS = {
    "jit": transform.jit,
    "checkpoint": transform.checkpoint,
    "jit of checkpoint": lambda f: transform.jit(transform.checkpoint(f)),
    "grad": lambda f: lambda x: transform.value_and_grad(f)(x)[0],
    "vjp": lambda f: lambda x: transform.vjp(f, x)[0],
    "jvp": lambda f: lambda x: transform.jvp(f, (x,), (x,))[0],
    "linearize": lambda f: lambda x: transform.linearize(f, x)[0],
    "scan": lambda f: lambda x: transform.scan(lambda c, _: (c, f(c)), x, None, length=1)[1][0],
    "checkpointed scan": lambda f: (
        lambda x: transform.scan(lambda c, _: (c, f(c)), x, None, length=1, checkpoint=1)[1][0]
    ),
    "for_loop": lambda f: lambda x: transform.for_loop(f, jnp.stack([x]))[0],
    "fori_loop": lambda f: lambda x: transform.fori_loop(0, 1, lambda i, c: f(c), x),
    "while_loop": lambda f: lambda x: transform.while_loop(lambda c: c[0] < 1, lambda c: (1, f(c[1])), (0, x))[1],
    "cond": lambda f: lambda x: transform.cond(x > 0, f, lambda x: x, x),
    "switch": lambda f: lambda x: transform.switch(1, [lambda x: x, f], x),
    "named_call": transform.named_call,
    "eval of functionalize": lambda f: lambda x: _applied(transform.functionalize(f), x),
}


def _applied(fun: Any, x: Any) -> Any:
    out, new = fun.apply(fun.values(x), x)
    for state, value in new.items():
        state.value = value
    return out


@pytest.mark.parametrize("kinds", ALL, ids=" ".join)
@pytest.mark.parametrize("name", WRAPS)
def test_values_and_freshness(name: str, kinds: tuple[str, ...]) -> None:
    model = Model(kinds)
    step, values = WRAPS[name](model.step), model.values()
    for i in range(4):
        if i == 2:
            KINDS[kinds[0]][2](model.cells[0], jnp.float32(0.3))
            values[0] = 0.3
        if i == 3:
            model.training = False
        expected, values = pure(values, X, model.training)
        np.testing.assert_allclose(step(X), expected, rtol=1e-5)
        np.testing.assert_allclose(model.values(), values, rtol=1e-5)


@pytest.mark.parametrize("kinds", ALL, ids=" ".join)
def test_gradients_with_respect_to_cells(kinds: tuple[str, ...]) -> None:
    model = Model(kinds)
    expected = jax.grad(lambda values: pure(values, X)[0])([jnp.float32(i + 1) for i in range(len(kinds))])
    states = [*st.states(model).values()]
    for wrap in (lambda f: f, transform.jit, transform.checkpoint):
        model = Model(kinds)
        states = [*st.states(model).values()]
        gradient = transform.grad(wrap(model.step), states=states)
        np.testing.assert_allclose(gradient(X), expected, rtol=1e-5)


@pytest.mark.parametrize("kinds", ALL, ids=" ".join)
@pytest.mark.parametrize("name", WRAPS)
def test_a_call_that_raises_changes_nothing(name: str, kinds: tuple[str, ...]) -> None:
    model = Model(kinds)

    def fails(x: Any) -> Any:
        model.step(x)
        raise ZeroDivisionError

    before = model.values()
    with pytest.raises(ZeroDivisionError):
        WRAPS[name](fails)(X)
    assert model.values() == before
    np.testing.assert_allclose(WRAPS[name](model.step)(X), pure(before, X)[0], rtol=1e-5)


@pytest.mark.parametrize("kinds", ALL, ids=" ".join)
def test_the_body_runs_once_for_models_of_one_structure(kinds: tuple[str, ...]) -> None:
    runs = []

    @transform.jit
    def step(model: Model, x: Any) -> Any:
        runs.append(1)
        return model.step(x)

    for _ in range(3):
        model = Model(kinds)
        for _ in range(3):
            step(model, X)
    assert len(runs) == 1


@pytest.mark.parametrize("kinds", ALL, ids=" ".join)
def test_a_replaced_cell_is_seen(kinds: tuple[str, ...]) -> None:
    model = Model(kinds)
    step = transform.jit(model.step)
    step(X), step(X)
    old, before = model.cells[-1], model.values()
    model.cells[-1] = KINDS[kinds[-1]][0](jnp.float32(9))
    expected, values = pure([*before[:-1], 9.0], X)
    np.testing.assert_allclose(step(X), expected, rtol=1e-5)
    np.testing.assert_allclose(model.values(), values, rtol=1e-5)
    np.testing.assert_allclose(KINDS[kinds[-1]][1](old), before[-1])


@pytest.mark.parametrize("kinds", ALL, ids=" ".join)
@pytest.mark.parametrize("name", ["jit", "checkpoint", "scan", "grad"])
def test_other_threads_see_the_values_before_the_call(name: str, kinds: tuple[str, ...]) -> None:
    model, seen = Model(kinds), []
    before = model.values()

    def body(x: Any) -> Any:
        out = model.step(x)
        thread = threading.Thread(target=lambda: seen.append(model.values()))
        thread.start()
        thread.join()
        return out

    WRAPS[name](body)(X)
    assert seen and all(values == before for values in seen)


@pytest.mark.parametrize("kinds", ALL, ids=" ".join)
def test_nothing_leaks_and_models_are_freed(kinds: tuple[str, ...]) -> None:
    model = Model(kinds)
    with jax.checking_leaks():
        for name in ("jit of checkpoint", "scan", "grad", "checkpointed scan"):
            WRAPS[name](model.step)(X)
        transform.jit(lambda m, x: m.step(x))(model, X)
    gone = [weakref.ref(model), *[weakref.ref(cell) for cell in model.cells if type(cell).__weakrefoffset__]]
    gc.collect()
    gc.disable()
    try:
        del model
        assert [ref() for ref in gone] == [None] * len(gone)
    finally:
        gc.enable()


@pytest.mark.parametrize("kinds", ALL, ids=" ".join)
def test_the_program_is_that_of_the_hand_threaded_function(kinds: tuple[str, ...]) -> None:
    model = Model(kinds)
    ours = transform.jit(model.step).lower(X).compile().cost_analysis()
    by_hand = jax.jit(pure).lower([jnp.float32(i) for i in range(len(kinds))], X).compile().cost_analysis()
    assert ours["flops"] == by_hand["flops"]
    assert ours.get("transcendentals") == by_hand.get("transcendentals")


@pytest.mark.parametrize("kinds", ALL, ids=" ".join)
def test_lanes_write_batched_values_or_are_refused_by_name(kinds: tuple[str, ...]) -> None:
    model, xs = Model(kinds), jnp.arange(3.0)
    with pytest.raises(st.StateAxisError):
        transform.vmap(model.step)(xs)
    if {"ref", "nnx-ref", "nnx-both"} & {*kinds}:  # which keeps its shape
        return
    for kind, cell in zip(kinds, model.cells, strict=True):
        KINDS[kind][2](cell, jnp.arange(3.0))
    axes = dict.fromkeys(st.states(model).values(), 0)
    out = transform.vmap(model.step, state_axes=axes)(xs)
    expected, values = jax.vmap(pure)([jnp.arange(3.0)] * len(kinds), xs)
    np.testing.assert_allclose(out, expected, rtol=1e-5)
    for kind, cell, value in zip(kinds, model.cells, values, strict=True):
        np.testing.assert_allclose(KINDS[kind][1](cell), value, rtol=1e-5)


@pytest.mark.parametrize("kinds", ALL, ids=" ".join)
def test_writes_to_cells_are_discarded(kinds: tuple[str, ...]) -> None:
    model = Model(kinds)
    values = model.values()
    expected, _ = pure(values, X)
    inside = transform.discard_writes(model.step)
    for f in (inside, transform.jit(inside), transform.discard_writes(transform.jit(model.step))):
        for _ in range(2):
            np.testing.assert_allclose(f(X), expected, rtol=1e-5)
            assert model.values() == values
