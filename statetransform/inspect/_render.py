"""The one place that imports rich and matplotlib, and only when something is drawn with them."""

from __future__ import annotations

import itertools
from typing import Any

from .._core.optional import require
from .._core.report import byte_unit


def rich_columns(titles: tuple[str, str], halves: Any, styles: dict[str, str]) -> Any:
    """Lines of pieces in two columns, for `rich`."""
    table = require("rich.table", "rich", "this rendering")
    text = require("rich.text", "rich", "this rendering")
    box = require("rich.box", "rich", "this rendering")
    columns = []
    for half in halves:
        whole = text.Text("\n").join(
            [text.Text.assemble(*[(piece.text, styles.get(piece.style, "")) for piece in line]) for line in half]
        )
        columns.append(whole)
    grid = table.Table(box=box.MINIMAL, show_edge=False)
    for title in titles:
        grid.add_column(title, overflow="fold", ratio=1)
    grid.add_row(*columns)
    return grid


def plot_comparison(comparison: Any, ax: Any) -> None:
    """Memory against recomputation, with the frontier."""
    rows = list(comparison)
    is_temporary = all(row.temporary_bytes is not None for row in rows)
    scale, unit = byte_unit(max((row.memory for row in rows), default=1))
    points = [(row.recompute_ratio, row.memory / scale) for row in rows]
    best = sorted(point for point, row in zip(points, rows, strict=True) if row.is_best)
    rest = [point for point, row in zip(points, rows, strict=True) if not row.is_best]
    ax.plot(*_columns(best), "--", color="0.35", zorder=1)
    ax.plot(*_columns(best), "o", color="black", markersize=9, zorder=3, label="best trade-offs")
    if rest:
        ax.plot(*_columns(rest), "s", markerfacecolor="white", color="0.35", markersize=8, zorder=2, label="others")
    ax.set_xlabel("recomputation (FLOPs, times those without checkpoints)")
    ax.set_ylabel(f"{'temporaries' if is_temporary else 'residuals'} ({unit})")
    ax.margins(x=0.35, y=0.25)
    ax.set_ylim(bottom=0)
    ax.grid(color="0.9")
    ax.set_axisbelow(True)
    ax.legend(loc="best", frameon=True)
    _place_labels(ax, points, [row.name for row in rows], best)


def _columns(points: list[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


_OPAQUE = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}  # so that no line goes through a text


def _place_labels(ax: Any, points: list[tuple[float, float]], labels: list[str], line: list[Any]) -> None:
    """Writes a label beside each point, where it covers no other label, no point and no line."""
    transforms = require("matplotlib.transforms", "plot", "plot()")
    figure = ax.figure
    figure.canvas.draw()
    renderer = figure.canvas.get_renderer()
    taken = [ax.get_legend().get_window_extent(renderer)] if ax.get_legend() else []
    pixels = [tuple(ax.transData.transform(point)) for point in points]
    taken += [transforms.Bbox.from_extents(x - 7, y - 7, x + 7, y + 7) for x, y in pixels]
    lines = list(itertools.pairwise(tuple(ax.transData.transform(point)) for point in line))
    inside = ax.get_window_extent(renderer)
    look = {"textcoords": "offset points", "fontsize": 9, "bbox": _OPAQUE, "zorder": 5}
    thin = {"arrowstyle": "-", "color": "0.5", "linewidth": 0.7, "shrinkA": 0, "shrinkB": 3}

    def is_free(place: Any) -> bool:
        _, box, lead = place
        others = [other for other in taken if not (lead and _contains(other, _dot(lead[0])))]
        is_clear = lead is None or not any(_crosses(lead, other) for other in others)
        is_alone = not any(box.overlaps(other) for other in taken) and not any(_crosses(ends, box) for ends in lines)
        return _contains(inside, box) and is_alone and is_clear

    for i in sorted(range(len(points)), key=lambda i: (-points[i][1], points[i][0])):  # from top to bottom
        note = ax.annotate(labels[i], points[i], xytext=(0, 0), **look)
        places = _places(note, pixels[i], 72 / figure.dpi)
        offset, box, lead = next(filter(is_free, places), places[0])
        note.set_position(offset)
        taken.append(box)
        if lead is not None:
            lines.append(lead)
            end = ax.transData.inverted().transform(lead[1])
            ax.annotate("", points[i], xytext=tuple(end), arrowprops=thin, zorder=1)


def _places(note: Any, point: tuple[float, float], scale: float) -> list[tuple[Any, Any, Any]]:
    """Where a label may stand: its offset, its box, and the line to its point if that is not beside it."""
    box, found = note.get_window_extent(), []
    for is_near, offset in _offsets(box.width * scale, box.height * scale):
        note.set_position(offset)
        box = note.get_window_extent().padded(2)
        found.append((offset, box, None if is_near else (point, _nearest(point, box))))
    return found


def _offsets(width: float, height: float) -> Any:
    """Places for a label and whether they are beside the point, the nearest first.

    In points from the point to the lower left corner of the text.
    """
    middle = -height / 2
    yield from ((True, (9, middle)), (True, (-width - 9, middle)), (True, (-width / 2, 9)))
    yield True, (-width / 2, -height - 9)
    for ring in range(1, 12):
        shift = ring * (height + 1) / 2
        for x in (16, -width - 16):
            for y in (middle + shift, middle - shift):
                yield False, (x, y)


def _dot(point: tuple[float, float]) -> Any:
    """A point as a box without size."""
    return require("matplotlib.transforms", "plot", "plot()").Bbox.from_extents(*point, *point)


def _nearest(point: tuple[float, float], box: Any) -> tuple[float, float]:
    """The point of a box that is nearest to another point."""
    return min(max(point[0], box.x0), box.x1), min(max(point[1], box.y0), box.y1)


def _crosses(ends: Any, box: Any) -> bool:
    """Whether a straight line goes through the inside of a box."""
    start, end = ends
    low, high = 0.0, 1.0
    for a, b, least, most in ((start[0], end[0], box.x0, box.x1), (start[1], end[1], box.y0, box.y1)):
        if a == b:
            if not least < a < most:
                return False
            continue
        near, far = sorted(((least - a) / (b - a), (most - a) / (b - a)))
        low, high = max(low, near), min(high, far)
    return low < high


def _contains(outer: Any, inner: Any) -> bool:
    return inner.x0 >= outer.x0 and inner.x1 <= outer.x1 and inner.y0 >= outer.y0 and inner.y1 <= outer.y1


# Dark and light in turn, so that neighbours differ in grey; hatches tell the dark ones, and the light ones, apart.
_GREYSCALE_SAFE = ("#08306b", "#c6dbef", "#d94801", "#fdd0a2", "#238b45", "#c7e9c0", "#54278f", "#dadaeb")
_HATCHES = ("", "", "///", "///", "...", "...", "xxx", "xxx", "--", "--")
_SHOWN = 9  # groups with an entry of their own


def plot_timeline(line: Any, ax: Any) -> None:
    """Live bytes over the equations, stacked by source."""
    groups = _largest(line.groups, len(line))
    scale, unit = byte_unit(line.peak)
    steps = range(1, len(line) + 1)
    bottom = [0.0] * len(line)
    for i, (name, values) in enumerate(groups.items()):
        top = [low + value / scale for low, value in zip(bottom, values, strict=True)]
        colour = _GREYSCALE_SAFE[i % len(_GREYSCALE_SAFE)]
        hatch = _HATCHES[i % len(_HATCHES)]
        ax.fill_between(steps, bottom, top, step="mid", facecolor=colour, hatch=hatch, linewidth=0,
                        edgecolor="white" if i % 2 == 0 else "0.35",
                        label=name)  # fmt: skip
        bottom = top
    ax.step(steps, bottom, where="mid", color="black", linewidth=1.0)
    if 0 < line.boundary < len(line):
        ax.axvline(line.boundary + 0.5, color="black", linestyle=":", linewidth=1.0)
    ax.set_xlabel("equation of the program")
    ax.set_ylabel(f"alive ({unit}, estimate)")
    ax.set_xlim(1, max(len(line), 2))
    height = max(bottom, default=1.0) or 1.0
    ax.set_ylim(0, 1.3 * height)
    _annotate_peak(ax, line, height, unit)
    share = line.boundary / max(len(line), 1)
    for text, x in (("forward", share / 2), ("backward", (1 + share) / 2)):
        if 0 < line.boundary < len(line):
            ax.text(x, 0.985, text, transform=ax.transAxes, ha="center", va="top", fontsize=9, bbox=_OPAQUE, zorder=5)
    handles, labels = ax.get_legend_handles_labels()
    ax.legend(handles[::-1], labels[::-1], loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=8, frameon=False)


def _annotate_peak(ax: Any, line: Any, height: float, unit: str) -> None:
    at = line.peak_at + 1
    source = f" at {line[line.peak_at].source}" if len(line) and line[line.peak_at].source else ""
    side = "left" if at < 0.5 * len(line) else "right"
    ax.plot([at], [height], "v", color="black", markersize=7)
    ax.annotate(f"peak {height:.3g} {unit}{source}", (at, height), xytext=(0, 12), textcoords="offset points",
                ha=side, va="bottom", fontsize=9, bbox=_OPAQUE, zorder=5)  # fmt: skip


def _largest(groups: dict[str, list[int]], length: int) -> dict[str, list[int]]:
    """The groups that matter, the others as one."""
    ranked = sorted(groups, key=lambda name: -max(groups[name], default=0))
    shown = set(ranked if len(ranked) <= _SHOWN + 1 else ranked[:_SHOWN])
    rest = [values for name, values in groups.items() if name not in shown]
    kept = {name: values for name, values in groups.items() if name in shown}
    if rest:
        kept[f"{len(rest)} others"] = [sum(values[i] for values in rest) for i in range(length)]
    return kept
