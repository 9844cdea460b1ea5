"""The programs of the README run, each copied alone, and print what is written beside them."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import pathlib
import re
from typing import Any

import pytest

ROOT = pathlib.Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PROGRAMS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def outputs(program: str) -> list[tuple[str, str]]:
    """What each line with a comment prints, and what the comment says; runs the program from its first line."""
    found, namespace = [], {"__name__": "readme"}
    for statement in ast.parse(program).body:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(ast.Module([statement], []), "README.md", "exec"), namespace)
        said = re.search(r"print\(.*\)  # (.*)", program.splitlines()[(statement.end_lineno or 1) - 1])
        if said is not None:
            found.append((out.getvalue().strip(), said[1]))
    return found


def test_the_bytes_of_the_picture_are_those_that_were_measured() -> None:
    kept = json.loads((ROOT / "docs" / "measured.json").read_text())
    (table,) = [table for title, table in kept.items() if "examples/waveform_inversion.py" in title]
    sizes = {row[0]: row[table["columns"].index("memory, MB")] for row in table["rows"]}
    text = " ".join(README.split())
    assert (
        f"{sizes['all steps stored']} MB with all steps stored, and {sizes['16MB']} MB within a budget of 16 MB" in text
    )


@pytest.mark.optimized
@pytest.mark.parametrize("program", PROGRAMS, ids=range(len(PROGRAMS)))
def test_a_program_runs_alone_and_prints_what_the_readme_says(program: str) -> None:
    found = outputs(program)
    assert found
    for printed, said in found:
        assert printed == said


@pytest.mark.optimized
def test_the_example_takes_as_many_bytes_without_a_budget_as_the_readme_says() -> None:
    namespace: dict[str, Any] = {"__name__": "readme"}
    assert PROGRAMS[0].count(", checkpoint=budget") == 1
    with contextlib.redirect_stdout(io.StringIO()):
        exec(PROGRAMS[0].replace(", checkpoint=budget", ""), namespace)
    found = namespace["slope"].lower(0.1).compile().memory_analysis().temp_size_in_bytes
    assert f"the same gradient takes {found:,} bytes" in README
