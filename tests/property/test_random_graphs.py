"""Never the wrong trace: random graphs change at random between calls of a function under a transform."""

from __future__ import annotations

import copy
import functools
import operator
import random
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import pytest

import statetransform as st
from statetransform import Param, State, transform

from .graphs import KINDS, Part, change, new_graph


def number(value: Any) -> Any:
    match value:
        case State():
            return value.value
        case bool():
            return 10.0 if value else 20.0
        case int():
            return float(value)
        case float():
            return value + 100.0
        case str() as text:
            return float(ord(text[0]))
        case tuple():
            return sum((number(v) for v in value), 200.0)
        case _:
            return 50.0 if value is None else 7.0


def bump(state: Any) -> Any:
    if not isinstance(state, State):
        return 1.0
    state.value = state.value + 1
    return state.value


def tried(r: Any) -> Any:
    try:
        return number(r.bias)
    except AttributeError:
        return 9.0


def walk(root: Any) -> list[Any]:
    """The objects that are reached by `child`."""
    found: list[Any] = []
    while root is not None and not any(root is part for part in found):
        found.append(root)
        root = root.child
    return found


def order_of(part: Any, factor: int = 3) -> Any:
    return number(part.order) * factor


READS: dict[str, Callable[[Any, Any], Any]] = {
    "order": lambda r, x: number(r.order),
    "doubled": lambda r, x: number(r.doubled),
    "class attribute": lambda r, x: number(r.scale),
    "class of": lambda r, x: number(type(r).scale),
    "state": lambda r, x: number(r.w),
    "write": lambda r, x: bump(r.w),
    "items": lambda r, x: sum((number(i) for i in r.items), 0.0),
    "length": lambda r, x: float(len(r.items)),
    "write all": lambda r, x: sum((bump(i) for i in r.items), 0.0),
    "table": lambda r, x: sum((number(v) + ord(k) for k, v in r.table.items()), 0.0),
    "get": lambda r, x: number(r.table.get("a")),
    "in": lambda r, x: 1.0 if "b" in r.table else 2.0,
    "method": lambda r, x: number(r.total(x)) if isinstance(r.order, int | float) else 0.0,
    "call": lambda r, x: r(x) if isinstance(r.order, int | float) else 0.0,
    "hasattr": lambda r, x: 3.0 if hasattr(r, "bias") else 4.0,
    "getattr": lambda r, x: number(getattr(r, "bias", None)),
    "try": lambda r, x: tried(r),
    "child": lambda r, x: number(r.child.order) + number(r.child.w) if r.child is not None else 0.0,
    "grandchild": lambda r, x: number(r.child.child) if r.child is not None else 0.0,
    "is self": lambda r, x: 1.0 if r.child is r else 2.0,
    "same state": lambda r, x: 1.0 if r.child is not None and r.child.w is r.w else 2.0,
    "same object": lambda r, x: 1.0 if r.child is not None and r.child.child is r.child else 2.0,
    "same item": lambda r, x: float(sum(i is j for i in r.items for j in r.items)),
    "child in items": lambda r, x: 1.0 if any(i is r.child for i in r.items) else 2.0,
    "write child": lambda r, x: bump(r.child.w) if r.child is not None else 1.0,
    "deep": lambda r, x: sum((number(p.order) + number(p.w) for p in walk(r)), 0.0),
    "class": lambda r, x: float(len(type(r).__name__)),
    "shared": lambda r, x: bump(Part.shared),
    "vars": lambda r, x: float(len(vars(r))) if hasattr(r, "__dict__") else 0.0,
    "isinstance": lambda r, x: 1.0 if isinstance(r.child, Part) else 2.0,
    "type of state": lambda r, x: 1.0 if isinstance(r.w, Param) else 2.0,
    "f-string": lambda r, x: number(getattr(r, f"or{'der'}")) + number(getattr(r, f"{'bi'}as", None)),
    "in a message": lambda r, x: float(len(f"{r.order}, {r.child.order if r.child is not None else 'none'}")),
    "attrgetter": lambda r, x: number(operator.attrgetter("child.order")(r)) if r.child is not None else 1.0,
    "names of all": lambda r, x: sum((number(getattr(r, n)) for n in ("order", "scale", "w")), 0.0),
    "lambda": lambda r, x: (lambda part: number(part.order))(r) + (lambda: number(r.w))(),
    "key": lambda r, x: max((number(p.order) for p in sorted(walk(r), key=lambda p: number(p.scale))), default=1.0),
    "reduce": lambda r, x: functools.reduce(lambda a, p: a * 2 + number(p.order), walk(r), 0.0),
    "partial": lambda r, x: functools.partial(order_of, r)(),
    "map": lambda r, x: sum(map(number, map(operator.attrgetter("order"), walk(r))), 0.0),
    "copy": lambda r, x: number(copy.copy(r).order),
}


def play(root: Any, script: tuple[str, ...], x: Any) -> Any:
    out = x
    for name in script:
        out = out + READS[name](root, x)
    return out


def twice(root: Any, script: Any, x: Any) -> Any:
    return play(root, script, x) + play(root, script, x)


def looped(root: Any, script: Any, x: Any) -> Any:
    return play(root, script, play(root, script, x))


jitted = transform.jit(play, static_argnums=1)
checkpointed = transform.checkpoint(play, static_argnums=1)
both = transform.jit(lambda root, script, x: checkpointed(root, script, x) + jitted(root, script, x), static_argnums=1)
#: Under transforms, and without.
WAYS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "jit": (jitted, play),
    "checkpoint": (checkpointed, play),
    "jit of both": (both, twice),
    "closure": (lambda root, script, x: transform.jit(lambda x: play(root, script, x))(x), play),
    "loop": (lambda root, script, x: transform.fori_loop(0, 2, lambda i, c: play(root, script, c), x), looped),
    "branch": (
        lambda root, script, x: transform.cond(True, lambda x: play(root, script, x), lambda x: x * 1.0, x),
        play,
    ),
}


def outcome(fun: Callable[..., Any], root: Any, script: Any, order: Callable[[Any], Any]) -> Any:
    """What a call gave and all states after it, or its error."""
    try:
        out = float(fun(root, script, jnp.float32(1)))
    except (TypeError, AttributeError) as error:
        return type(error)
    return out, order(float(state.value) for state in [*st.states(root).values(), Part.shared])


def compare(seed: int) -> None:
    """One graph and one function, called while the graph changes."""
    rng = random.Random(seed)
    root, parts = new_graph(rng)
    script = tuple(rng.choice(list(READS)) for _ in range(rng.randrange(1, 5)))
    name = rng.choice(list(WAYS))
    undo: list[Callable[[], None]] = []
    done: list[str] = []
    try:
        for _ in range(4):
            shared = Part.shared.value
            order = sorted if any(isinstance(part.items, set) for part in parts) else list  # sets have none
            expected = outcome(WAYS[name][1], copy.deepcopy(root), script, order)
            Part.shared.value = shared
            got = outcome(WAYS[name][0], root, script, order)
            if expected != got:
                raise AssertionError(f"seed {seed}, {name}, {script}, after {done}: expected {expected}, got {got}")
            done.append(change(rng, parts, undo))
    finally:
        for step in reversed(undo):
            step()


@pytest.mark.filterwarnings("ignore::statetransform.RetraceWarning")
@pytest.mark.parametrize("block", range(8))
def test_a_trace_is_never_used_for_another_structure(block: int, pytestconfig: pytest.Config) -> None:
    cases = max(int(pytestconfig.getoption("--cases")) // 8, 1)
    for seed in range(block * 1_000_000, block * 1_000_000 + cases):
        compare(seed)
    assert [kind.scale for kind in KINDS] == [2, 2, 5, 2, 7, 11]
