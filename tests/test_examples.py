"""The examples run as their users run them, on small sizes."""

from __future__ import annotations

import os
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
            ["a loop of 120 steps within 195.3 KiB", "| all steps stored", "iteration   1: misfit"],
        ),
        (
            "transformer_budget",
            "--memory 900kB --steps 3 --layers 1",
            ["loss: what less memory costs", "Less than", "step    2: loss"],
        ),
        ("digits", "--steps 12 --hidden 8 --epochs 1", ["checkpoint each step"]),
        (
            "spiking_delays",
            "--steps 400 --neurons 8 --iterations 2 --memory 200kB",
            ["within 195.3 KiB", "the plain loop needs", "misfit"],
        ),
        ("gray_scott", "--steps 60 --size 24 --iterations 2", ["with every step stored", "in truth 0.037"]),
        ("molecular_dynamics", "--steps 40 --side 3 --iterations 2", ["energy kept to", "20 states", "in truth 1"]),
        (
            "language_model",
            "--layers 1 --width 8 --length 16 --steps 2",
            ["named, if small", "bits per letter", "it continues"],
        ),
        ("landers", "--landers 4 --iterations 2", ["cost of a landing", "was down after"]),
        ("data_parallel", "--steps 3 --batch 64 --width 8", ["8 devices, 8 points on each", "on one device differ by"]),
    ],
)
def test_example(name: str, arguments: str, said: list[str], tmp_path: pathlib.Path) -> None:
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), *arguments.split(), "--out", str(tmp_path)]
    env = {**os.environ, "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}  # small programs: compiling is most of the time
    found = subprocess.run(command, check=True, capture_output=True, text=True, env=env)
    assert all(text in found.stdout for text in said), found.stdout
    assert [path.suffix for path in tmp_path.iterdir()] == [".png"]
