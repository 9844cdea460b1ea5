"""The gallery's notebooks have the code of its scripts, and run."""

from __future__ import annotations

import importlib.util
import pathlib
from typing import Any

import pytest

ROOT = pathlib.Path(__file__).parents[2]
SCRIPTS = sorted((ROOT / "examples").glob("*.py"))
SPEC = importlib.util.spec_from_file_location("notebooks", ROOT / "docs" / "_extensions" / "notebooks.py")
assert SPEC is not None and SPEC.loader is not None
notebooks = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(notebooks)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_notebook_is_valid_and_leaves_nothing_out(script: pathlib.Path) -> None:
    nbformat = pytest.importorskip("nbformat", reason="nbformat says whether a notebook is valid")
    book = notebooks.notebook(notebooks.cells(script.read_text()))
    nbformat.validate(book)
    text, code, call = ("".join(cell["source"]) for cell in book["cells"])
    assert text and "def main(" in code and call == "main()"
    assert "__main__" not in code and "parse_known_args" not in code


def test_the_cells_of_a_notebook_run(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib", reason="the example draws").use("agg")
    _, (_, code), _ = notebooks.cells((ROOT / "examples" / "landers.py").read_text())
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(code, "cell", "exec"), namespace)
    namespace["main"](landers=4, iterations=2, out=str(tmp_path))
    assert "cost of a landing" in capsys.readouterr().out
    assert [path.suffix for path in tmp_path.iterdir()] == [".png"]
