"""The directive `shown`: a page's own examples, run by the build, with what a notebook would show below them.

    ```{shown} table
    >>> table = inspect.compare({"plain": f}, x)
    >>> axes = table.plot()
    ```

The examples of a page run in one namespace, from the first line to the end of the directive, as the doctests of the
page do. Below the code come the report that the argument names, as HTML, and all figures that the code has drawn.
(matplotlib's own directive gives its blocks a namespace apart from the rest of the page, shows no HTML, and draws for
one background.)
"""

from __future__ import annotations

import contextlib
import doctest
import io
import re
import uuid
from pathlib import Path
from typing import Any, ClassVar

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
from docutils import nodes
from docutils.parsers.rst import Directive, directives

# What is drawn in this colour takes that of the page's text, light or dark; black, white and greys take others.
INK = "#010203"
COLOURS = {
    rf"{INK}|#000000|\bblack\b": "currentColor",
    "#ffffff": "var(--color-background-primary)",
    "#e[56]e[56]e[56]": "var(--color-background-border)",
    "#595959": "var(--color-foreground-secondary)",
}
STYLE = {
    **{f"{part}.color": INK for part in ("text", "xtick", "ytick")},
    **dict.fromkeys(("axes.edgecolor", "axes.labelcolor"), INK),
    **dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor", "legend.facecolor"), "none"),
    "svg.fonttype": "none",
    "font.family": "sans-serif",
}


class Page:
    """The examples of one page, and how far they have run."""

    def __init__(self, path: Path) -> None:
        self.path, self.namespace, self.done = path, {"__name__": "__main__"}, 0
        self.examples = doctest.DocTestParser().get_examples(path.read_text(), str(path))

    def run(self, code: str) -> None:
        """Runs the examples that have not run yet, up to and with those of a piece of the page."""
        wanted = [example.source for example in doctest.DocTestParser().get_examples(code + "\n")]
        sources = [example.source for example in self.examples]
        starts = range(self.done, len(sources) - len(wanted) + 1)
        end = next(i for i in starts if sources[i : i + len(wanted)] == wanted) + len(wanted)
        due, self.done = self.examples[self.done : end], end
        for example in due:
            # Blank lines before it, so that reports name the line of the page.
            source = "\n" * example.lineno + example.source
            with contextlib.redirect_stdout(io.StringIO()), contextlib.ExitStack() as stack:
                if example.exc_msg is not None:
                    stack.enter_context(contextlib.suppress(Exception))
                exec(compile(source, str(self.path), "exec"), self.namespace)


def drawn() -> list[str]:
    """All open figures as SVG in the colours of the page; closes them."""
    found = []
    for number in plt.get_fignums():
        figure, out = plt.figure(number), io.StringIO()
        with plt.rc_context({"svg.hashsalt": uuid.uuid4().hex}):
            figure.savefig(out, format="svg", transparent=True)
        svg = re.sub(r"^.*?(?=<svg)", "", out.getvalue(), flags=re.DOTALL)
        svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
        for pattern, colour in COLOURS.items():
            svg = re.sub(pattern, colour, svg)
        found.append(svg)
        plt.close(figure)
    return found


class Shown(Directive):
    has_content = True
    optional_arguments = 1
    option_spec: ClassVar = {"alt": directives.unchanged_required, "hide-code": directives.flag}

    def run(self) -> list[nodes.Node]:
        env = self.state.document.settings.env
        pages = env.temp_data.setdefault("shown", {})
        page = pages.get(env.docname) or pages.setdefault(env.docname, Page(Path(env.doc2path(env.docname))))
        with plt.rc_context(STYLE):
            page.run("\n".join(self.content))
            pictures = drawn()
        text = "\n".join(self.content).rstrip()
        code = nodes.literal_block(text, text, language="pycon")
        label = self.options.get("alt", "")
        shown = [f'<div class="shown" role="img" aria-label="{label}">{picture}</div>' for picture in pictures]
        if self.arguments:
            report = page.namespace[self.arguments[0]]
            shown.insert(0, f'<div class="shown">{report._repr_html_()}</div>')
        raw = [nodes.raw("", html, format="html") for html in shown]
        return raw if "hide-code" in self.options else [code, *raw]


def setup(app: Any) -> dict[str, bool]:
    app.add_directive("shown", Shown)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
