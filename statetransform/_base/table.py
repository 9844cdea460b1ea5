"""Tables and reports: data first, then plain text, rich or HTML from the same cells."""

from __future__ import annotations

import abc
import dataclasses
import html
import itertools
import sys
import textwrap
from collections import Counter
from collections.abc import Sequence
from typing import Any, ClassVar, Generic, TypeVar

from .optional import require

WIDTH = 120  # of what is printed, in characters
_GAP = "  "  # between columns
_LEAST = 8  # characters that a column keeps
T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Table:
    """Cells of text under headings.

    Attributes:
      title: the line above.
      columns: the headings; one that starts with ">" is of numbers, and aligned to the right.
      rows: the cells; those of several lines are shown as several lines.
      notes: sentences below.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()

    @property
    def headings(self) -> list[str]:
        """The headings without the mark of alignment."""
        return [column.removeprefix(">") for column in self.columns]

    def is_right(self, i: int) -> bool:
        """Whether a column holds numbers."""
        return self.columns[i].startswith(">")

    def text(self, width: int | None = None) -> str:
        """Aligned plain text, no wider than `width`: long cells go on in the next line, the widest columns first.

        >>> print(Table("two rows", ["name", ">bytes"], [["a", "16"], ["bc", "1024"]], ["All small."]).text())
        two rows
        name  bytes
        ----  -----
        a        16
        bc     1024
        All small.
        """
        width = sys.maxsize if width is None else width
        lines = _wrapped(self.title, width) if self.title else []
        if self.rows:
            cells = [self.headings, *self.rows]
            longest = lambda cell: max(map(len, cell.split("\n")))
            widths = [max(longest(row[i]) for row in cells) for i in range(len(self.columns))]
            while sum(widths) + len(_GAP) * (len(widths) - 1) > width and max(widths) > _LEAST:  # the widest give way
                widths[widths.index(max(widths))] -= 1
            lines += self._row(self.headings, widths)
            lines += self._row(["-" * wide for wide in widths], widths)
            lines += [line for row in self.rows for line in self._row(row, widths)]
        return "\n".join([*lines, *[line for note in self.notes for line in _wrapped(note, width)]])

    def _row(self, row: Sequence[str], widths: Sequence[int]) -> list[str]:
        """The lines of one row."""
        parts = [
            [part for line in cell.split("\n") for part in _wrapped(line, wide, indent=4)]
            for cell, wide in zip(row, widths, strict=True)
        ]
        lines = []
        for cells in itertools.zip_longest(*parts, fillvalue=""):
            padded = [
                cell.rjust(wide) if self.is_right(i) else cell.ljust(wide)
                for i, (cell, wide) in enumerate(zip(cells, widths, strict=True))
            ]
            lines.append(_GAP.join(padded).rstrip())
        return lines

    def html(self) -> str:
        """The same for a notebook.

        >>> Table("", ["a<b"], [["1"]]).html().count("<td")
        1
        """
        align = ["right" if self.is_right(i) else "left" for i in range(len(self.columns))]
        cell = lambda tag, text, i: (
            f'<{tag} style="text-align:{align[i]};vertical-align:top;white-space:pre-wrap">{html.escape(text)}</{tag}>'
        )
        parts = [f"<p><b>{html.escape(self.title)}</b></p>"] if self.title else []
        if self.rows:
            head = "".join(cell("th", text, i) for i, text in enumerate(self.headings))
            body = ["".join(cell("td", text, i) for i, text in enumerate(row)) for row in self.rows]
            rows = "".join(f"<tr>{cells}</tr>" for cells in body)
            parts.append(f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>")
        parts += [f"<p>{html.escape(note)}</p>" for note in self.notes]
        return "".join(parts)


def _wrapped(text: str, width: int, indent: int = 0) -> list[str]:
    """The lines of a text, the later ones indented further than the first."""
    if len(text) <= width:
        return [text]
    further = " " * min(len(text) - len(text.lstrip()) + indent, width // 2) if indent else ""
    return textwrap.wrap(text, max(width, 1), subsequent_indent=further, break_on_hyphens=False)


def folded(table: Table) -> Table:
    """The same table with equal rows as one, and in front how many they are: ``6 x``.

    >>> folded(Table("", ["name"], [["a"], ["b"], ["a"]])).rows
    [['2 x', 'a'], ['', 'b']]
    """
    counts = Counter(map(tuple, table.rows))
    if len(counts) == len(table.rows):
        return table
    rows = [[f"{count} x" if count > 1 else "", *row] for row, count in counts.items()]
    return dataclasses.replace(table, columns=[">", *table.columns], rows=rows)


def _rich_table(table: Table) -> Any:
    """A table with title and notes, for `rich`."""
    rich = require("rich.table", "rich", "this rendering")
    console = require("rich.console", "rich", "this rendering")
    text = require("rich.text", "rich", "this rendering")
    parts: list[Any] = [text.Text(table.title, style="bold")] if table.title else []
    if table.rows:
        grid = rich.Table(show_edge=False, box=require("rich.box", "rich", "this rendering").SIMPLE)
        for i, heading in enumerate(table.headings):
            grid.add_column(heading, justify="right" if table.is_right(i) else "left")
        for row in table.rows:
            grid.add_row(*map(text.Text, row))
        parts.append(grid)
    return console.Group(*parts, *[text.Text(note, style="italic") for note in table.notes])


class Drawing(abc.ABC):
    """Something that matplotlib draws. Subclasses define `_draw`, and say in their docstrings what is drawn."""

    _size: ClassVar[tuple[float, float]] = (7.0, 4.5)  # of a new figure, in inches

    def plot(self, ax: Any = None) -> Any:
        """Draws it with matplotlib.

        Args:
          ax: matplotlib axes; None makes a figure.

        Returns:
          The axes.

        Raises:
          ImportError: matplotlib is not installed.
        """
        if ax is None:
            pyplot = require("matplotlib.pyplot", "plot", "plot()")
            ax = pyplot.subplots(figsize=self._size, layout="constrained")[1]
        self._draw(ax)
        return ax

    @abc.abstractmethod
    def _draw(self, ax: Any) -> None: ...


class Report(abc.ABC):
    """Something that prints: a table as text, in rich, or as HTML. Subclasses define `table` and `to_dicts`."""

    @abc.abstractmethod
    def table(self) -> Table:
        """What to print."""

    @abc.abstractmethod
    def to_dicts(self) -> list[dict[str, Any]]:
        """Plain data, one dict per row; of numbers, text and None only."""

    def text(self, width: int | None = WIDTH) -> str:
        """The table as text.

        Args:
          width: the most characters of a line, 120 as printed; None for as many as it takes.
        """
        return self.table().text(width)

    def __repr__(self) -> str:
        return self.text()

    def __rich__(self) -> Any:
        return _rich_table(self.table())

    def _repr_html_(self) -> str:
        return self.table().html()

    def __treescope_repr__(self, path: str | None, subtree_renderer: Any) -> Any:
        """One line; treescope shows the HTML of the table below it."""
        parts = require("treescope.rendering_parts", "", "treescope")
        line = parts.text(f"<{type(self).__name__}: {self.table().title}>")
        return parts.build_one_line_tree_node(line=line, path=path)


class Records(Report, Sequence[T], Generic[T]):
    """A report that is a sequence of records."""

    def __init__(self, records: Sequence[T]) -> None:
        self._records: tuple[Any, ...] = tuple(records)

    def to_dicts(self) -> list[dict[str, Any]]:
        """One dict per record."""
        return [dataclasses.asdict(record) for record in self._records]

    def __getitem__(self, index: Any) -> Any:
        return self._records[index]

    def __len__(self) -> int:
        return len(self._records)
