"""The saved set does not depend on ``jax_remat3``."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest

from .saved import TABLE, saved_sets

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope="module")
def outcomes() -> dict[str, dict]:
    """What the program in `saved` prints, for both settings."""
    runs = {}
    for setting in ("0", "1"):
        environment = {**os.environ, "JAX_REMAT3": setting, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
        runs[setting] = subprocess.Popen(
            [sys.executable, "-m", "tests.policies.saved"],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    found = {}
    for setting, run in runs.items():
        out, errors = run.communicate(timeout=300)
        assert run.returncode == 0, errors
        found[setting] = json.loads(out)
    return found


def test_every_policy_saves_the_same_in_both_implementations(outcomes: dict[str, dict]) -> None:
    assert outcomes["0"]["saved"] == outcomes["1"]["saved"]
    assert set(outcomes["0"]["saved"]) >= set(TABLE)


def test_gradients_are_the_same_in_both_implementations(outcomes: dict[str, dict]) -> None:
    plain = outcomes["0"]["gradients"]["None"]
    for setting in ("0", "1"):
        for name, value in outcomes[setting]["gradients"].items():
            assert value == pytest.approx(plain, rel=1e-5), (setting, name)


def test_the_saved_set_is_that_of_jax_where_its_implementation_is_the_one_without_the_flag(
    outcomes: dict[str, dict],
) -> None:
    assert outcomes["0"]["saved"] == saved_sets()


def test_a_policy_of_ones_own_is_asked_about_every_primitive(outcomes: dict[str, dict]) -> None:
    for setting in ("0", "1"):
        assert outcomes[setting]["saved"]["own sine"] == ["float32[4]"]
