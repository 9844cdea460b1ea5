"""What a trace depends on: containers, arrays, callbacks and deep structures; classes that are traced often."""

from __future__ import annotations

import types
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from statetransform import RetraceWarning, State, inspect, transform
from statetransform._objects import hooks

X = jnp.ones(1)


def traces(fun: Any) -> int:
    return len(inspect.explain_retrace(fun))


class Node:
    def __init__(self, next: Any = None) -> None:
        self.w, self.next = State(jnp.float32(1)), next


def test_a_linked_list_and_nested_containers_may_be_deep() -> None:
    node, items = None, [State(jnp.float32(2))]
    for _ in range(400):
        node, items = Node(node), [items]

    @transform.jit
    def total(x: Any) -> Any:
        out, at, inner = 0.0, node, items
        while at is not None:
            out, at, inner = out + at.w.value, at.next, inner[0]
        return out * inner[0].value * x

    assert float(total(1.0)) == float(total(1.0)) == 800


class Masked:
    def __init__(self, n: int) -> None:
        self.mask = np.zeros(n, np.float32)

    @transform.jit
    def total(self) -> Any:
        return self.mask.sum()


@pytest.mark.filterwarnings("ignore::statetransform.RetraceWarning")
@pytest.mark.parametrize("n", [1, 7, 1024, 1025, 100_000])
def test_an_array_of_numpy_counts_by_content_whatever_its_size(n: int) -> None:
    model, other = Masked(n), Masked(n)
    assert float(model.total()) == 0
    before = traces(Masked.total)
    assert float(other.total()) == 0
    assert traces(Masked.total) == before
    for value in (1.0, 2.0, 1.0):
        model.mask[:] = value
        assert float(model.total()) == n * value
    model.mask = model.mask.reshape(1, n)
    assert float(model.total()) == n


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
@pytest.mark.parametrize(
    "under", [transform.jit, transform.checkpoint, lambda f: lambda: transform.map(lambda _: f(), X)]
)
def test_jax_does_not_remember_how_it_converted_an_array_that_has_changed(dtype: Any, under: Any) -> None:
    array = np.zeros(3, dtype)
    inner = jax.jit(lambda: jnp.asarray(array) + jnp.sin(array))
    for f in (under(lambda: jnp.asarray(array) + jnp.sin(array)), under(lambda: inner())):
        for value in (0, 1, 2, 1):
            array[:] = value
            np.testing.assert_allclose(np.asarray(f()).reshape(3), value + np.sin(np.float32(value)), rtol=1e-6)


chosen: Any = None
DOUBLE = types.ModuleType("jax.double")  # as if of a library
DOUBLE.sum = lambda x: 2 * jnp.sum(x)  # type: ignore[attr-defined]


@pytest.mark.parametrize("held_by", ["global", "module"])
@pytest.mark.parametrize(
    ("use", "one", "other"),
    [(lambda f: f(2.5), *both) for both in ((jnp.cosh, jnp.mean), (abs, jnp.sin), (int, float), (jnp.tanh, jnp.prod))]
    + [(lambda module: module.sum(X), jnp, DOUBLE)],
)
def test_a_name_may_be_given_another_function_or_module_of_a_library(
    use: Any, one: Any, other: Any, held_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder: Any = types.ModuleType("holder_of_a_module")
    f = transform.jit((lambda x: use(chosen) * x) if held_by == "global" else lambda x: use(holder.chosen) * x)
    for value in (one, other, one):
        monkeypatch.setitem(globals(), "chosen", value)
        holder.chosen = value
        assert float(f(jnp.float32(1))) == pytest.approx(float(use(value)))


def test_a_read_only_array_is_compared_by_identity_first(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Masked(1000)
    model.mask.flags.writeable = False
    model.total()
    monkeypatch.setattr(np, "array_equal", lambda x, y: pytest.fail("compared"))
    model.total()
    monkeypatch.undo()
    model.mask.flags.writeable = True
    model.mask[:] = 1.0
    assert float(model.total()) == 1000


def test_a_large_array_that_is_compared_at_every_call_is_said_once() -> None:
    model = Masked(3 << 20)
    with pytest.warns(RetraceWarning, match=r"compares `self\.mask`, a NumPy array of 12 MiB.*writeable = False"):
        model.total()
    other = Masked(3 << 20)
    other.mask.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.mask[0] = 1.0
        model.total()
        other.total()


def refuse(self: Any, name: str, value: Any) -> None:
    raise AttributeError(f"{name} is frozen")


def test_a_class_that_sets_its_own_setattr_while_it_is_traced() -> None:
    class Model:
        def __init__(self) -> None:
            self.w = State(jnp.float32(3))

        @transform.jit
        def step(self, x: Any) -> Any:
            type(self).__setattr__ = refuse  # type: ignore[method-assign,assignment]
            return x * self.w.value

    model = Model()
    assert [float(model.step(x)) for x in (1.0, 2.0, 3.0)] == [3.0, 6.0, 9.0]
    assert vars(Model)["__setattr__"] is refuse
    assert not {"__getattribute__", "__delattr__"} & vars(Model).keys()
    with pytest.raises(AttributeError, match="frozen"):
        model.w = 1  # type: ignore[assignment]


@pytest.mark.filterwarnings("ignore::statetransform.RetraceWarning")
def test_a_class_that_was_traced_a_thousand_times_is_followed_as_before() -> None:
    class Often:
        scale = 1.0

        def __init__(self) -> None:
            self.u, self.calls, self.order, self.child = State(jnp.float32(0)), 0, 2, None

        def total(self) -> Any:
            return getattr(self, "extra", 1.0)

        @transform.checkpoint
        def step(self, x: Any) -> Any:
            self.u.value = self.u.value + x.sum()
            return self.u.value * self.order * self.scale * self.total() + (self.child is None)

    often = Often()
    for _ in range(1000):  # CPython has fewer version tags for a class
        hooks.hook(Often)
        _ = often.calls
        hooks.unhook(Often)
        _ = often.calls
    often.step(jnp.ones(3))
    before = traces(Often.step)
    often.calls += 1
    often.step(jnp.ones(3)), Often().step(jnp.ones(3))
    assert traces(Often.step) == before
    for name, value in [("order", 5), ("extra", 3.0), ("scale", 2.0), ("child", often), ("order", 1)]:
        setattr(often, name, value)
        for _ in range(2):
            found = float(often.step(jnp.ones(3)))
            assert found == float(often.u.value) * often.order * often.scale * often.total() + (often.child is None)


def test_an_object_that_is_changed_behind_a_closure_is_never_stale() -> None:
    class Model:
        def __init__(self) -> None:
            self.u = State(jnp.float32(1))

    def f(x: Any) -> Any:
        model.last = x.shape  # type: ignore[attr-defined]
        return x * model.u.value * len(vars(model))

    model: Any = Model()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RetraceWarning)
        for change in (
            lambda: None, lambda: None, lambda: delattr(model, "last"), lambda: setattr(model, "other", 1),
            lambda: delattr(model, "last"), lambda: setattr(model, "third", 1), lambda: delattr(model, "other"),
        ):  # fmt: skip
            change()
            for _ in range(2):
                assert float(transform.jit(lambda x: f(x))(jnp.float32(1))) == len({*vars(model), "last"})


class Gains:
    gain = 1.0

    def __call__(self) -> float:
        return Gains.gain


GAINS, BODY, CURRENT = Gains(), Gains(), 1.0


def _of_a_module() -> float:
    import tests.guarantees.test_2_dependencies as module

    return module.Gains.gain


@pytest.mark.parametrize(
    "body",
    [
        lambda: GAINS.gain,
        lambda: Gains()(),
        lambda: getattr(GAINS, "ga" + "in"),
        lambda: _of_a_module(),
        lambda: CURRENT,
    ],
    ids=["global object", "made inside", "computed name", "module", "global name"],
)
def test_a_trace_depends_on_what_a_known_trace_within_it_has_used(body: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    state = State(jnp.float32(0))
    monkeypatch.setitem(globals(), "BODY", body)

    def new() -> tuple[Any, list[int]]:
        calls: list[int] = []

        def outer() -> Any:
            calls.append(1)  # what changes its own closure shares no trace with its twin

            def step(_: Any) -> Any:
                return state.value * 0 + BODY()

            return transform.for_loop(step, X)[-1]

        return transform.jit(outer), calls

    new()[0]()
    second, calls = new()
    assert [float(second()), float(second()), len(calls)] == [1, 1, 1]
    monkeypatch.setattr(Gains, "gain", 2.0)
    monkeypatch.setitem(globals(), "CURRENT", 2.0)
    assert float(second()) == 2


@pytest.mark.filterwarnings("ignore::statetransform.RetraceWarning")
def test_a_list_that_a_closed_over_object_keeps_counts_though_the_function_changes_it() -> None:
    class Model:
        def __init__(self) -> None:
            self.u, self.history = State(jnp.float32(1)), list[Any]()

    model = Model()

    @transform.jit
    def f(x: Any) -> Any:
        model.history.append(x.shape)
        return x * model.u.value * len(model.history)

    assert [float(f(1.0)) for _ in range(3)] == [1, 2, 3]
