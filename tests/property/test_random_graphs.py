"""Never the wrong trace: random graphs change at random between calls of a function under a transform."""

from __future__ import annotations

import contextlib
import copy
import functools
import random
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import pytest

import statetransform as st
from statetransform import transform

from .graphs import KINDS, Part, change, new_graph, package
from .reads import new_script, play

jitted = transform.jit(play, static_argnums=1)
checkpointed = transform.checkpoint(play, static_argnums=1)
nested = transform.jit(
    lambda root, script, x: checkpointed(root, script, x) + jitted(root, script, x), static_argnums=1
)


def by_closure(root: Any, script: Any, x: Any) -> Any:
    return transform.jit(lambda x: play(root, script, x))(x)


def in_loop(root: Any, script: Any, x: Any) -> Any:
    return transform.fori_loop(0, 2, lambda i, c: play(root, script, c), x)


def in_branch(root: Any, script: Any, x: Any) -> Any:
    return transform.cond(True, lambda x: play(root, script, x), lambda x: x * 1.0, x)


def second_of_two(root: Any, script: Any, x: Any) -> Any:
    """Within a function that keeps its trace, a function whose trace is known from a twin of it."""
    global _root
    _root = root
    return _second(script)(x)


@functools.lru_cache(maxsize=1)
def _second(script: Any) -> Callable[[Any], Any]:
    def new() -> Callable[[Any], Any]:
        calls: list[int] = []

        def outer(x: Any) -> Any:
            calls.append(1)  # what changes its own closure shares no trace
            return transform.fori_loop(0, 1, lambda i, c: play(_root, script, c), x)

        return transform.jit(outer)

    with contextlib.suppress(TypeError, AttributeError):
        new()(jnp.float32(1))
    return new()


def warm_up(root: Any, script: Any) -> None:
    """Makes the two functions, and calls the first one for an equal graph."""
    global _root
    shared, _root = Part.shared.value, copy.deepcopy(root)
    _second.cache_clear()
    _second(script)
    Part.shared.value = shared


_root: Any = None


def twice(root: Any, script: Any, x: Any) -> Any:
    return play(root, script, x) + play(root, script, x)


def looped(root: Any, script: Any, x: Any) -> Any:
    return play(root, script, play(root, script, x))


WAYS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "jit": (jitted, play),
    "checkpoint": (checkpointed, play),
    "jit of both": (nested, twice),
    "closure": (by_closure, play),
    "loop": (in_loop, looped),
    "branch": (in_branch, play),
    "second of two": (second_of_two, play),
}
CALLS = 4


def outcome(root: Any, out: Any) -> list[float]:
    """What a call gave, and all states after it."""
    shared = [Part.shared]
    return [float(out), *[float(state.value) for state in [*st.states(root).values(), *shared]]]


def compare(seed: int) -> None:
    """One graph and one function, called while the graph changes."""
    rng = random.Random(seed)
    root, parts = new_graph(rng)
    script = new_script(rng)
    way, plain = WAYS[rng.choice(list(WAYS))]
    if way is second_of_two:
        warm_up(root, script)
    undo: list[Callable[[], None]] = []
    done: list[str] = []
    try:
        for _ in range(CALLS):
            shared = Part.shared.value
            twin = copy.deepcopy(root)
            try:
                expected: Any = outcome(twin, plain(twin, script, jnp.float32(1)))
            except (TypeError, AttributeError) as error:
                expected = type(error)
            Part.shared.value = shared
            try:
                got: Any = outcome(root, way(root, script, jnp.float32(1)))
            except (TypeError, AttributeError) as error:
                got = type(error)
            if isinstance(expected, list) and any(isinstance(part.items, set) for part in parts):
                expected, got = [expected[0], *sorted(expected[1:])], [got[0], *sorted(got[1:])]  # sets have no order
            if expected != got:
                raise AssertionError(f"seed {seed}, {way}, {script}, after {done}: expected {expected}, got {got}")
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


def test_the_classes_of_the_graphs_are_left_as_they_were() -> None:
    assert [kind.scale for kind in KINDS] == [2, 2, 5, 2, 7, 11, 13, 17, 17]
    assert (package.SCALE, package.TABLE, package.Module.factor) == (3, {"a": 1}, 2)
