"""Eight virtual devices for the sharding tests, quick compilation, and nothing left over from one test to the next."""

from __future__ import annotations

import ctypes
import functools
import gc
import importlib.metadata
import os
import pathlib

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
if importlib.metadata.version("jaxlib").startswith("0.10."):
    # Two fifths of what this release compiles for; later ones do not know the flag.
    os.environ["XLA_FLAGS"] += " --xla_cpu_use_fusion_emitters=false"
os.environ.setdefault("JAX_PLATFORMS", "cpu")

from collections.abc import Callable, Iterator
from typing import Any

import hypothesis
import jax
import pytest

from statetransform import transform
from statetransform._memory.plans import plan_cache
from statetransform._states.frame import stack
from statetransform._states.raw_reads import _outside as read_in_raw

if jax.__version__.startswith("0.10."):
    # This release makes a context for each program that it lowers, and loads all dialects of MLIR into it: a third of
    # the time of a small program, and a megabyte that stays as long as that. Later ones load what they need.
    from jax._src.interpreters import mlir

    mlir.make_ir_context = functools.cache(mlir.make_ir_context)

gc.set_threshold(10_000, 20, 20)  # as often as usual, collections take a twentieth of the time

RUNS = {"eager": lambda f: f, "jit": transform.jit, "checkpoint": transform.checkpoint}
TRACES = {
    "jit": transform.jit,
    "checkpoint": transform.checkpoint,
    "jit of checkpoint": lambda f: transform.jit(transform.checkpoint(f)),
    "lambda in jit": lambda f: transform.jit(lambda *args: f(*args)),
    "jit of grad": lambda f: _first(transform.jit(transform.value_and_grad(f, argnums=-1))),
}


def _first(f: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: f(*args)[0]


# The same examples in every run, and none that is judged by its time.
hypothesis.settings.register_profile("same", derandomize=True, deadline=None, database=None)
hypothesis.settings.load_profile("same")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cases", type=int, default=100, help="how many random programs the property test draws")


@pytest.fixture(autouse=True)
def quick_compilation(request: pytest.FixtureRequest) -> Iterator[None]:
    """Most programs of the tests run once, so that optimizing them takes longer than all else."""
    jax.config.update("jax_disable_most_optimizations", request.node.get_closest_marker("optimized") is None)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture
def remat3() -> Iterator[None]:
    """The other implementation of checkpoints in JAX."""
    before = jax.config.jax_remat3  # type: ignore[attr-defined]
    jax.config.update("jax_remat3", True)
    jax.clear_caches()
    yield
    jax.config.update("jax_remat3", before)
    jax.clear_caches()


@pytest.fixture(params=RUNS)
def wrap(request: pytest.FixtureRequest) -> Any:
    """How the function of a test is run."""
    return RUNS[request.param]


@pytest.fixture(params=TRACES)
def traced(request: pytest.FixtureRequest) -> Any:
    """A transform that keeps traces, and gives the plain output."""
    return TRACES[request.param]


@pytest.fixture
def matplotlib() -> Iterator[Any]:
    """For pictures that nobody looks at; they are closed behind the test."""
    found = pytest.importorskip("matplotlib")
    found.use("Agg")
    yield found
    found.pyplot.close("all")


@pytest.fixture(autouse=True)
def nothing_is_known_of_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an earlier test, or an earlier run, found for the same function."""
    monkeypatch.setattr(plan_cache, "_known", type(plan_cache._known)())
    monkeypatch.setattr(plan_cache, "folder_for_programs", lambda: None)


@pytest.fixture(autouse=True)
def no_frame_is_left() -> object:
    yield
    assert stack.frame is None, "a transform left its frame on the stack"


@pytest.fixture(autouse=True, scope="module")
def programs_are_forgotten() -> object:
    """Thousands of compiled programs would take gigabytes in each process; glibc keeps what is freed unless asked."""
    read_in_raw.clear()  # after such a read, of a page in `docs` for example, all eager calls compile anew
    # A collection then looks at what the tests of this module have made alone: JAX asks for one at each trace that it
    # checks for leaks, and millions of objects of JAX and of other tests would be walked each time.
    gc.collect()
    gc.freeze()
    yield
    if not _is_large():
        return  # operations of one module are those of the next
    jax.clear_caches()
    gc.unfreeze()
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _is_large() -> bool:
    """Whether this process has more than 1.4 GB, or does not say."""
    try:
        pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return True
    return pages * os.sysconf("SC_PAGE_SIZE") > 1.4e9
