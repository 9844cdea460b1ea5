"""Draws the pictures of the gallery: python docs/draw.py NAME [options of the example]

Runs an example, and saves its figure twice: as the picture of its page, and one panel of it as the thumbnail. Both have
no background, and ink and colours that are legible on a light page and on a dark one.
"""

from __future__ import annotations

import pathlib
import runpy
import sys
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.colors import to_hex, to_rgba
from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpec
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.text import Text

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE / "_extensions"), str(HERE.parent / "examples")]
from palette import INK, STYLE  # noqa: E402

# The panel that becomes the thumbnail.
PANELS = {
    "data_parallel": 1,
    "landers": 1,
    "language_model": 1,
    "spiking_delays": 1,
    "waveform_inversion": 1,
}


def recoloured(figure: Any) -> None:
    """Black and dark grey lines, marks and frames take the colour of the ink; white behind texts goes."""
    dark = {"#000000", "#333333", "#4d4d4d", "#595959"}
    for artist in figure.findobj():
        if isinstance(artist, Text) and artist.get_bbox_patch() is not None:
            artist.get_bbox_patch().set_alpha(0)
        if isinstance(artist, Legend):
            artist.get_frame().set_alpha(0)
        if isinstance(artist, Line2D) and to_hex(artist.get_color()) == "#e6e6e6":  # of a grid
            artist.set(color=INK, alpha=0.3)
        for part in ("color", "markerfacecolor", "markeredgecolor", "edgecolor", "facecolor"):
            get, put = getattr(artist, f"get_{part}", None), getattr(artist, f"set_{part}", None)
            if get is None or put is None:
                continue
            found = get()
            if isinstance(found, str | tuple) and to_rgba(found)[3] and to_hex(found) in dark:
                put(INK)


def stacked(figure: Any) -> None:
    """At most two panels in a row, of a size that can be read on a phone, where a picture is 400 pixels wide."""
    panels = [ax for ax in figure.axes if ax.get_label() != "<colorbar>" and ax.get_subplotspec() is not None]
    if len(panels) < 2:
        figure.set_size_inches(5.6, 3.6)
        return
    columns = 1 if len(panels) == 2 else 2
    rows = -(-len(panels) // columns)
    grid = GridSpec(rows, columns, figure)
    for i, ax in enumerate(panels):
        is_alone = i == len(panels) - 1 and len(panels) % columns == 1
        ax.set_subplotspec(grid[i // columns, :] if is_alone else grid[i // columns, i % columns])
    figure.set_size_inches(6.2, 2.9 * rows)


def draw(figure: Any, name: str, save: Any) -> None:
    """Saves the picture and the thumbnail."""
    recoloured(figure)
    stacked(figure)
    save(figure, HERE / "pictures" / f"{name}.png", dpi=140, transparent=True)
    panels = [ax for ax in figure.axes if ax.get_label() != "<colorbar>"]
    chosen = panels[PANELS.get(name, 0)]
    for ax in figure.axes:
        if ax is not chosen:
            ax.remove()
    if (legend := chosen.get_legend()) is not None:
        legend.remove()
    chosen.set_subplotspec(GridSpec(1, 1, figure)[0])
    chosen.set_anchor("C")
    chosen.set_xlabel(chosen.get_xlabel().partition(" (FLOPs")[0])
    figure.set_size_inches(3.6, 2.25)
    folder = HERE / "pictures" / "thumbnails"
    folder.mkdir(exist_ok=True)
    save(figure, folder / f"{name}.png", dpi=200, transparent=True)


def main() -> None:
    name = sys.argv[1]
    plt.rcParams.update(STYLE)
    script = HERE.parent / "examples" / f"{name}.py"
    sys.argv = [str(script), *sys.argv[2:]]
    save = Figure.savefig
    Figure.savefig = lambda figure, *args, **options: draw(figure, name, save)  # type: ignore[method-assign]
    runpy.run_path(str(script), run_name="__main__")


if __name__ == "__main__":
    main()
