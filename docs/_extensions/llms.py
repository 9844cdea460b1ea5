"""`llms.txt` (llmstxt.org): the pages of the site with one sentence each, for programs that read it."""

from __future__ import annotations

import pathlib
from typing import Any

from docutils import nodes

HEAD = """\
# statetransform

> JAX transforms for programs that keep state in objects, and gradients that fit in memory. `State` is a mutable cell;
> `statetransform.transform` has JAX's transforms, loops and branches for functions that use states; `checkpoint=` on a
> loop and `policies.fit` around a function limit the bytes of a gradient.
"""


def first_sentence(app: Any, page: str) -> str:
    for paragraph in app.env.get_doctree(page).findall(nodes.paragraph):
        text = " ".join(paragraph.astext().split())
        end = text.find(". ")
        return text if end < 0 else text[: end + 1]
    return ""


def pages_from(app: Any, page: str) -> list[str]:
    """A page and those below it, in the order of the navigation."""
    return [page, *(found for child in app.env.toctree_includes.get(page, []) for found in pages_from(app, child))]


def write(app: Any, error: Exception | None) -> None:
    if error is not None or app.builder.format != "html":
        return
    site = app.config.html_baseurl.rstrip("/")
    lines = [
        f"- [{app.env.titles[page].astext()}]({site + '/' if site else ''}{page}.html): {first_sentence(app, page)}"
        for page in pages_from(app, app.config.root_doc)
    ]
    text = "\n".join([HEAD, "## Pages", "", *lines]) + "\n"
    (pathlib.Path(app.outdir) / "llms.txt").write_text(text)


def setup(app: Any) -> dict[str, bool]:
    app.connect("build-finished", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
