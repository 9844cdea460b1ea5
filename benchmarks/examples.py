"""The tables of the first pages: what two of the examples print, run as their users run them."""

from __future__ import annotations

import pathlib
import subprocess
import sys
import tempfile

from . import report

FOLDER = pathlib.Path(__file__).parent.parent / "examples"
SHOWN = {"waveform_inversion": ["--disk", "1GB"], "digits": []}


def examples() -> None:
    """Runs them, and keeps the table that each prints."""
    for name, options in SHOWN.items():
        with tempfile.TemporaryDirectory() as out:
            command = [sys.executable, str(FOLDER / f"{name}.py"), "--out", out, *options]
            printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        print(printed)
        columns, _, *rows = [report.cells_of(line) for line in printed.splitlines() if line.startswith("|")]
        report.keep(" ".join([f"python examples/{name}.py", *options]), columns, rows)
