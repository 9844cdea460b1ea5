"""What pages say of the code is there."""

from __future__ import annotations

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[2]
PAGES = [ROOT / "CONTRIBUTING.md", ROOT / "docs" / "how-it-works.md", ROOT / "docs" / "core-from-scratch.md"]
PLACES = ("statetransform", "tests", "docs", "examples", "benchmarks")
FILES = [path.relative_to(ROOT).as_posix() for place in PLACES for path in (ROOT / place).rglob("*.py")]


@pytest.mark.skipif(not PAGES[0].exists(), reason="the pages for contributors are not installed")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_file_that_a_page_names_exists_and_has_the_names_that_stand_before_it(page: pathlib.Path) -> None:
    """As in: `StagedFrame.enter` in `_traces/stage.py`."""
    text = page.read_text(encoding="utf-8")
    for names, file in re.findall(r"(?:`([\w.]+)`\s+(?:in|of)\s+)?`((?:[\w.-]+/)*[\w-]+\.py)`", text):
        found = [path for path in FILES if f"/{path}".endswith(f"/{file}")]
        assert found, file
        for name in filter(None, names.split(".")):
            pattern = re.compile(rf"\b{re.escape(name)}\b")
            assert any(pattern.search((ROOT / path).read_text(encoding="utf-8")) for path in found), (name, file)
