"""Real results in the place of elided ones.

A doctest may write `...` for what differs from machine to machine. A reader wants to see a number. So the build runs
the examples of a page, and where the expected output of one has an ellipsis, shows what the example really printed.
Expected errors stay as they are written.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import textwrap
import traceback
import warnings
from typing import Any

from sphinx.util import logging

LOGGER = logging.getLogger(__name__)
PARSER = doctest.DocTestParser()


def is_elided(example: doctest.Example) -> bool:
    return "..." in example.want and example.exc_msg is None


def outputs(examples: list[doctest.Example], name: str) -> dict[int, str]:
    """What each elided example prints, by its place on the page."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    found = {}
    for example in examples:
        out = io.StringIO()
        code = compile("\n" * example.lineno + example.source, name, "single")
        with contextlib.redirect_stdout(out), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                exec(code, namespace)
            except Exception:
                if example.exc_msg is None:
                    LOGGER.warning("%s, line %s: %s", name, example.lineno + 1, traceback.format_exc())
                    return found
        if is_elided(example):
            found[example.lineno] = out.getvalue()
    return found


def replace(app: Any, name: str, source: list[str]) -> None:
    """Puts the real outputs into the source of a page."""
    if ">>> " not in source[0]:
        return
    examples = PARSER.get_examples(source[0])
    if not any(map(is_elided, examples)):
        return
    found, lines = outputs(examples, name), source[0].splitlines(keepends=True)
    for example in reversed(examples):
        if example.lineno in found:
            start = example.lineno + example.source.count("\n")
            shown = textwrap.indent(found[example.lineno], " " * example.indent)
            lines[start : start + example.want.count("\n")] = [shown]
    source[0] = "".join(lines)


def setup(app: Any) -> dict[str, bool]:
    app.connect("source-read", replace)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
