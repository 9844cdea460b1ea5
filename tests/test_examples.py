"""The examples run as their users run them, on small sizes."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

import pytest

EXAMPLES = pathlib.Path(__file__).parent.parent / "examples"
NEEDS = {"nnx_budget": ["flax"]}


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
        ("gray_scott", "--steps 60 --size 24 --iterations 2", ["with every step stored", "in truth 0.037"]),
        ("molecular_dynamics", "--steps 40 --side 3 --iterations 2", ["energy kept to", "20 states", "in truth 1"]),
        (
            "language_model",
            "--layers 1 --width 8 --length 16 --steps 2",
            ["named, if small", "bits per letter", "it continues"],
        ),
        ("landers", "--landers 4 --iterations 2", ["cost of a landing", "was down after"]),
        (
            "nnx_budget",
            "--memory 100kB --steps 60 --batch 4 --hidden 8 --iterations 3",
            ["| flax alone", "| within 100kB", "has seen 180 values"],
        ),
        ("data_parallel", "--steps 3 --batch 64 --width 8", ["8 devices, 8 points on each", "on one device differ by"]),
    ],
)
def test_example(name: str, arguments: str, said: list[str], tmp_path: pathlib.Path) -> None:
    printed = run(name, arguments, tmp_path)
    assert all(text in printed for text in said), printed
    assert [path.suffix for path in tmp_path.iterdir()] == [".png"]


def test_the_fit_makes_the_spikes_that_were_seen_likely(tmp_path: pathlib.Path) -> None:
    printed = run("spiking_delays", "--steps 400 --neurons 8 --iterations 8 --memory 200kB", tmp_path)
    assert "within 195.3 KiB" in printed and "the plain loop needs" in printed
    found = re.search(r"surprise ([\d.]+) -> ([\d.]+) in", printed)
    assert found is not None and float(found[2]) < 0.8 * float(found[1]), printed
    assert "plasticity of exciting synapses" in printed and "in truth 0.8" in printed


def run(name: str, arguments: str, out: pathlib.Path) -> str:
    """What an example prints."""
    for package in NEEDS.get(name, ()):
        pytest.importorskip(package)
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), *arguments.split(), "--out", str(out)]
    env = {**os.environ, "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}  # small programs: compiling is most of the time
    return subprocess.run(command, check=True, capture_output=True, text=True, env=env).stdout
