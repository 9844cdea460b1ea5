"""Code that runs though no attribute of an object of the function's leads to it: what it uses counts."""

from __future__ import annotations

import copy
import dataclasses
import enum
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from statetransform import State, transform

factor = 2.0


def scaled(by: float, x: Any) -> Any:
    return by * x * factor


class Decorated:
    gain = 1.0

    @transform.checkpoint
    def __call__(self, x: Any) -> Any:
        return x * factor * Decorated.gain

    @transform.jit
    def __add__(self, x: Any) -> Any:
        return scaled(1.0, x)


class OfPartial:
    __call__ = jax.jit(functools.partial(scaled, 2.0))


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Tree:
    w: Any
    gain = 1.0

    def __call__(self, x: Any) -> Any:
        return self.w * x * self.gain * factor


class Pair(NamedTuple):
    w: Any
    b: Any

    def __call__(self, x: Any) -> Any:
        return self.w * x * factor + self.b


class Mode(enum.Enum):
    ONE = 1

    def __call__(self, x: Any) -> Any:
        return x * factor


class Unit(float):
    def of(self, x: Any) -> Any:
        return self * x * factor


class Plain:
    gain = 1.0

    def __init__(self, k: Any) -> None:
        self.k = k

    def __call__(self, x: Any) -> Any:
        return x * self.gain * factor


tree, pair, plain, decorated = Tree(jnp.float32(3)), Pair(jnp.float32(3), 1.0), Plain(2.0), Decorated()
box, held = Plain([Mode.ONE, Unit(3.0)]), State(Tree(jnp.float32(3)))
lanes, slope = jax.vmap(functools.partial(scaled, 3.0)), jax.grad(functools.partial(scaled, 3.0))
compiled, of_object = jax.jit(functools.partial(scaled, 3.0)), jax.vmap(plain)

#: The function, and its arguments besides `x`.
CASES: dict[str, tuple[Callable[..., Any], Any]] = {
    "a special method of ours": (lambda x: decorated(x), ()),
    "another one": (lambda x: decorated + x, ()),
    "a special method that is no function": (lambda x: OfPartial.__call__(x), ()),
    "a pytree as an argument": (lambda x, tree: tree(x), (tree,)),
    "a pytree in an argument": (lambda x, trees: trees["a"][0](x), ({"a": [tree]},)),
    "a pytree in a state": (lambda x: held.value(x), ()),
    "a pytree that JAX makes again": (lambda x: jax.tree.map(lambda w: 2 * w, tree)(x), ()),
    "a named tuple": (lambda x, pair: pair(x), (pair,)),
    "a copy": (lambda x: copy.copy(plain)(x), ()),
    "a replaced dataclass": (lambda x: dataclasses.replace(tree, w=x)(x), ()),
    "a member of an enumeration": (lambda x: box.k[0](x), ()),
    "a number of one's own": (lambda x: box.k[1].of(x), ()),
    "vmap of a partial function": (lambda x: lanes(x[None]).sum(), ()),
    "grad of a partial function": (lambda x: slope(x) * x, ()),
    "jit of a partial function": (lambda x: compiled(x), ()),
    "vmap of an object": (lambda x: of_object(x[None]).sum(), ()),
}

CHANGES: dict[str, Callable[[], None]] = {
    "a global name": lambda: globals().update(factor=5.0),
    "an attribute of the class": lambda: [setattr(cls, "gain", 7.0) for cls in (Decorated, Tree, Plain)] and None,
    "a method": lambda: [setattr(cls, "__call__", lambda self, x: 11 * x) for cls in METHODS] and None,
}
METHODS = (Decorated, Tree, Pair, Mode, Plain)


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before = {cls: cls.__call__ for cls in METHODS}
    yield
    globals().update(factor=2.0)
    for cls, method in before.items():
        cls.__call__ = method  # type: ignore[method-assign]
        if hasattr(cls, "gain"):
            cls.gain = 1.0


@pytest.mark.filterwarnings("ignore::statetransform.RetraceWarning")
@pytest.mark.parametrize("way", ["jit", "checkpoint", "one in another"])
@pytest.mark.parametrize("name", CASES)
def test_a_change_of_what_it_uses_is_seen(name: str, way: str) -> None:
    fun, args = CASES[name]
    inner = transform.checkpoint(fun)
    wrapped = {"jit": transform.jit(fun), "checkpoint": inner, "one in another": transform.jit(lambda *xs: inner(*xs))}
    x, runs = jnp.float32(3), wrapped[way]
    for _ in range(60):  # until the way in of a compiled call is written down
        runs(x, *args)
    for change in CHANGES.values():
        change()
        found = float(runs(x, *args))  # first, since it has raw transforms among the functions trace again
        assert found == float(fun(x, *args))


def test_a_trace_serves_all_pytrees_of_a_class() -> None:
    traces = []

    @transform.jit
    def step(x: Any, tree: Tree, pair: Pair) -> Any:
        traces.append(1)
        return tree(x) + pair(x)

    for k in range(4):
        step(jnp.float32(k), Tree(jnp.float32(k)), Pair(jnp.float32(k), jnp.float32(1)))
    assert len(traces) == 1


class Scaled(State[Any]):
    by = 1.0


ASKED = {"name": lambda s: len(s.name), "metadata": lambda s: s.metadata["tag"], "attribute": lambda s: s.by}


@pytest.mark.parametrize("what", ASKED)
def test_what_is_asked_of_a_state_counts_for_a_trace_around_the_one_that_asks(what: str) -> None:
    model = Plain(Scaled(1.0, name="a", tag=1.0))
    inner = transform.checkpoint(lambda x: x * model.k.value * ASKED[what](model.k))
    outer = transform.jit(lambda x: inner(x))
    assert inner(3.0) == outer(3.0) == 3
    model.k = Scaled(1.0, name="aa", tag=2.0)
    model.k.by = 2.0
    assert inner(3.0) == outer(3.0) == 6


def test_a_view_that_cannot_be_written_to_changes_with_its_base() -> None:
    base = np.arange(4.0)
    for view in (np.lib.stride_tricks.sliding_window_view(base, 2), np.broadcast_to(base, (2, 4))):
        f = transform.jit(lambda x, view=view: x * view.sum())
        f(1.0)
        base[0] += 5
        assert f(1.0) == view.sum()
