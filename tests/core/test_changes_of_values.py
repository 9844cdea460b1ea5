"""A function under a transform sees every change of a container, a buffer or a value that equals another."""

from __future__ import annotations

import collections
import decimal
import enum
import pathlib
import types
from typing import Any, NamedTuple

import jax.numpy as jnp
import pytest

from statetransform import State, transform

from .changes import WAYS, Base, Scene, Scenes, assert_seen, put

SCENES = Scenes()


@SCENES.scene
def bound_methods_of_containers() -> Scene:
    make = lambda: Base(count=[3, 3].count)
    return make, lambda m: m.u.value * m.count(3), [lambda m: m.count.__self__.append(3), put("count", (3,).count)]


class Order(int):
    """A number with attributes."""

    scale = 1


def order(number: int, scale: int) -> Order:
    """One of them."""
    made = Order(number)
    made.scale = scale
    return made


class Pair(NamedTuple):
    """A state and a number."""

    u: State
    k: int


@SCENES.scene
def named_tuples() -> Scene:
    changes = [put("pair", Pair(State(jnp.float32(4)), 2)), put("pair", Pair(State(jnp.float32(4)), 5))]
    return lambda: Base(pair=Pair(State(jnp.float32(1)), 3)), lambda m: m.pair.u.value * m.pair.k, changes


@SCENES.scene
def containers_with_settings_of_their_own() -> Scene:
    make = lambda: Base(d=collections.defaultdict(lambda: 3), q=collections.deque([1], maxlen=2))
    changes = [
        lambda m: setattr(m.d, "default_factory", lambda: 8),
        put("q", collections.deque([1], maxlen=3)),
        lambda m: m.q.append(1),
    ]
    return make, lambda m: m.u.value * m.d.default_factory() * m.q.maxlen * len(m.q), changes


@SCENES.scene
def containers_of_the_standard_library() -> Scene:
    def make() -> Any:
        below = {"q": 3}
        return Base(
            below=below,
            ordered=collections.OrderedDict(a=1, b=2),
            proxy=types.MappingProxyType(below),
            user=collections.UserDict(k=3),
            chain=collections.ChainMap({"a": 1}, {"b": 2}),
        )

    def read(m: Any) -> Any:
        ordered = sum(10**i * v for i, v in enumerate(m.ordered.values()))
        return m.u.value * ordered + m.proxy["q"] * 100 + m.user["k"] * 1000 + m.chain["b"] * 10000

    changes = [
        lambda m: m.ordered.move_to_end("a"),
        lambda m: m.below.update(q=8),
        lambda m: m.user.update(k=9),
        lambda m: m.chain.update(b=7),
    ]
    return make, read, changes


@SCENES.scene
def views_of_dicts() -> Scene:
    def make() -> Any:
        held, ordered = {"a": 1}, collections.OrderedDict(b=2)
        views = {"keys": held.keys(), "values": held.values(), "items": ordered.items(), "names": ordered.keys()}
        return Base(held=held, ordered=ordered, **views)

    def read(m: Any) -> Any:
        return m.u.value * (sum(m.values) + 100 * len(m.keys) + 1000 * sum(v for _, v in m.items) + len([*m.names]) * 7)

    changes = [
        lambda m: m.held.update(a=3),
        lambda m: m.held.update(b=4),
        lambda m: m.ordered.update(b=5),
        lambda m: m.ordered.update(c=5),
    ]
    return make, read, changes


class Mode(enum.IntEnum):
    """A choice."""

    A = 1
    B = 2


@SCENES.scene
def enums_and_numbers_equal_to_them() -> Scene:
    return (
        lambda: Base(mode=Mode.A),
        lambda m: m.u.value * m.mode + isinstance(m.mode, Mode),
        [
            put("mode", Mode.B),
            put("mode", 2),
        ],
    )


def shown(value: Any) -> Any:
    """What equal values do not have in common."""
    if isinstance(value, range):
        return value.stop
    if isinstance(value, set | frozenset):
        return sum(10**i * (v + isinstance(v, float)) for i, v in enumerate(value))
    return float(len(str(value)))


@SCENES.scene
def values_that_are_equal_and_not_the_same() -> Scene:
    values = [
        range(0, 4, 2), decimal.Decimal("1.0"), decimal.Decimal("1.00"), frozenset({1, 2.0}), frozenset({1.0, 2}),
        {0, 8}, {8, 0}, slice(1, 2), slice(True, 2), 1, 1.0, True,
    ]  # fmt: skip
    return lambda: Base(x=range(0, 3, 2)), lambda m: m.u.value * shown(m.x), [put("x", value) for value in values]


@SCENES.scene
def a_slice_that_holds_a_list() -> Scene:
    changes = [lambda m: m.x.stop.append(3), put("x", slice([5, 6]))]
    return lambda: Base(x=slice([1])), lambda m: m.u.value * sum(m.x.stop), changes


@SCENES.scene
def paths_that_differ_in_case() -> Scene:
    changes = [put("x", pathlib.PureWindowsPath("A")), put("x", pathlib.PurePosixPath("A"))]
    return lambda: Base(x=pathlib.PureWindowsPath("a")), lambda m: m.u.value * ord(str(m.x)), changes


@pytest.mark.filterwarnings("ignore::statetransform.RetraceWarning")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", SCENES)
def test_a_change_is_seen(name: str, way: str) -> None:
    assert_seen(SCENES[name](), way)


@pytest.mark.filterwarnings("ignore::statetransform.RetraceWarning")
@pytest.mark.parametrize("place", ["default", "closure", "container", "attribute"])
def test_what_the_function_changes_in_an_argument_counts_though_it_has_the_object_elsewhere_too(place: str) -> None:
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
