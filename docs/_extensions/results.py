"""Real results in the place of elided ones.

A doctest may write `...` for what differs from machine to machine. A reader wants to see a number. So the build runs
the examples of a page or docstring, and where the expected output of one has an ellipsis, shows what the example really
printed: a report, or the message of an error of this package. The messages of JAX, which are long, stay elided.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import sys
import textwrap
import traceback
import warnings
from typing import Any

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
from sphinx.util import logging

LOGGER = logging.getLogger(__name__)
PARSER = doctest.DocTestParser()
WIDTH = 88  # of the page


def is_elided(example: doctest.Example) -> bool:
    is_error_of_others = example.exc_msg is not None and not example.exc_msg.startswith("statetransform.")
    return "..." in example.want and not is_error_of_others


def folded(text: str) -> str:
    """Folds sentences into the width of the page, and leaves tables as they are."""
    lines = text.splitlines()
    if not any("---" in line for line in lines):
        lines = [textwrap.fill(line, WIDTH, subsequent_indent="  ") for line in lines]
    return "\n".join(lines) + "\n"


def outputs(examples: list[doctest.Example], name: str, namespace: dict[str, Any]) -> dict[int, str]:
    """What each elided example prints, by its place on the page."""
    found = {}
    for example in examples:
        out = io.StringIO()
        code = compile("\n" * example.lineno + example.source, name, "single")
        with contextlib.redirect_stdout(out), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                exec(code, namespace)
            except Exception as error:
                if example.exc_msg is None:
                    LOGGER.warning("%s, line %s: %s", name, example.lineno + 1, traceback.format_exc())
                    return found
                heading = "Traceback (most recent call last):\n  ...\n"
                out.write(f"{heading}{example.exc_msg.partition(':')[0]}: {error}\n")
        if is_elided(example):
            found[example.lineno] = folded(out.getvalue())
    plt.close("all")  # they belong to the page's own figures, which are drawn later
    return found


def with_results(text: str, name: str, namespace: dict[str, Any]) -> str:
    if ">>> " not in text:
        return text
    examples = PARSER.get_examples(text)
    if not any(map(is_elided, examples)):
        return text
    found, lines = outputs(examples, name, namespace), text.splitlines(keepends=True)
    for example in reversed(examples):
        if example.lineno in found:
            start = example.lineno + example.source.count("\n")
            shown = textwrap.indent(found[example.lineno], " " * example.indent)
            lines[start : start + example.want.count("\n")] = [shown]
    return "".join(lines)


def in_page(app: Any, name: str, source: list[str]) -> None:
    source[0] = with_results(source[0], f"{name}.md", {"__name__": "__main__"})


def in_docstring(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Before napoleon rewrites the docstring. An example sees the names of its module, as in a doctest."""
    namespace = dict(vars(sys.modules.get(getattr(obj, "__module__", "") or "", sys)))
    lines[:] = with_results("\n".join(lines) + "\n", "example.py", namespace).splitlines()


def setup(app: Any) -> dict[str, bool]:
    app.connect("source-read", in_page)
    app.connect("autodoc-process-docstring", in_docstring, priority=400)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
