"""Guarantee 1: outputs and final state values equal those of the hand-threaded pure function."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import statetransform as st
from statetransform import transform

from ..cases import BY_NAME as CASES_BY_NAME
from ..cases import CASES, Case, assert_same
from ..tables import ROWS, Row, apply_jax, apply_ours, stacks

X = jnp.float32(1.5)


def _check(rows: tuple[Row, ...], case: Case, *wraps: Any) -> None:
    """As it is, and under other transforms around it."""
    twin = jax.jit(apply_jax(rows, case.twin))
    calls, values = [], case.initial()
    for _ in range(2):  # the second call is the one that a cache gets wrong
        reference, values = twin(values, X)
        calls.append((reference, values))
    for wrap in (lambda f: f, *wraps):
        states = case.states()
        stateful = wrap(apply_ours(rows, case.make(states)))
        for reference, values in calls:
            assert_same(stateful(X), reference)
            assert_same(st.values(states), values)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_each_transform_of_each_program_gives_the_values_of_the_twin(row: Row, case: Case) -> None:
    if row.takes(case):
        _check((row,), case, transform.jit)
    else:
        assert (row.is_loop and not case.carries) or (row.shares and not case.is_shared)


@pytest.mark.parametrize("rows", stacks(2), ids=lambda rows: " of ".join(row.name for row in rows))
def test_each_pair_of_transforms_gives_the_values_of_the_twin(rows: tuple[Row, ...]) -> None:
    name = "counter" if any(row.shares for row in rows) else "accumulate"
    _check(rows, CASES_BY_NAME[name])
