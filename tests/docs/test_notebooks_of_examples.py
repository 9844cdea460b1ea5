"""The gallery's notebooks have the code of its scripts, and run."""

from __future__ import annotations

import importlib.util
import pathlib
from typing import Any

import pytest

ROOT = pathlib.Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("notebooks", ROOT / "docs" / "_extensions" / "notebooks.py")
assert SPEC is not None and SPEC.loader is not None
notebooks = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(notebooks)
SCRIPTS = sorted(set(notebooks.EXAMPLES.glob("*.py")) - {notebooks.MEASURING})


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_notebook_is_valid_and_leaves_nothing_out(script: pathlib.Path) -> None:
    nbformat = pytest.importorskip("nbformat", reason="nbformat says whether a notebook is valid")
    book = notebooks.notebook(notebooks.cells(script.read_text()))
    nbformat.validate(book)
    text, *codes, call = ("".join(cell["source"]) for cell in book["cells"])
    assert text and "def main(" in codes[-1] and call == "main()"
    left_out = ("__main__", "parse_args", "__future__", "from measuring")
    assert not any(left in code for code in codes for left in left_out)
    assert ("measure(" in codes[-1]) == ("def measure(" in codes[0])  # a cell of its own


def test_the_cells_of_a_notebook_run(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib", reason="the example draws").use("agg")
    _, *codes, _ = notebooks.cells((ROOT / "examples" / "fdtd.py").read_text())
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for _, code in codes:
        exec(compile(code, "cell", "exec"), namespace)
    namespace["main"](steps=30, size=16, out=str(tmp_path))
    assert "| undone" in capsys.readouterr().out
    assert [path.suffix for path in tmp_path.iterdir()] == [".png"]
