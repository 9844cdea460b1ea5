"""The states that functions with derivative rules read and write."""

from __future__ import annotations

import jax.numpy as jnp
import pytest

from statetransform import Param, State


@pytest.fixture
def w() -> State:
    return Param(jnp.float32(3), name="w")


@pytest.fixture
def n() -> State:
    return State(jnp.int32(0), name="n")
