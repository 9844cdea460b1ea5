"""The notebooks of pages have the code of their pages, with outputs, and run."""

from __future__ import annotations

import json
import os
import pathlib
import tomllib
import types
from typing import Any

import pytest

from .test_notebooks_of_examples import ROOT, notebooks


def kept(name: str) -> Any:
    return json.loads(notebooks.kept_at(name).read_text())


@pytest.mark.parametrize("name", notebooks.PAGES)
def test_a_notebook_has_the_text_and_the_code_of_its_page(name: str) -> None:
    """If not: `make notebooks`."""
    site = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"].get("urls", {}).get("Documentation", "")
    page = notebooks.cells_of_page((ROOT / "docs" / f"{name}.md").read_text(), site, name)
    assert ["".join(cell["source"]) for cell in kept(name)["cells"]] == [text for _, text in page]


@pytest.mark.parametrize("name", notebooks.PAGES)
def test_a_notebook_is_valid_has_outputs_and_says_nothing_of_where_it_ran(name: str) -> None:
    nbformat = pytest.importorskip("nbformat", reason="nbformat says whether a notebook is valid")
    book = kept(name)
    nbformat.validate(book)
    outputs = [output for cell in book["cells"] for output in cell.get("outputs", [])]
    assert outputs
    for cell in book["cells"]:
        is_error = any(output["output_type"] == "error" for output in cell.get("outputs", []))
        assert is_error == ("raises-exception" in cell["metadata"].get("tags", []))
    assert not any(place in json.dumps(outputs) for place in ("/tmp/", "/home/", "site-packages"))


def test_a_link_leads_to_the_site_if_it_has_an_address_or_else_nowhere() -> None:
    page = "# A page\n\nSee [policies](policies.md#which-policy), [here](#here) and [JAX](https://jax.dev).\n"
    (_, text), *_ = notebooks.cells_of_page(page)
    assert text.endswith("See policies, here and [JAX](https://jax.dev).")
    (_, text), *_ = notebooks.cells_of_page(page, "https://docs.example.org")
    assert "[policies](https://docs.example.org/en/latest/policies.html#which-policy)" in text
    (_, text), *_ = notebooks.cells_of_page("[loops](../loops.md)", "https://docs.example.org/", "coming-from/diffrax")
    assert text == "[loops](https://docs.example.org/en/latest/loops.html)"


def test_a_page_says_what_it_is_for_before_it_offers_its_notebook() -> None:
    app = types.SimpleNamespace(config=types.SimpleNamespace(html_theme_options={}))
    text = ["# Loops\n\nWhich one,\nand how.\n\nMore.\n"]
    notebooks.offer(app, "loops", text)
    offered = "{download}`This page as a notebook <notebooks/loops.ipynb>`"
    assert text[0] == f"# Loops\n\nWhich one,\nand how.\n\n{offered}\n\nMore.\n"
    text = ["# Coming from diffrax\n\nHow.\n\nMore.\n"]
    notebooks.offer(app, "coming-from/diffrax", text)
    assert "{download}`This page as a notebook <../notebooks/diffrax.ipynb>`" in text[0]


def test_code_without_prompts_is_a_cell_and_what_it_printed_is_none() -> None:
    page = "# A page\n\n```{code-block} python\nprint(1)\n```\n\n```text\n1\n```\n\n```console\npip install x\n```\n"
    assert notebooks.cells_of_page(page)[2:] == [
        ("code", "print(1)"),
        ("markdown", "```console\npip install x\n```"),
    ]


@pytest.mark.filterwarnings("default")  # of the notebook tools themselves
def test_the_first_notebook_runs(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("nbclient", reason="the notebook test needs nbclient and ipykernel")
    pytest.importorskip("ipykernel", reason="the notebook test needs ipykernel")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))
    book = notebooks.run(kept("getting-started"))
    texts = [str(output) for cell in book.cells for output in cell.get("outputs", [])]
    assert any("3.0636" in text for text in texts)
