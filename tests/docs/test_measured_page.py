"""The page of benchmarks keeps what other runs measured, and says where a peer is faster."""

from __future__ import annotations

import json
import pathlib
import re

import pytest

from benchmarks import report
from benchmarks.examples import SHOWN

ROOT = pathlib.Path(__file__).parent.parent.parent
KEPT = json.loads((ROOT / "docs" / "measured.json").read_text())


@pytest.mark.parametrize("example", SHOWN)
def test_the_page_of_an_example_shows_what_was_measured(example: str) -> None:
    """And its columns are those that the program prints: else a run would leave its figures as they are."""
    code = (ROOT / "examples" / f"{example}.py").read_text()
    columns = re.search(r'(?:COLUMNS = |show\()\[("[^]]*")\]', code)
    assert columns is not None
    names = re.findall(r'"([^"]*)"', columns[1])
    (table,) = [table for title, table in KEPT.items() if f"examples/{example}.py" in title]
    assert table["columns"] == names
    page = (ROOT / "docs" / "examples" / f"{example}.md").read_text()
    assert "\n".join(report.lines_of(table)) in page


def test_the_page_of_nnx_shows_what_was_measured() -> None:
    table = KEPT["Cells of flax.nnx: time of a compiled call that writes them all"]
    page = (ROOT / "docs" / "coming-from" / "nnx.md").read_text()
    for name in ("argument", "nnx.split, jax.jit", "nnx.jit"):
        place = table["columns"].index(name)
        cells = " | ".join(row[place] for row in table["rows"])
        assert f"| {cells} |" in page, name


def test_the_page_is_that_of_the_figures_beside_it() -> None:
    assert (ROOT / "docs" / "measured.md").read_text() == report.markdown(KEPT)
