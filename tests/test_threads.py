"""Threads and asynchronous tasks: traces do not meet."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from statetransform import State, StateTraceError, transform

N = 8


def run_all(work: Callable[[int], Any]) -> list[Any]:
    """The results of eight threads that start together; an error in one of them is raised here."""
    results: list[Any] = [None] * N
    barrier = threading.Barrier(N)

    def run(i: int) -> None:
        barrier.wait()
        try:
            results[i] = work(i)
        except BaseException as error:
            results[i] = error

    threads = [threading.Thread(target=run, args=(i,)) for i in range(N)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results:
        if isinstance(result, BaseException) and not isinstance(result, KeyError):
            raise result
    return results


TRANSFORMS: dict[str, Callable[[Callable[[Any], Any]], Callable[[Any], Any]]] = {
    "checkpoint": transform.checkpoint,
    "jit": transform.jit,
    "grad": transform.grad,
    "jit_grad_checkpoint": lambda f: transform.jit(transform.grad(transform.checkpoint(f))),
    "scan": lambda f: lambda x: transform.scan(lambda c, _: (f(c), None), x, None, 2)[0],
    "cond": lambda f: lambda x: transform.cond(x > 0, f, f, x),
}


@pytest.mark.parametrize("name", sorted(TRANSFORMS))
@pytest.mark.parametrize("is_shared", [True, False], ids=["one_function", "own_functions"])
def test_a_shared_state_is_read_and_own_states_are_written(name: str, is_shared: bool) -> None:
    shared = State(jnp.arange(3.0), name="shared")
    cells = [State(jnp.float32(i), name=f"cell{i}") for i in range(N)]

    def body(cell: State, x: Any) -> Any:
        cell.value = cell.value * 0.5 + x
        return (shared.value * x).sum() + cell.value

    one = TRANSFORMS[name]

    def work(i: int) -> Any:
        f = one(lambda x: body(cells[i], x))
        return [f(jnp.float32(x)) for x in (1, 2, 3)]

    if is_shared and name in ("checkpoint", "jit"):  # the state is the argument
        together = one(body)
        work = lambda i: [together(cells[i], jnp.float32(x)) for x in (1, 2, 3)]
    found = run_all(work)
    values = [cell.value for cell in cells]
    for i, cell in enumerate(cells):
        cell.value = jnp.float32(i)
    expected = [work(i) for i in range(N)]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    np.testing.assert_allclose(values, [cell.value for cell in cells], rtol=1e-6)


def test_a_trace_shows_nothing_to_another_thread() -> None:
    s = State(jnp.float32(1), name="s")
    is_tracing, has_read = threading.Event(), threading.Event()
    seen = []

    def reader() -> None:
        is_tracing.wait()
        seen.append((s.value, transform.jit(lambda: s.value + 1)()))
        has_read.set()

    @transform.jit
    def f(x: Any) -> Any:
        s.value = s.value + x
        is_tracing.set()
        has_read.wait()
        return s.value

    thread = threading.Thread(target=reader)
    thread.start()
    assert f(5.0) == 6
    thread.join()
    assert seen == [(1.0, 2.0)] and s.value == 6


def test_an_error_in_one_thread_leaves_the_others_alone() -> None:
    cells = [State(0.0, name=f"cell{i}") for i in range(N)]

    @transform.checkpoint
    def f(cell: State, i: Any) -> Any:
        cell.value = cell.value + i
        if cell is cells[3]:
            raise KeyError("three")
        return cell.value

    found = run_all(lambda i: f(cells[i], float(i)))
    assert isinstance(found[3], KeyError)
    assert [float(cell.value) for cell in cells] == [0.0, 1.0, 2.0, 0.0, 4.0, 5.0, 6.0, 7.0]


def test_a_thread_started_within_a_trace_may_not_write_into_it() -> None:
    s = State(jnp.float32(1), name="s")
    errors = []

    def write(x: Any) -> None:
        try:
            s.value = x
        except StateTraceError as error:
            errors.append(str(error))

    @transform.jit
    def f(x: Any) -> Any:
        thread = threading.Thread(target=write, args=(x,))
        thread.start()
        thread.join()
        return x

    f(2.0)
    assert len(errors) == 1 and "State 's'" in errors[0]
    assert s.value == 1


def test_tasks_that_take_turns() -> None:
    cells = [State(jnp.float32(0), name=f"cell{i}") for i in range(4)]
    order = []

    @transform.jit
    def add(cell: State, x: Any) -> Any:
        cell.value = cell.value + x
        return cell.value

    async def task(i: int) -> Any:
        for turn in range(3):
            order.append(i)
            add(cells[i], 10.0**turn)
            await asyncio.sleep(0)
            transform.grad(lambda x: add(cells[i], x))(1.0)
        return cells[i].value

    async def main() -> list[Any]:
        return await asyncio.gather(*[task(i) for i in range(4)])

    assert asyncio.run(main()) == [114.0] * 4
    assert order == [0, 1, 2, 3] * 3  # they did take turns
