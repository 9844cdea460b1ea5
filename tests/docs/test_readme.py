"""The programs of the README run, print what is written beside them, and raise what is written below them."""

from __future__ import annotations

import ast
import contextlib
import io
import pathlib
import re
import warnings
from typing import Any

README = pathlib.Path(__file__).parent.parent.parent / "README.md"


def statements(code: str) -> list[tuple[ast.stmt, str]]:
    """The statements of a program, each with the comments behind and below it."""
    lines, body = code.splitlines(), ast.parse(code).body
    ends = [statement.lineno - 1 for statement in body[1:]] + [len(lines)]
    return [
        (statement, "\n".join(lines[(statement.end_lineno or 1) - 1 : end]))
        for statement, end in zip(body, ends, strict=True)
    ]


def test_the_programs_do_what_the_readme_says() -> None:
    namespace: dict[str, Any] = {"__name__": "readme"}
    said = 0
    for code in re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL):
        for statement, text in statements(code):
            program = compile(ast.Module([statement], []), str(README), "exec")
            raised = re.search(r"^# (\w+Error): (.*?) \(created at \.\.\.\) (.*?) \.\.\.$", text, re.MULTILINE)
            printed = re.search(r"^print\(.*\)  # ([^(\n]*)", text, re.MULTILINE)
            out = io.StringIO()
            try:
                with contextlib.redirect_stdout(out), warnings.catch_warnings(action="ignore"):
                    exec(program, namespace)
            except Exception as error:
                assert raised is not None, error
                assert type(error).__name__ == raised[1]
                assert str(error).startswith(raised[2]) and raised[3] in str(error)
                said += 1
                continue
            assert raised is None
            if printed is not None:
                assert out.getvalue().strip() == printed[1].strip()
                said += 1
    assert said == 5
