"""The page of benchmarks keeps what other runs measured, and says where a peer is faster."""

from __future__ import annotations

import json
import pathlib
import re

import pytest

from benchmarks import report
from benchmarks.examples import SHOWN

ROOT = pathlib.Path(__file__).parent.parent.parent


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
