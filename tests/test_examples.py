"""The examples run with the command lines of their users, on small sizes.

They share the process of the tests, with all that it has imported and compiled; one of them has one of its own.
"""

from __future__ import annotations

import os
import pathlib
import re
import runpy
import subprocess
import sys
from collections.abc import Callable

import pytest

pytestmark = pytest.mark.filterwarnings("default")  # those of other packages are not ours

EXAMPLES = pathlib.Path(__file__).parent.parent / "examples"
NEEDS = {"nnx_budget": ["flax"], "weather": ["dinosaur"]}

Run = Callable[[str, str], str]


@pytest.fixture
def run(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(name: str, arguments: str) -> str:
        for package in NEEDS.get(name, ()):
            pytest.importorskip(package)
        path = str(EXAMPLES / f"{name}.py")
        monkeypatch.setattr(sys, "argv", [path, *arguments.split(), "--out", str(tmp_path)])
        monkeypatch.syspath_prepend(EXAMPLES)
        runpy.run_path(path, run_name="__main__")
        return capsys.readouterr().out

    return run


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        (
            "waveform_inversion",
            "--memory 110kB --disk 1MB --section 32 40 --section-steps 99 --steps 9 --size 32 --shots 2 --iterations 1",
            ["more on disk", "| all steps stored", "| 110kB and disk", "iteration   1: misfit"],
        ),
        (
            "transformer_budget",
            "--memory 900kB --steps 3 --layers 1",
            ["loss: what less memory costs", "Besides: arguments", "step    2: loss"],
        ),
        (
            "weather",
            "--days 0.5 --waves 5 --layers 2 --memory 1MB --rounds 1",
            ["12 steps", "| dinosaur, nested", "| loops(4)", "| 1MB"],
        ),
        ("digits", "--steps 12 --hidden 8 --epochs 1", ["checkpoint each step"]),
        ("gray_scott", "--steps 60 --size 24 --iterations 2", ["with every step stored", "in truth 0.037"]),
        (
            "molecular_dynamics",
            "--steps 40 --side 3 --iterations 2",
            ["change of the energy", "20 states", "| undone", "in truth 1"],
        ),
        ("fdtd", "--steps 30 --size 16", ["| all steps", "| undone"]),
        (
            "delay_lines",
            "--steps 40 --neurons 16 --slots 20 --memory 20kB --disk 100kB",
            ["1 kB, a copy of it for each of 40 steps", "| each step again", "| 20kB and disk"],
        ),
        (
            "language_model",
            "--layers 1 --width 8 --length 16 --steps 2",
            ["named, if small", "bits per letter", "the model continues"],
        ),
        ("landers", "--landers 4 --iterations 2", ["cost of a landing", "was down after"]),
        (
            "nnx_budget",
            "--memory 100kB --steps 60 --batch 4 --hidden 8 --iterations 3",
            ["| flax alone", "| within 100kB", "has seen 180 values"],
        ),
    ],
)
def test_example(name: str, arguments: str, said: list[str], run: Run, tmp_path: pathlib.Path) -> None:
    printed = run(name, arguments)
    assert all(text in printed for text in said), printed
    for error in re.findall(r"^\| undone .* ([\d.e+-]+) \|$", printed, re.MULTILINE):
        assert float(error) < 1e-3
    assert [path.suffix for path in tmp_path.iterdir()] == [".png"]


def test_an_example_that_makes_its_devices(tmp_path: pathlib.Path) -> None:
    arguments = ["--steps", "3", "--batch", "64", "--width", "8", "--out", str(tmp_path)]
    command = [sys.executable, str(EXAMPLES / "data_parallel.py"), *arguments]
    flags = [flag for flag in os.environ["XLA_FLAGS"].split() if "device_count" not in flag]
    env = {**os.environ, "XLA_FLAGS": " ".join(flags), "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}  # as for the other tests
    printed = subprocess.run(command, check=True, capture_output=True, text=True, env=env).stdout
    assert "8 devices, 8 points on each" in printed and "on one device differ by" in printed
    assert [path.suffix for path in tmp_path.iterdir()] == [".png"]


def test_the_fit_makes_the_spikes_that_were_seen_likely(run: Run) -> None:
    printed = run("spiking_delays", "--steps 400 --neurons 8 --iterations 8 --memory 200kB")
    assert "within 195.3 KiB" in printed and "the plain loop needs" in printed
    found = re.search(r"likelihood ([\d.]+) -> ([\d.]+) in", printed)
    assert found is not None and float(found[2]) < 0.8 * float(found[1]), printed
    assert "plasticity of exciting synapses" in printed and "in truth 0.8" in printed
