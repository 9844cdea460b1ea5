"""A notebook for each example, made from its script, and for some pages, made from their text.

Of an example the text above the script becomes the first cell, its code the next one, and a call of `main` with the
defaults the last one; what the script takes from `measuring.py` beside it has a cell of its own before the code. The
build writes these. Of a page each piece of text becomes a cell, and so does the code up to
each result. `make notebooks` writes and runs these, and they are kept with their outputs in `docs/notebooks`, where
Colab finds them.
"""

from __future__ import annotations

import ast
import doctest
import inspect
import json
import pathlib
import re
import sys
import urllib.parse
from typing import Any

DOCS = pathlib.Path(__file__).parent.parent
EXAMPLES = DOCS.parent / "examples"
MEASURING = EXAMPLES / "measuring.py"  # what several of them use
# With what their code needs besides.
PAGES = {
    "getting-started": "matplotlib",
    "loops": "matplotlib",
    "budget": "matplotlib",
    "cards": "matplotlib",
    "coming-from/diffrax": "diffrax",
    "coming-from/mjx": "mujoco-mjx",
}
FENCE = re.compile(r"^(```+|::::?)([^\n]*)\n(.*?)^\1$\n?", re.MULTILINE | re.DOTALL)
Cell = tuple[str, str]  # type and text


def cells(script: str) -> list[Cell]:
    """The cells of an example's notebook."""
    tree = ast.parse(script)
    text = inspect.cleandoc(ast.get_docstring(tree) or "")
    lines = script.splitlines()
    body = lines[tree.body[0].end_lineno : tree.body[-1].lineno - 1]  # without the text and `if __name__ == ...`
    shared = [("code", _code(MEASURING.read_text().splitlines()[1:]))] if any(map(_is_shared, body)) else []
    return [("markdown", text), *shared, ("code", _code(body)), ("code", "main()")]


def _code(lines: list[str]) -> str:
    left_out = lambda line: line == "from __future__ import annotations" or _is_shared(line)
    return "\n".join(line for line in lines if not left_out(line)).strip()


def _is_shared(line: str) -> bool:
    return line.startswith("from measuring import")


def kept_at(name: str) -> pathlib.Path:
    """Where the notebook of a page is kept."""
    return DOCS / "notebooks" / f"{name.rpartition('/')[2]}.ipynb"


def cells_of_page(page: str, site: str = "", name: str = "") -> list[Cell]:
    """The cells of the notebook of a page of this name; links to other pages lead to the site, if it has an address."""
    found: list[Cell] = []
    site = site and f"{site.rstrip('/')}/en/latest/{name and f'{name}.html'}"
    install = f"# %pip install statetransform {PAGES.get(name, '')}  # in Colab"
    end = 0
    for fence in FENCE.finditer(page):
        found += _texts(page[end : fence.start()], site)
        end = fence.end()
        kind, content = fence[2], fence[3]
        if ">>> " in content:
            found += _codes(content, kind)
        elif kind == "{code-block} python":
            found += [("code", content.strip())]
        elif kind != "text" and not kind.startswith(
            "{"
        ):  # text is what code has printed, and the notebook prints it again
            found += [("markdown", fence[0].strip())]
    found += _texts(page[end:], site)
    return [found[0], ("code", install), *found[1:]]


def _texts(text: str, site: str) -> list[Cell]:
    def link(found: re.Match[str]) -> str:
        page = re.sub(r"\.md\b", ".html", found[2])
        return f"[{found[1]}]({urllib.parse.urljoin(site, page)})" if site else found[1]

    text = re.sub(r"\[([^\]]*)\]\((?!https?:)([^)]*)\)", link, text).strip()
    return [("markdown", text)] if text else []


def _codes(content: str, kind: str) -> list[Cell]:
    """The examples of a block: a cell for each that shows something."""
    found, sources = [], ""
    for example in doctest.DocTestParser().get_examples(content):
        sources += example.source
        if example.exc_msg is not None:
            found.append(("raises", sources.strip()))
            sources = ""
        elif example.want:
            found.append(("code", sources.strip()))
            sources = ""
    if kind.startswith("{shown}"):
        sources += kind.removeprefix("{shown}").strip()  # the report that the page shows
    return [*found, ("code", sources.strip())] if sources.strip() else found


def notebook(found: list[Cell]) -> dict[str, Any]:
    """The notebook as its file has it, without outputs."""
    made = []
    for i, (kind, text) in enumerate(found):
        metadata = {"tags": ["raises-exception"]} if kind == "raises" else {}
        cell = {"id": f"cell-{i}", "metadata": metadata, "source": text.splitlines(keepends=True)}
        empty = {"execution_count": None, "outputs": []}
        made.append({**cell, "cell_type": "markdown"} if kind == "markdown" else {**cell, "cell_type": "code", **empty})
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return {"nbformat": 4, "nbformat_minor": 5, "metadata": {"kernelspec": kernel}, "cells": made}


def run(book: dict[str, Any]) -> dict[str, Any]:
    """The same with outputs; of an error only its message, and nothing of what goes to the log."""
    import nbclient
    import nbformat

    found = nbformat.reads(json.dumps(book), as_version=4)
    nbclient.NotebookClient(found, timeout=600, kernel_name="python3").execute()
    for cell in found.cells:
        cell.metadata.pop("execution", None)
        outputs = cell.get("outputs", [])
        for output in outputs:
            if output.output_type == "error":
                output.traceback = [f"{output.ename}: {output.evalue}"]
        if "outputs" in cell:
            cell.outputs = [output for output in outputs if output.get("name") != "stderr"]
    found.metadata.pop("language_info", None)
    return found


def write(app: Any) -> None:
    """Writes the notebooks of the examples where the pages find them."""
    folder = pathlib.Path(app.srcdir) / "examples" / "_notebooks"
    folder.mkdir(exist_ok=True)
    for script in set(EXAMPLES.glob("*.py")) - {MEASURING}:
        text = json.dumps(notebook(cells(script.read_text())), indent=1)
        (folder / f"{script.stem}.ipynb").write_text(text)


def offer(app: Any, name: str, source: list[str]) -> None:
    """A line below the first paragraph of a page that has a notebook, which says what the page is for."""
    if name not in PAGES:
        return
    file = f"notebooks/{kept_at(name).name}"
    line = f"{{download}}`This page as a notebook <{'../' * name.count('/')}{file}>`"
    repository = app.config.html_theme_options.get("source_repository", "").removeprefix("https://github.com/")
    if repository:
        place = f"{repository.strip('/')}/blob/main/docs/{file}"
        line += f" · [Open in Colab](https://colab.research.google.com/github/{place})"
    title, purpose, rest = source[0].split("\n\n", 2)
    source[0] = "\n\n".join([title, purpose, line, rest])


def setup(app: Any) -> dict[str, bool]:
    app.connect("builder-inited", write)
    app.connect("source-read", offer)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


if __name__ == "__main__":
    import tomllib

    import nbformat

    project = tomllib.loads((DOCS.parent / "pyproject.toml").read_text())["project"]
    for name in sys.argv[1:] or PAGES:
        page = (DOCS / f"{name}.md").read_text()
        book = run(notebook(cells_of_page(page, project.get("urls", {}).get("Documentation", ""), name)))
        kept_at(name).write_text(nbformat.writes(book) + "\n")
        print(f"wrote {kept_at(name).relative_to(DOCS.parent)}")
