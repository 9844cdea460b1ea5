"""The real compilers of a GPU and of a TPU, where their wheels are installed."""

from __future__ import annotations

import pytest

import statetransform as st


def target_or_skip(name: str, count: int = 1) -> st.Target:
    """A target; the test is skipped where its compiler is not installed. What keeps it from loading is no reason."""
    try:
        return st.target(name, count)
    except ImportError as error:
        pytest.skip(str(error))


@pytest.fixture
def h100() -> st.Target:
    return target_or_skip("H100")


@pytest.fixture
def v5e() -> st.Target:
    return target_or_skip("v5e:2x2")


@pytest.fixture(params=["H100", "v5e:2x2"])
def card(request: pytest.FixtureRequest) -> st.Target:
    """One of both."""
    return target_or_skip(request.param)
