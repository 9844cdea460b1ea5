"""Programs are compiled once for all tests and processes; doctests read the same on every Python."""

from __future__ import annotations

import os
import pathlib
import sys
from collections.abc import Iterator

import pytest

# The next run of this Python finds them again (another one may compress them in another way); `pytest --cache-clear`
# removes them. Processes that a test starts inherit this.
CACHE = pathlib.Path(__file__).parent / ".pytest_cache" / "d" / f"jax-{sys.version_info.major}.{sys.version_info.minor}"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(CACHE))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")


@pytest.fixture(autouse=True)
def only_the_message_of_an_error(request: pytest.FixtureRequest) -> Iterator[None]:
    """The doctest of early Python 3.11, Debian's, takes the last note of an error for its message; JAX adds one."""
    if not isinstance(request.node, pytest.DoctestItem):
        yield
        return
    import jax  # not before `tests/conftest.py` has set what JAX reads when it is imported

    before = jax.config.jax_traceback_filtering  # type: ignore[attr-defined]
    jax.config.update("jax_traceback_filtering", "off")
    yield
    jax.config.update("jax_traceback_filtering", before)
