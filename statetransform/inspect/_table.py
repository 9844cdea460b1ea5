"""Tables and reports: data first, then plain text, rich or HTML from the same cells."""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Sequence
from typing import Any


@dataclasses.dataclass(frozen=True)
class Table:
    """Cells of text under headings.

    Attributes:
        title: stands above.
        columns: the headings; one that starts with ">" is of numbers, and aligned to the right.
        rows: the cells.
        notes: sentences below.
        marked: the numbers of the rows that stand out.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    marked: frozenset[int] = frozenset()

    @property
    def headings(self) -> list[str]:
        """The headings without the mark of alignment."""
        return [column.removeprefix(">") for column in self.columns]

    def is_right(self, i: int) -> bool:
        """Whether a column holds numbers."""
        return self.columns[i].startswith(">")

    def text(self) -> str:
        """Aligned plain text.

        >>> print(Table("two rows", ["name", ">bytes"], [["a", "16"], ["bc", "1024"]], ["All small."]).text())
        two rows
        name  bytes
        ----  -----
        a        16
        bc     1024
        All small.
        """
        lines = [self.title] if self.title else []
        if self.rows:
            cells = [self.headings, *self.rows]
            widths = [max(len(row[i]) for row in cells) for i in range(len(self.columns))]
            cells.insert(1, ["-" * width for width in widths])
            for row in cells:
                padded = [
                    cell.rjust(width) if self.is_right(i) else cell.ljust(width)
                    for i, (cell, width) in enumerate(zip(row, widths, strict=True))
                ]
                lines.append("  ".join(padded).rstrip())
        return "\n".join([*lines, *self.notes])

    def html(self) -> str:
        """The same for a notebook.

        >>> Table("", ["a<b"], [["1"]]).html().count("<td")
        1
        """
        align = ["right" if self.is_right(i) else "left" for i in range(len(self.columns))]
        cell = lambda tag, text, i: f'<{tag} style="text-align:{align[i]}">{html.escape(text)}</{tag}>'
        parts = [f"<p><b>{html.escape(self.title)}</b></p>"] if self.title else []
        if self.rows:
            head = "".join(cell("th", text, i) for i, text in enumerate(self.headings))
            body = [
                ("<tr style='font-weight:bold'>" if n in self.marked else "<tr>")
                + "".join(cell("td", text, i) for i, text in enumerate(row))
                + "</tr>"
                for n, row in enumerate(self.rows)
            ]
            parts.append(f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>")
        parts += [f"<p>{html.escape(note)}</p>" for note in self.notes]
        return "".join(parts)


class Report:
    """Something that prints: a table as text, in rich, or as HTML. Subclasses define `table` and `to_dicts`."""

    def table(self) -> Table:
        """What to print."""
        raise NotImplementedError

    def to_dicts(self) -> list[dict[str, Any]]:
        """Plain data, one dict per row; of numbers, text and None only."""
        raise NotImplementedError

    def __str__(self) -> str:
        return self.table().text()

    def __repr__(self) -> str:
        return str(self)

    def __rich__(self) -> Any:
        from ._render import rich_table

        return rich_table(self.table())

    def _repr_html_(self) -> str:
        return self.table().html()
