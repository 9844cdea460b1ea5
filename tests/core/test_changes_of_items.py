"""A function under a transform sees each change of the items, values and states that it uses."""

from __future__ import annotations

import collections
import decimal
import enum
import functools
import pathlib
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import pytest

from statetransform import State, transform

from .changes import WAYS, Base, Scene, assert_seen, new, put


class Pair(NamedTuple):
    """A state and a number."""

    u: State
    k: int


class Mode(enum.IntEnum):
    """A choice."""

    A = 1
    B = 2


def containers() -> Scene:
    """Those of the standard library."""

    def make() -> Any:
        below = {"q": 3}
        return Base(
            below=below,
            ordered=collections.OrderedDict(a=1, b=2),
            proxy=types.MappingProxyType(below),
            user=collections.UserDict(k=3),
            chain=collections.ChainMap({"a": 1}, {"b": 2}),
            made=collections.defaultdict(lambda: 3),
            queue=collections.deque([1], maxlen=2),
            count=[3, 3].count,
        )

    def read(m: Any) -> Any:
        ordered = sum(10**i * v for i, v in enumerate(m.ordered.values()))
        settings = m.made.default_factory() * m.queue.maxlen * len(m.queue) * m.count(3)
        return m.u.value * ordered * settings + m.proxy["q"] * 100 + m.user["k"] * 1000 + m.chain["b"] * 10000

    changes = [
        lambda m: m.ordered.move_to_end("a"),
        lambda m: m.below.update(q=8),
        lambda m: m.user.update(k=9),
        lambda m: m.chain.update(b=7),
        lambda m: setattr(m.made, "default_factory", lambda: 8),
        put("queue", collections.deque([1], maxlen=3)),
        lambda m: m.queue.append(1),
        lambda m: m.count.__self__.append(3),
    ]
    return make, read, changes


def views() -> Scene:
    """Those of dicts."""

    def make() -> Any:
        held, ordered = {"a": 1}, collections.OrderedDict(b=2)
        return Base(held=held, ordered=ordered, values=held.values(), names=held.keys(), items=ordered.items())

    read = lambda m: m.u.value * (sum(m.values) + 100 * len(m.names) + 1000 * sum(v for _, v in m.items))
    changes = [lambda m: m.held.update(a=3), lambda m: m.held.update(b=4), lambda m: m.ordered.update(b=5, c=6)]
    return make, read, changes


def shown(value: Any) -> Any:
    """What equal values do not have in common."""
    if isinstance(value, range):
        return value.stop
    if isinstance(value, set | frozenset):
        return sum(10**i * (v + isinstance(v, float)) for i, v in enumerate(value))
    return float(len(str(value)))


EQUAL = [
    range(0, 4, 2), decimal.Decimal("1.0"), decimal.Decimal("1.00"), frozenset({1, 2.0}), frozenset({1.0, 2}),
    {0, 8}, {8, 0}, slice(1, 2), slice(True, 2), 1, 1.0, True,
]  # fmt: skip


def pointer(of_objects: bool) -> Scene:
    """A pointer into a list of buffers."""

    def make() -> Any:
        held = [Base(), Base()]
        held[1].u = new(10)
        buffers = held if of_objects else [one.u for one in held]
        return Base(buffers=buffers, first=buffers[0], second=buffers[1], current=buffers[0])

    def read(m: Any) -> Any:
        state = m.current.u if of_objects else m.current
        state.value = state.value + 1
        return state.value * m.first.u.value if of_objects else state.value * m.first.value

    point = lambda i: lambda m: setattr(m, "current", m.buffers[i])
    return make, read, [point(1), point(0), point(1)]


def exchanged() -> Scene:
    """Two states that change places."""

    def read(m: Any) -> Any:
        m.pair[0].value = m.pair[0].value + 1
        return m.pair[0].value - 2 * m.pair[1].value

    return lambda: Base(pair=[new(1), new(10)]), read, [lambda m: m.pair.reverse()]


total = lambda items: sum((item.value for item in items), 0.0)
SCENES: dict[str, Callable[[], Scene]] = {
    "containers": containers,
    "views": views,
    "a pointer to a state": lambda: pointer(False),
    "a pointer to an object": lambda: pointer(True),
    "states that change places": exchanged,
    "named tuples": lambda: (
        lambda: Base(pair=Pair(new(1), 3)),
        lambda m: m.pair.u.value * m.pair.k,
        [put("pair", Pair(new(4), 2)), put("pair", Pair(new(4), 5))],
    ),
    "enums": lambda: (
        lambda: Base(mode=Mode.A),
        lambda m: m.u.value * m.mode + isinstance(m.mode, Mode),
        [put("mode", Mode.B), put("mode", 2)],
    ),
    "values that are equal and not the same": lambda: (
        lambda: Base(x=range(0, 3, 2)), lambda m: m.u.value * shown(m.x), [put("x", value) for value in EQUAL]
    ),
    "a slice that holds a list": lambda: (
        lambda: Base(x=slice([1])),
        lambda m: m.u.value * sum(m.x.stop),
        [lambda m: m.x.stop.append(3), put("x", slice([5, 6]))],
    ),
    "paths that differ in case": lambda: (
        lambda: Base(x=pathlib.PureWindowsPath("a")),
        lambda m: m.u.value * ord(str(m.x)),
        [put("x", pathlib.PureWindowsPath("A")), put("x", pathlib.PurePosixPath("A"))],
    ),
    "a state": lambda: (Base, lambda m: m.u.value * 2, [put("u", new(5)), lambda m: setattr(m.u, "value", 6.0)]),
    "a list of states": lambda: (
        lambda: Base(items=[new(1)]),
        lambda m: m.u.value + total(m.items),
        [lambda m: m.items.append(new(10)), lambda m: m.items.pop(0), lambda m: m.items.clear()],
    ),
    "a dict of states": lambda: (
        lambda: Base(items={"a": new(1), "b": new(2)}),
        lambda m: m.u.value * total(m.items.values()) * len("".join(m.items)),
        [lambda m: (m.items.pop("b"), m.items.update(cc=new(20))), lambda m: m.items.update(a=new(3))],
    ),
    "an alias of a state": lambda: (
        lambda: (lambda s: Base(a=s, b=s, other=new(10)))(new(1)),
        lambda m: m.a.value * 3 + m.b.value,
        [lambda m: put("b", m.other)(m), lambda m: put("a", m.other)(m), lambda m: put("b", m.u)(m)],
    ),
    "a namespace": lambda: (
        lambda: Base(held=types.SimpleNamespace(s=new(1))),
        lambda m: m.held.s.value,
        [lambda m: put("s", new(5))(m.held), put("held", types.SimpleNamespace(s=new(7)))],
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::statetransform.RetraceWarning")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", SCENES)
def test_a_change_is_seen(name: str, way: str) -> None:
    assert_seen(SCENES[name](), way)


def test_a_partial_and_a_callable_object_are_followed(traced: Any) -> None:
    class Model(Base):
        def __call__(self, x: Any) -> Any:
            return self.u.value * x

    model = Model()
    for function in (model, functools.partial(lambda m, x: m.u.value * x, model)):
        f = traced(function)
        for value in (1.0, 5.0):
            model.u = new(value)
            assert f(2.0) == 2 * value
        model.u.value = jnp.float32(6)
        assert f(2.0) == 12.0


@pytest.mark.filterwarnings("ignore::statetransform.RetraceWarning")
@pytest.mark.parametrize("place", ["default", "closure", "container", "attribute"])
def test_what_the_function_changes_in_an_argument_counts_though_it_has_the_object_elsewhere_as_well(place: str) -> None:
    inner = Base(t=1)
    m = Base(t=1, inner=inner)
    kept = {"closure": m, "container": [m], "attribute": inner}.get(place)
    seen = m if place == "default" else None

    def count(m: Any, seen: Any = seen) -> Any:
        _ = kept, seen
        for one in (m, m.inner):
            one.t += 1
        return m.u.value * m.t * m.inner.t

    jitted = transform.jit(count)
    assert [float(jitted(m)) for _ in range(6)] == [4, 9, 16, 25, 36, 49]


def test_functions_that_differ_in_an_attribute_have_a_trace_each() -> None:
    def made(scale: float) -> Any:
        f = lambda x: x
        f.scale = scale  # type: ignore[attr-defined]
        return f

    passed = transform.jit(lambda x, f: f(x) * f.scale)
    assert [float(passed(1.0, made(scale))) for scale in (1.0, 2.0, 1.0)] == [1.0, 2.0, 1.0]
    looped = lambda f: transform.map(lambda x: f(x) * f.scale, jnp.ones(1))
    assert [float(looped(made(scale))[0]) for scale in (1.0, 2.0)] == [1.0, 2.0]
