"""The examples run as their users run them, on small sizes."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

EXAMPLES = pathlib.Path(__file__).parent.parent / "examples"


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        (
            "waveform_inversion",
            "--memory 200kB --steps 120 --size 48 --shots 2 --iterations 2",
            ["a loop of 120 steps within 195.3 KiB", "the plain scan would need", "iteration   1: misfit"],
        ),
        (
            "transformer_budget",
            "--memory 900kB --steps 3 --layers 1",
            ["loss: what less memory costs", "Less than", "step    2: loss"],
        ),
        ("digits", "--steps 12 --hidden 8 --epochs 1", ["checkpoint each step"]),
    ],
)
def test_example(name: str, arguments: str, said: list[str], tmp_path: pathlib.Path) -> None:
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), *arguments.split(), "--out", str(tmp_path)]
    found = subprocess.run(command, check=True, capture_output=True, text=True)
    assert all(text in found.stdout for text in said), found.stdout
    assert [path.suffix for path in tmp_path.iterdir()] == [".png"]
