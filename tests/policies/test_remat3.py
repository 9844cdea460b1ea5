"""The saved set does not depend on ``jax_remat3``."""

from __future__ import annotations

import pytest

from .saved import TABLE, gradients, saved_sets


def test_every_policy_saves_the_same_in_both_implementations(request: pytest.FixtureRequest) -> None:
    without = saved_sets()
    request.getfixturevalue("remat3")
    assert saved_sets() == without
    assert set(without) >= set(TABLE)
    assert without["own sine"] == ["float32[4]"]  # a policy of one's own is asked about every primitive


def test_gradients_are_the_same_in_both_implementations(request: pytest.FixtureRequest) -> None:
    plain = gradients()
    assert plain == pytest.approx(dict.fromkeys(plain, plain["None"]), rel=1e-5)
    request.getfixturevalue("remat3")
    assert gradients() == pytest.approx(plain, rel=1e-5)
