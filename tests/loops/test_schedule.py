"""The schedule as data: counts against dynamic programming, actions against a simulation."""

from __future__ import annotations

import functools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as hs

import statetransform as st


@functools.cache
def advances(n: int, c: int) -> int:
    """Steps before the last one that are taken to reverse `n` steps with `c` slots, the start in one of them."""
    return st.schedule(n, c - 1).evaluations - 1 - n


@functools.cache
def least_advances(n: int, c: int) -> int:
    """The fewest advances that reverse `n` steps with `c` slots: all first moves tried."""
    if n <= 1:
        return 0
    if c == 1:
        return n * (n - 1) // 2
    return min(m + least_advances(n - m, c - 1) + least_advances(m, c) for m in range(1, n))


def test_the_formula_is_the_optimum_of_all_ways_to_split() -> None:
    for n in range(1, 80):
        for c in range(1, 10):
            assert advances(n, c) == least_advances(n, c), (n, c)


def test_evaluations_are_the_binomial_optimum_for_all_lengths_up_to_300() -> None:
    """The closed form of Griewank and Walther, where `r` is how often a step is taken again at most."""
    for n in range(1, 301):
        for k in range(24):
            schedule = st.schedule(n, k)
            advanced = sum(a.stop - a.start for a in schedule.actions if a.kind == "advance")
            reversed_ = sum(a.kind == "reverse" for a in schedule.actions)
            r = next(r for r in range(n) if math.comb(k + 1 + r, r) >= n)
            assert advances(n, k + 1) == r * n - (math.comb(k + 1 + r, k + 2) if r else 0), (n, k)
            assert advanced + reversed_ == schedule.evaluations, (n, k)


@given(n=hs.integers(0, 200), k=hs.integers(0, 40), far=hs.integers(0, 30))
def test_every_schedule_can_be_carried_out(n: int, k: int, far: int) -> None:
    """Property: each step is reversed once, last first, from a carry that is there; at most `k` carries are stored."""
    schedule = st.schedule(n, k, far=far)
    slots, at, reversed_, peak, away = {0: 0}, 0, [], 0, {}
    for action in schedule.actions:
        if action.kind == "advance":
            assert at == action.start < action.stop
            before, at = action.stop - 1, action.stop
        elif action.kind == "store":
            assert at == action.start
            slots[action.slot] = at
        elif action.kind == "restore":
            at = slots[action.slot]
            assert at == action.start
        elif action.kind == "write":
            assert at == action.start and len(away) == action.slot < far
            away[action.slot] = at
        elif action.kind == "read":
            at = away.pop(action.slot)
            assert at == action.start
            slots = {0: at}
        else:
            # After the forward pass the carry before the last step is still at hand.
            assert action.start in (at, before)
            reversed_.append(action.start)
            slots = {slot: step for slot, step in slots.items() if step < action.start or slot == 0}
        peak = max(peak, len(slots) - 1)
    assert reversed_ == list(range(n))[::-1]
    assert peak == schedule.peak <= k
    assert not away


def test_names_choose_the_number_of_carries() -> None:
    assert [st.schedule(n, "sqrt").k for n in (0, 1, 2, 4, 5, 100, 101)] == [1, 1, 2, 2, 3, 10, 11]
    assert [st.schedule(n, "log").k for n in (1, 2, 3, 4, 5, 1000, 1024, 1025)] == [1, 1, 2, 2, 3, 10, 10, 11]


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ((10, 2, "2GiB"), TypeError, "`far` must be a number of carries"),
        ((10, 2, -1), ValueError, "`far` must be 0 or more, not -1"),
        ((1.5, 2), TypeError, "`n` must be a number of steps, not 1.5 of type float"),
        ((True, 2), TypeError, "not True of type bool"),
        ((-1, 2), ValueError, "`n` must be 0 or more, not -1"),
        ((100, "step"), ValueError, 'schedule: with "step" each step is recomputed from its own stored carry'),
    ],
)
def test_what_is_no_number_is_refused(arguments: tuple, error: type, text: str) -> None:
    with pytest.raises(error) as info:
        st.schedule(*arguments[:2], far=(*arguments, 0)[2])
    assert text in str(info.value)


@pytest.mark.usefixtures("matplotlib")
def test_it_prints_and_plots() -> None:
    schedule = st.schedule(1000, 5)
    assert repr(schedule) == f"schedule(n=1000, k=5): {schedule.evaluations} evaluations, 5 stored carries at most"
    assert f"... and {len(schedule.actions) - 60} more" in str(schedule)
    ax = st.schedule(30, 3).plot()
    assert "evaluations" in ax.get_xlabel() and ax.get_ylabel() == "step"
    assert {text.get_text() for text in ax.get_legend().get_texts()} == {"advance", "reverse", "stored carry"}
    schedule = st.schedule(40, 2, far=3)
    assert "far away           3 writes, 3 reads" in str(schedule)
    assert "far=3" in repr(schedule)
    labels = [text.get_text() for text in schedule.plot().get_legend().get_texts()]
    assert labels == ["stored carry", "carry far away", "advance", "reverse"]


@pytest.mark.parametrize("k", [0, 2, 19])
def test_segments_between_far_carries_are_those_with_the_fewest_evaluations(k: int) -> None:
    """All ways to split are tried; a carry far away that saves one evaluation alone is not worth its transfers."""
    n = 60
    cost = lambda size: advances(size, k + 1) + 2 * size
    least = [[0.0] + [float("inf")] * n for _ in range(8)]
    for far in range(1, 8):
        least[far] = [0.0, *[min(cost(p) + least[far - 1][m - p] for p in range(1, m + 1)) for m in range(1, n + 1)]]
        best = min(least[far][n - last] + advances(last, k + 1) + last + 1 for last in range(1, n + 1))
        schedule = st.schedule(n, k, far=far)
        assert schedule.evaluations - best <= far - schedule.writes
