"""The charts of the page of benchmarks, drawn by the build from `measured.json`."""

from __future__ import annotations

import json
import pathlib
import re
from collections.abc import Callable
from typing import Any

import matplotlib.pyplot as plt
from palette import BLUE, GREEN, GREY, INK, ORANGE, PURPLE, STYLE

LOOKS = {
    "function": ("statetransform", BLUE),
    "equinox": ("equinox", GREEN),
    "brainstate": ("brainstate", ORANGE),
    "nnx": ("flax.nnx", PURPLE),
}
Table = dict[str, Any]


def dispatch(tables: dict[str, Table]) -> None:
    """Time of a compiled call over the number of states, for each package."""
    table = tables["Dispatch and the peers: time of a compiled call"]
    states = [int(re.match(r"\d+", row[0])[0]) for row in table["rows"]]  # type: ignore[index]
    _, ax = plt.subplots(figsize=(7, 3.6), layout="constrained")
    for name, (label, colour) in LOOKS.items():
        if name in table["columns"]:
            place = table["columns"].index(name)
            ax.plot(states, [float(row[place]) for row in table["rows"]], "o-", color=colour, label=label)
    ax.axhline(1, color=INK, linestyle="--", linewidth=1)
    ax.set(xscale="log", yscale="log", xlabel="states that a call writes", ylabel="time over hand-written JAX")
    ax.set_xticks(states, [str(n) for n in states])
    ax.set_yticks([1, 2, 5, 10, 20, 40], ["1", "2", "5", "10", "20", "40"])
    ax.minorticks_off()
    ax.grid()
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=4)


def loops(tables: dict[str, Table]) -> None:
    """Memory of the gradient of a loop against its time."""
    table = tables["matmul, 1000 steps, 20 stored carries"]
    columns = table["columns"]
    memory, time = columns.index("temporary MB"), columns.index("wall over plain")
    _, ax = plt.subplots(figsize=(7, 3.6), layout="constrained")
    for row in table["rows"]:
        is_ours = row[0] in ("checkpoint=20", "unknown length")
        x, y = float(row[time]), float(row[memory])
        ax.plot(x, y, "o", color=BLUE if is_ours else GREY, markersize=9)
        is_left = row[0] in ("unknown length",)
        place = {"xytext": (-8 if is_left else 8, 0), "ha": "right" if is_left else "left"}
        label = "while_loop, checkpoint=20" if is_left else row[0]
        ax.annotate(label, (x, y), textcoords="offset points", va="center", **place)
    ax.set(yscale="log", xlabel="time over the plain scan", ylabel="memory (MB)")
    ax.set_yticks([1, 10, 100], ["1", "10", "100"])
    ax.margins(x=0.25, y=0.15)
    ax.grid()


def models(tables: dict[str, Table]) -> None:
    """FLOPs over the plain step against memory over the plain step, for models within budgets."""
    table = tables["Models within a budget"]
    columns = table["columns"]
    name, memory, flops = 0, columns.index("memory over plain"), columns.index("FLOPs over plain")
    _, ax = plt.subplots(figsize=(7, 3.6), layout="constrained")
    for model in dict.fromkeys(row[name] for row in table["rows"]):
        rows = [row for row in table["rows"] if row[name] == model]
        points = sorted((float(row[memory]), float(row[flops])) for row in rows)
        ax.plot(*zip(*points, strict=True), "o-", label=model)
    ax.set(xlabel="memory over the plain step", ylabel="FLOPs over the plain step")
    ax.grid()
    ax.legend()


CHARTS: tuple[Callable[[dict[str, Table]], None], ...] = (dispatch, loops, models)


def write(app: Any) -> None:
    """Draws the charts where the page finds them."""
    source = pathlib.Path(app.srcdir)
    tables = json.loads((source / "measured.json").read_text())
    folder = source / "pictures" / "_charts"
    folder.mkdir(exist_ok=True)
    for chart in CHARTS:
        with plt.rc_context({**STYLE, "font.size": 11, "svg.hashsalt": chart.__name__}):
            try:
                chart(tables)
            except KeyError:  # not measured yet
                continue
            plt.savefig(folder / f"{chart.__name__}.svg", metadata={"Date": None})
            plt.close()


def setup(app: Any) -> dict[str, bool]:
    app.connect("builder-inited", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
