"""The page of benchmarks keeps what other runs measured, and says where a peer is faster."""

from __future__ import annotations

import json
import pathlib
import re

import pytest
from rich.table import Table

import statetransform as st
from benchmarks import report

ROOT = pathlib.Path(__file__).parent.parent


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
        (["", "by hand", "method", "nnx"], [["1 state", "1.00", "1.20", ""]], []),
        (
            ["", "wall over plain"],
            [["plain scan", "1.00"], ["checkpoint=20", "1.50"], ["equinox, 20", "1.40"], ["brainstate", "1.60"]],
            ["equinox, 20 takes 1.40"],
        ),
        (["program", "FLOPs"], [["grad of counter", "1.000"]], []),
    ],
    ids=["faster", "slower", "absent", "loops", "no peers"],
)
def test_where_a_peer_is_faster_is_said(columns: list[str], rows: list[list[str]], said: list[str]) -> None:
    show("Time", columns, *rows)
    found = report.faster_peers("Time", report.tables["Time"])
    assert len(found) == len(said)
    assert all(text in sentence for text, sentence in zip(said, found, strict=True))


def test_a_run_replaces_its_tables_and_keeps_the_others(tmp_path: pathlib.Path) -> None:
    page = tmp_path / "measured.md"
    show("First", ["", "by hand"], ["a", "1.000"])
    show("Second", ["", "by hand"], ["b", "2.000"])
    report.write(page)
    report.tables.clear()
    show("Second", ["", "by hand"], ["b", "3.000"])
    report.write(page)
    assert re.findall(r"\| ([ab]) \| ([\d.]+) \|", page.read_text()) == [("a", "1.000"), ("b", "3.000")]


def test_the_page_is_that_of_the_figures_beside_it() -> None:
    kept = json.loads((ROOT / "docs" / "measured.json").read_text())
    assert (ROOT / "docs" / "measured.md").read_text() == report.markdown(kept)


def test_the_citation_names_this_version() -> None:
    assert f"\nversion: {st.__version__}\n" in (ROOT / "CITATION.cff").read_text()
