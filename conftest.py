"""Doctests of pages and docstrings read the same on every Python."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


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
