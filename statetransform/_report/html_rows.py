"""Tables of two columns for notebooks."""

from __future__ import annotations

import html
from collections.abc import Iterable


def html_rows(title: str, rows: Iterable[tuple[str, str]]) -> str:
    """A table of two columns for a notebook."""
    cells = (f"<tr><th>{html.escape(name)}</th><td>{html.escape(text)}</td></tr>" for name, text in rows)
    return f"<p><b>{html.escape(title)}</b></p><table><tbody>{''.join(cells)}</tbody></table>"
