"""Guarantee 2, items, values and states: what containers hold, plain values, states and layers of them."""

from __future__ import annotations

import argparse
import collections
import decimal
import enum
import functools
import pathlib
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp

from statetransform import State

from .scenes import Base, Scene, Scenes, checks_of, new, put

scene = Scenes()


class Pair(NamedTuple):
    u: State
    k: int


class Mode(enum.IntEnum):
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


def function_with(**attributes: Any) -> Callable[[Any], Any]:
    """Functions of the same code."""
    f = lambda x: x
    vars(f).update(attributes)
    return f


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


total = lambda items: sum((item.value for item in items), 0.0)
scene.update({
    "containers": containers,
    "a pointer to a state": lambda: pointer(False),
    "a pointer to an object": lambda: pointer(True),
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
    "paths that differ in case": lambda: (
        lambda: Base(x=pathlib.PureWindowsPath("a")),
        lambda m: m.u.value * ord(str(m.x)),
        [put("x", pathlib.PureWindowsPath("A")), put("x", pathlib.PurePosixPath("A"))],
    ),
    "a dict by object": lambda: (
        lambda: Base(items={Mode.A: 2.0, types: 3.0}),
        lambda m: m.u.value * sum(m.items.values()),
        [lambda m: m.items.update({types: 5.0})],
    ),
    "functions that differ in an attribute": lambda: (
        lambda: Base(f=function_with(scale=2)),
        lambda m: m.u.value * m.f(m.f.scale),
        [put("f", function_with(scale=5))],
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
        [lambda m: put("s", new(5))(m.held), put("held", argparse.Namespace(s=new(7)))],
    ),
})  # fmt: skip


class Config:
    gain = 2.0


class Cell:
    def __init__(self, value: float) -> None:
        self.value = new(value)
        self.flags = {"on": True, "mode": "sum"}


class Layer:
    def __init__(self, i: int, config: Config) -> None:
        self.w, self.index, self.config, self.name = new(i + 1), i, config, f"layer {i}"
        self.cells = [Cell(10 * i + j) for j in range(3)]

    def forward(self, x: Any) -> Any:
        x = x + self.config.gain * self.w.value * (self.index + 1)
        for cell in self.cells:
            if cell.flags["on"]:
                x = x + cell.value.value
            cell.value.value = cell.value.value + len(self.name)
        return x


@scene
def layers_of_cells() -> Scene:
    def make() -> Any:
        config = Config()
        return types.SimpleNamespace(config=config, layers=[Layer(i, config) for i in range(6)])

    def swap(m: Any) -> None:
        m.layers[3], m.layers[4] = m.layers[4], m.layers[3]

    return make, lambda m: functools.reduce(lambda x, layer: layer.forward(x), m.layers, jnp.float32(1)), [
        lambda m: put("index", 99)(m.layers[2]),
        lambda m: put("index", 2.0)(m.layers[2]),
        lambda m: put("name", "another")(m.layers[5]),
        lambda m: m.layers[4].cells[2].flags.update(on=False),
        lambda m: put("gain", 3.0)(m.config),
        lambda m: put("config", Config())(m.layers[4]),
        swap,
        lambda m: put("value", m.layers[5].w)(m.layers[1].cells[2]),
        lambda m: put("w", State(2.0, static=True))(m.layers[3]),
        lambda m: put("w", new(-7))(m.layers[3]),
        lambda m: m.layers[3].cells.__setitem__(1, type("Other", (Cell,), {})(0.5)),
        lambda m: m.layers.__setitem__(1, m.layers[4]),
        lambda m: m.layers.pop(1),
        lambda m: m.layers[1].cells.pop(2),
    ]  # fmt: skip


test_a_change_is_seen, test_a_change_is_seen_by_a_written_walk = checks_of(scene)
