"""One palette for all pictures: ink and colours that are legible on a light page and on a dark one."""

from __future__ import annotations

import matplotlib
from cycler import cycler

INK, BLUE, ORANGE, GREEN = "#7b828c", "#2f86d2", "#e08a00", "#2a9d6f"
PURPLE, RED, GREY = "#b8559a", "#d2504b", "#9aa0a6"
STYLE = {
    **{f"{part}.color": INK for part in ("text", "xtick", "ytick", "grid")},
    **dict.fromkeys(("axes.edgecolor", "axes.labelcolor"), INK),
    **dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor", "legend.facecolor"), "none"),
    "legend.edgecolor": "none",
    "axes.prop_cycle": cycler(color=[BLUE, ORANGE, GREEN, PURPLE, RED]),
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.alpha": 0.3,
}
matplotlib.use("agg")
