"""How many compiled programs are kept: those of functions that live, and few others."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from statetransform import State, inspect, transform
from statetransform._traces import families
from statetransform.transform._programs import Program

N = 20
X = jnp.float32(1)


def n_programs() -> int:
    """The compiled programs that are alive in this process."""
    return len(jax.devices()[0].client.live_executables())


@pytest.fixture(autouse=True)
def no_garbage_is_collected() -> Iterator[None]:
    """What is gone has to be freed at once: the collector does not see how large a program is."""
    jax.clear_caches()
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def closure(scale: float) -> tuple[State, Callable[[Any], Any]]:
    """A function that differs from others in what it closes over, and its state."""
    u = State(jnp.float32(1))

    def f(x: Any) -> Any:
        u.value = u.value * scale + x
        return u.value * x

    return u, f


WAYS: dict[str, Callable[[Any], Any]] = {
    "jit": transform.jit,
    "jit of grad of checkpoint": lambda f: transform.jit(transform.grad(transform.checkpoint(f))),
    "jit with donation": lambda f: transform.jit(f, donate_states=True),
    "jit of a loop": lambda f: transform.jit(lambda x: transform.fori_loop(0, 3, lambda i, c: f(c), x)),
}


@pytest.mark.parametrize("way", WAYS)
def test_programs_of_functions_that_are_gone_are_freed_at_once_but_for_a_few(way: str) -> None:
    counts = []
    for i in range(N):
        _, f = closure(1.0 + i)
        f = WAYS[way](f)
        for _ in range(4):
            f(X)
        counts.append(n_programs())
    assert counts[-1] <= counts[0] + families._SPARE
    del f
    before = n_programs()
    assert before <= counts[0]


def test_each_of_many_functions_that_live_is_traced_once() -> None:
    runs: list[float] = []

    def make(scale: float) -> Any:
        def f(x: Any) -> Any:
            runs.append(scale)
            return x * scale

        return f

    for way in (transform.jit, transform.checkpoint):
        runs.clear()
        functions = [way(make(float(i))) for i in range(families._SEARCHED + 6)]
        for _ in range(2):
            for i, f in enumerate(functions):
                assert f(X) == i
        assert len(runs) == len(functions)
        del functions, f


def test_within_a_trace_the_programs_of_other_functions_with_the_same_code_are_not_matched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    matches, match = [], Program.match
    monkeypatch.setattr(Program, "match", lambda self, roots: (matches.append(self), match(self, roots))[1])

    def make(k: float) -> Any:
        return transform.jit(lambda x: k * x)

    functions = [make(float(k)) for k in range(10)]
    for f in functions:
        f(X)
    matches.clear()
    transform.jit(lambda x: sum(f(x) for f in functions))(X)
    assert len(matches) == len(functions)


def test_functions_made_one_after_the_other_find_the_traces_of_the_last() -> None:
    class Model:
        def __init__(self) -> None:
            self.u = State(jnp.float32(1))
            self.step = transform.jit(lambda x: self.u.value * x)

    made = []
    for _ in range(5):
        model = Model()
        gc.collect()  # the last one is gone before this one is called
        assert model.step(X) == 1.0
        assert model.step(jnp.ones(2)).shape == (2,)
        made.append(len(inspect.explain_retrace(model.step)))
    assert made == [2, 0, 0, 0, 0]


@pytest.mark.parametrize("clear", ["clear_cache", "jax.clear_caches"])
def test_clearing_frees_every_program(clear: str) -> None:
    functions = [transform.jit(lambda x, i=i: x * i) for i in range(3)]
    xs = (X, jnp.ones(2))
    before = n_programs()
    for f in functions:
        assert [f(x).shape for x in xs] == [(), (2,)]
    assert n_programs() == before + 2 * len(functions)
    for f in functions:
        f.clear_cache() if clear == "clear_cache" else jax.clear_caches()
    assert n_programs() <= before
    assert functions[2](X) == 2.0


@pytest.mark.skipif(jax.__version_info__ < (0, 11), reason="JAX 0.10 keeps the derivative of each inlined `jit`")
def test_of_loops_over_functions_that_are_gone_the_last_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(families, "_RECENT", 5)
    gradient = transform.grad(lambda x, f: transform.fori_loop(0, 3, lambda i, c: f(c), x))
    step = lambda scale: lambda c: c * scale
    for i in range(10):  # more than those of a code that are kept besides
        gradient(X, step(1.0 + i))
    full = n_programs()
    for i in range(10, 16):
        gradient(X, step(1.0 + i))
    assert n_programs() <= full
