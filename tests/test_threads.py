"""Threads, asynchronous tasks and processes: traces do not meet."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from statetransform import State, StateTraceError, transform
from statetransform._objects import hooks

from .tables import ONCE

N = 8
HOOKS = {"__getattribute__", "__setattr__", "__delattr__"}


@pytest.fixture(autouse=True)
def threads_take_turns_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def at_once(works: list[Callable[[], None]]) -> None:
    """Runs functions in threads that start together; the first error is raised."""
    barrier, errors = threading.Barrier(len(works)), []

    def run(work: Callable[[], None]) -> None:
        barrier.wait()
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in errors:
        raise error


def hooked(*classes: type) -> set[str]:
    return set().union(*[HOOKS & vars(cls).keys() for cls in classes])


class Model:
    def __init__(self, k: int = 2) -> None:
        self.u, self.k = State(jnp.float32(0)), k

    @transform.jit
    def step(self, x: Any) -> Any:
        self.u.value = self.u.value + x.sum() * self.k
        return self.u.value


def test_signatures_and_instances_traced_at_once_do_not_mix() -> None:
    def work(i: int) -> Callable[[], None]:
        def run() -> None:
            model = Model(i % 4)
            for _ in range(5):
                model.step(jnp.ones(1 + i % 3))
            assert float(model.u.value) == 5 * (1 + i % 3) * (i % 4)

        return run

    for _ in range(3):
        Model.step.clear_cache()
        at_once([work(i) for i in range(8)])
    assert not hooked(Model)


def test_classes_of_one_family_are_left_as_they_were() -> None:
    class Child(Model):
        def __setattr__(self, name: str, value: Any) -> None:
            object.__setattr__(self, name, value)

    class Grandchild(Child):
        pass

    own = vars(Child)["__setattr__"]

    def work(kind: type[Model]) -> Callable[[], None]:
        def run() -> None:
            model = kind()
            for k in range(6):
                model.k = k
                assert float(transform.checkpoint(lambda x: model.u.value + model.k * x)(jnp.float32(1))) == k
                assert float(transform.fori_loop(0, 2, lambda i, c: c + model.k, jnp.float32(1))) == 1 + 2 * k

        return run

    for _ in range(4):
        at_once([work(kind) for kind in (Model, Child, Grandchild)] * 2)
    assert vars(Child)["__setattr__"] is own
    assert not hooked(Model, Grandchild)
    assert hooked(Child) == {"__setattr__"}


def test_an_error_in_the_trace_leaves_no_hook() -> None:
    def body(model: Any) -> None:
        model.step(jnp.ones(model.k))
        raise LookupError

    for way in (transform.jit, transform.checkpoint):
        with pytest.raises(LookupError):
            way(body)(Model())
    assert not hooked(Model)
    assert not any(hooks._users.values())


def test_a_second_process_finds_the_program_in_the_persistent_cache(tmp_path: pathlib.Path) -> None:
    source = textwrap.dedent("""
        import jax, jax.numpy as jnp
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
        hits, misses = [], []
        jax.monitoring.register_event_listener(
            lambda event, **more: hits.append(event) if event == "/jax/compilation_cache/cache_hits" else
            misses.append(event) if event == "/jax/compilation_cache/cache_misses" else None)
        from statetransform import State, transform
        class Model:
            def __init__(self):
                self.u = State(jnp.zeros(3))
            @transform.jit
            def step(self, x):
                self.u.value = jnp.sin(self.u.value) + x
        model, x = Model(), jnp.float32(1)
        del hits[:], misses[:]
        model.step(x)
        transform.fori_loop(0, 3, lambda i, c: c * model.u.value, jnp.ones(3))
        print(len(hits), len(misses))
    """)
    script = tmp_path / "script.py"
    script.write_text(source)
    where = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": os.pathsep.join(sys.path)}
    run = lambda: subprocess.run(
        [sys.executable, str(script)], env={**os.environ, **where}, capture_output=True, text=True, check=True
    ).stdout.split()
    first, second = run(), run()
    assert int(first[1]) > 0
    assert second == [first[1], "0"]


def run_all(work: Callable[[int], Any]) -> list[Any]:
    """The results of eight threads that start together; a `KeyError` is a result."""
    results: list[Any] = [None] * N

    def run(i: int) -> None:
        try:
            results[i] = work(i)
        except KeyError as error:
            results[i] = error

    at_once([lambda i=i: run(i) for i in range(N)])
    return results


TRANSFORMS = ("checkpoint", "jit", "value_and_grad", "jit of value_and_grad", "jit of checkpoint", "scan", "cond")


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("is_shared", [True, False], ids=["one_function", "own_functions"])
def test_a_shared_state_is_read_and_own_states_are_written(name: str, is_shared: bool) -> None:
    shared = State(jnp.arange(3.0), name="shared")
    cells = [State(jnp.float32(i), name=f"cell{i}") for i in range(N)]

    def body(cell: State, x: Any) -> Any:
        cell.value = cell.value * 0.5 + x
        return (shared.value * x).sum() + cell.value

    one = ONCE[name]

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
