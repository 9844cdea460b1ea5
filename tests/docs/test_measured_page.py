"""The page of benchmarks keeps what other runs measured, and says where a peer is faster."""

from __future__ import annotations

import json
import pathlib
import re

import pytest
from rich.table import Table

from benchmarks import report
from benchmarks.examples import SHOWN

ROOT = pathlib.Path(__file__).parent.parent.parent


@pytest.fixture(autouse=True)
def no_tables_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "tables", {})


def show(title: str, columns: list[str], *rows: list[str]) -> None:
    table = Table(title=title)
    for column in columns:
        table.add_column(column)
    for row in rows:
        table.add_row(*row)
    report.show(table)


@pytest.mark.parametrize(
    ("columns", "rows", "said"),
    [
        (["", "by hand", "method", "nnx"], [["1 state", "1.00", "1.20", "1.10"]], ["1 state: nnx takes 1.10"]),
        (["", "by hand", "method", "nnx"], [["1 state", "1.00", "1.20", "9.00"]], []),
        (
            ["", "wall over plain"],
            [["plain scan", "1.00"], ["checkpoint=20", "1.50"], ["equinox, 20", "1.40"], ["brainstate", "1.60"]],
            ["equinox, 20 takes 1.40"],
        ),
        (
            ["", "trace + lower"],
            [["layer, by hand", "1.00"], ["layer, statetransform", "1.10"], ["layer, flax.nnx", "1.05"]],
            ["layer: flax.nnx takes 1.05"],
        ),
        (
            ["", "time"],
            [["by hand", "1.00"], ["statetransform", "1.10"], ["flax.nnx", "1.05"]],
            ["flax.nnx takes 1.05"],
        ),
    ],
    ids=["faster", "slower", "loops", "peers in rows", "only peers in rows"],
)
def test_where_a_peer_is_faster_is_said(columns: list[str], rows: list[list[str]], said: list[str]) -> None:
    show("Time", columns, *rows)
    found = report.faster_peers("Time", report.tables["Time"])
    assert len(found) == len(said)
    assert all(text in sentence for text, sentence in zip(said, found, strict=True))


@pytest.mark.parametrize("example", SHOWN)
def test_the_readme_shows_the_columns_of_the_examples(example: str) -> None:
    """Else a run would leave its figures as they are."""
    code = (ROOT / "examples" / f"{example}.py").read_text()
    columns = re.search(r'(?:COLUMNS = |show\()\[("[^]]*")\]', code)
    assert columns is not None
    names = re.findall(r'"([^"]*)"', columns[1])
    assert f"\n| {' | '.join(names)} |\n" in (ROOT / "README.md").read_text()


def test_the_page_is_that_of_the_figures_beside_it() -> None:
    kept = json.loads((ROOT / "docs" / "measured.json").read_text())
    assert (ROOT / "docs" / "measured.md").read_text() == report.markdown(kept)
