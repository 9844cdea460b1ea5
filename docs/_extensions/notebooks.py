"""A notebook for each example, made from its script.

The text above the script becomes the first cell, its code the second one, and a call of `main` with the defaults the
last one. The pages of the gallery link to them.
"""

from __future__ import annotations

import ast
import inspect
import json
import pathlib
from typing import Any

EXAMPLES = pathlib.Path(__file__).parent.parent.parent / "examples"


def cells(script: str) -> list[tuple[str, str]]:
    """The cells of the notebook: type and text."""
    tree = ast.parse(script)
    text = inspect.cleandoc(ast.get_docstring(tree) or "")
    future = "from __future__ import annotations"
    lines = script.splitlines()
    body = lines[tree.body[0].end_lineno : tree.body[-1].lineno - 1]  # without the text and `if __name__ == ...`
    code = "\n".join(line for line in body if line != future).strip()
    return [("markdown", text), ("code", code), ("code", "main()")]


def notebook(script: str) -> dict[str, Any]:
    """The notebook as its file has it."""
    found = []
    for i, (kind, text) in enumerate(cells(script)):
        cell = {"id": f"cell-{i}", "cell_type": kind, "metadata": {}, "source": text.splitlines(keepends=True)}
        found.append(cell if kind == "markdown" else {**cell, "execution_count": None, "outputs": []})
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return {"nbformat": 4, "nbformat_minor": 5, "metadata": {"kernelspec": kernel}, "cells": found}


def write(app: Any) -> None:
    """Writes the notebooks where the pages find them."""
    folder = pathlib.Path(app.srcdir) / "examples" / "_notebooks"
    folder.mkdir(exist_ok=True)
    for script in EXAMPLES.glob("*.py"):
        (folder / f"{script.stem}.ipynb").write_text(json.dumps(notebook(script.read_text()), indent=1))


def setup(app: Any) -> dict[str, bool]:
    app.connect("builder-inited", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
