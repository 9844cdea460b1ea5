"""The guarantees over each kind of cell alone, and over several in one function."""

from __future__ import annotations

import gc
import importlib
import threading
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import statetransform as st
from statetransform import transform

from ..tables import ONCE
from .cells import KINDS, OF_OBJECTS, ROWS

X = jnp.float32(1.5)
START = jnp.float32(1)
FRAMEWORKS = ("state", "brainstate", "nnx", "nnx-hijax", "nnx-ref", "nnx-both", "ref", "Plain")
MIXED = tuple(kind for kind in FRAMEWORKS if kind in ROWS)
EACH = [(kind,) for kind in ROWS if kind != "state"]
ALL = [*EACH, MIXED]
#: Cells of plain objects differ in how they are stored only.
SIMPLE = {kind.__name__ for kind in KINDS}
ERRORS_OF_FLAX = (importlib.import_module("flax.errors").TraceContextError,) if "nnx" in ROWS else ()
FEW = ("jit", "checkpoint", "value_and_grad", "checkpointed scan", "cond", "functionalize")


class Model:
    def __init__(self, kinds: tuple[str, ...], start: Any = START) -> None:
        self.kinds = [ROWS[kind] for kind in kinds]
        self.cells = [kind.make(start + i) for i, kind in enumerate(self.kinds)]
        self.training = True

    def step(self, x: Any) -> Any:
        for kind, cell in zip(self.kinds, self.cells, strict=True):
            kind.put(cell, jnp.sin(kind.get(cell)) + x if self.training else kind.get(cell) * x)
            x = kind.get(cell)
        return x

    def values(self) -> list[float]:
        return [np.asarray(kind.get(cell)).tolist() for kind, cell in zip(self.kinds, self.cells, strict=True)]


def pure(values: Any, x: Any, training: bool = True) -> tuple[Any, list[Any]]:
    new = []
    for value in values:
        x = jnp.sin(value) + x if training else value * x
        new.append(x)
    return x, new


WRAPS = ONCE | {"functionalize": lambda f: lambda x: _applied(transform.functionalize(f), x)}


def _applied(fun: Any, x: Any) -> Any:
    out, new = fun.apply(fun.values(x), x)
    for state, value in new.items():
        state.value = value
    return out


FEWEST = ("jit", "value_and_grad", "cond")
#: All kinds together meet every transform, those of a framework each engine.
CASES = [(kinds, name) for kinds in ALL for name in (WRAPS if kinds is MIXED else FEWEST if {*kinds} < SIMPLE else FEW)]
IDS = [f"{' '.join(kinds)}-{name}" for kinds, name in CASES]
EACH_CASE = pytest.mark.parametrize(("kinds", "name"), CASES, ids=IDS)
EACH_KIND = pytest.mark.parametrize("kinds", ALL, ids=" ".join)


@EACH_CASE
def test_values_and_freshness(name: str, kinds: tuple[str, ...]) -> None:
    model = Model(kinds)
    step, values = WRAPS[name](model.step), model.values()
    for i in range(4):
        if i == 2:
            model.kinds[0].put(model.cells[0], jnp.float32(0.3))
            values[0] = 0.3
        if i == 3:
            model.training = False
        expected, values = pure(values, X, model.training)
        np.testing.assert_allclose(step(X), expected, rtol=1e-5)
        np.testing.assert_allclose(model.values(), values, rtol=1e-5)


@EACH_KIND
def test_gradients_with_respect_to_cells_and_to_an_argument(kinds: tuple[str, ...]) -> None:
    given = [START + i for i in range(len(kinds))]
    expected, by_x = jax.grad(lambda values, x: pure(values, x)[0], (0, 1))(given, X)
    for wrap in (lambda f: f, transform.jit, transform.checkpoint):
        model = Model(kinds)
        states = [*st.states(model.cells).values()]
        found = transform.grad(wrap(model.step), argnums=(0,), states=states)(X)
        np.testing.assert_allclose(found[0], expected, rtol=1e-5)
        np.testing.assert_allclose(found[1][0], by_x, rtol=1e-5)
        np.testing.assert_allclose(model.values(), pure(given, X)[1], rtol=1e-5)


@EACH_KIND
def test_the_state_that_stands_for_a_cell_has_its_value(kinds: tuple[str, ...]) -> None:
    model = Model(kinds)
    step = transform.jit(model.step)
    step(X)
    states = st.states(model.cells)
    st.update(states, dict.fromkeys(states, jnp.float32(0.4)))
    np.testing.assert_allclose(model.values(), [0.4] * len(kinds), rtol=1e-6)
    np.testing.assert_allclose(step(X), pure([0.4] * len(kinds), X)[0], rtol=1e-5)
    np.testing.assert_allclose([*st.values(states).values()], model.values(), rtol=1e-6)


@EACH_CASE
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


@EACH_KIND
def test_a_write_in_a_raw_transform_is_refused(kinds: tuple[str, ...]) -> None:
    model = Model(kinds)
    before = model.values()
    raw = [lambda: transform.jit(lambda x: jax.lax.scan(lambda c, x: (c, model.step(x)), None, x))(jnp.ones(2))]
    if {*kinds} <= SIMPLE:  # the others are refused by their own frameworks
        raw.append(lambda: jax.jit(model.step)(X))
    for call in raw:
        with pytest.raises((st.StateTraceError, *ERRORS_OF_FLAX), match=r"raw JAX transform|different trace level"):
            call()
    assert model.values() == before


@EACH_KIND
def test_the_body_runs_once_for_models_of_one_structure(kinds: tuple[str, ...]) -> None:
    runs = []

    @transform.jit
    def step(model: Model, x: Any) -> Any:
        runs.append(1)
        return model.step(x)

    models = [Model(kinds) for _ in range(3)]
    for model in models:
        values = model.values()
        for _ in range(3):
            expected, values = pure(values, X)
            np.testing.assert_allclose(step(model, X), expected, rtol=1e-5)
        np.testing.assert_allclose(model.values(), values, rtol=1e-5)
    assert len(runs) == 1


@EACH_KIND
def test_a_replaced_cell_is_seen(kinds: tuple[str, ...]) -> None:
    model = Model(kinds)
    step = transform.jit(model.step)
    step(X), step(X)
    old, before = model.cells[-1], model.values()
    model.cells[-1] = model.kinds[-1].make(jnp.float32(9))
    expected, values = pure([*before[:-1], 9.0], X)
    np.testing.assert_allclose(step(X), expected, rtol=1e-5)
    np.testing.assert_allclose(model.values(), values, rtol=1e-5)
    np.testing.assert_allclose(model.kinds[-1].get(old), before[-1])


@EACH_KIND
@pytest.mark.parametrize("name", ["jit", "value_and_grad"])
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


@EACH_KIND
def test_nothing_leaks_and_models_are_freed(kinds: tuple[str, ...]) -> None:
    model = Model(kinds)
    with jax.checking_leaks():
        for name in ("jit of checkpoint", "scan", "value_and_grad", "checkpointed scan"):
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


@EACH_KIND
def test_lanes_write_batched_values_or_are_refused_by_name(kinds: tuple[str, ...]) -> None:
    model, xs = Model(kinds), jnp.arange(3.0)
    with pytest.raises(st.StateAxisError):
        transform.vmap(model.step)(xs)
    assert model.values() == Model(kinds).values()
    model = Model(kinds, xs)
    given = [xs + i for i in range(len(kinds))]
    out = transform.vmap(model.step, state_axes=dict.fromkeys(st.states(model.cells).values(), 0))(xs)
    expected, values = jax.vmap(pure)(given, xs)
    np.testing.assert_allclose(out, expected, rtol=1e-5)
    np.testing.assert_allclose(model.values(), values, rtol=1e-5)


#: A Ref that is made inside is JAX's own, and an attribute is no cell before `st.attr`.
MADE_INSIDE = [
    name for name in ROWS if name not in {"ref", "ref by functions", *(kind.__name__ for kind in OF_OBJECTS)}
]


@pytest.mark.parametrize("wrap", [transform.jit, transform.checkpoint, lambda f: f], ids=["jit", "checkpoint", "eager"])
@pytest.mark.parametrize("name", MADE_INSIDE)
def test_a_cell_that_is_made_inside_holds_its_value_afterwards(name: str, wrap: Any) -> None:
    make, get, put = ROWS[name]
    kept: list[Any] = []

    def body(x: Any) -> Any:
        made, temporary = make(x), make(x)
        put(made, get(made) * x)
        kept.append(made)
        return get(made) + get(temporary)

    f = wrap(body)
    for x in (X, 2 * X):
        np.testing.assert_allclose(f(x), x * x + x)
        np.testing.assert_allclose(get(kept.pop()), x * x)


AROUND = {name: ONCE[name] for name in ("value_and_grad", "jit of value_and_grad", "vjp", "jvp", "jit")}
AROUND["vmap"] = lambda f: transform.vmap(f, in_axes=None, axis_size=1)


@pytest.mark.parametrize("around", AROUND)
def test_a_callback_sees_cells_as_before_the_call_and_its_writes_stay(around: str) -> None:
    model, logs, seen = Model(MIXED), Model(MIXED), []
    transform.jit(lambda: logs.step(X))()  # the logs are cells, too
    before = model.values()

    def host(x: Any) -> None:
        seen.append(model.values())
        for i, (kind, cell) in enumerate(zip(logs.kinds, logs.cells, strict=True)):
            kind.put(cell, jnp.float32(x) + i)

    def f(x: Any) -> Any:
        out = model.step(x)
        jax.debug.callback(host, jax.lax.stop_gradient(x))
        return out

    AROUND[around](f)(X)
    jax.effects_barrier()
    assert seen and all(values == before for values in seen)
    np.testing.assert_allclose(logs.values(), float(X) + np.arange(len(MIXED)))


def test_errors_name_cells_by_their_paths() -> None:
    model = Model(("state", "Plain", "Registered"))
    model.cells[1] = {"p": model.cells[1]}
    transform.jit(lambda x: x * model.cells[1]["p"].n * model.cells[2].n)(X)
    for cell, name in ((model.cells[1]["p"], "'n'"), (model.cells[2], r"model\.cells\.2")):
        with pytest.raises(st.StateStructureError, match=name):
            transform.scan(lambda c, x, cell=cell: (c, setattr(cell, "n", jnp.ones(2))), None, jnp.ones(3))


def test_a_batched_write_is_refused_by_the_path_to_the_cell_and_the_users_line() -> None:
    bs, nnx = pytest.importorskip("brainstate"), pytest.importorskip("flax.nnx")

    class Net:
        def __init__(self) -> None:
            self.norms = [nnx.BatchNorm(3, rngs=nnx.Rngs(0))]
            self.other = bs.nn.BatchNorm0d((3,))

    model = Net()
    with pytest.raises(st.StateAxisError, match=r"'model\.norms\.0\.mean' .*written to it at test_guarantees\.py"):
        transform.vmap(lambda x: model.norms[0](x[None]))(jnp.ones((2, 3)))
    with (
        bs.environ.context(fit=True),
        pytest.raises(st.StateAxisError, match=r"'model\.other\..*written to it at test_guarantees\.py"),
    ):
        transform.vmap(lambda x: model.other(x[None]))(jnp.ones((2, 3)))
