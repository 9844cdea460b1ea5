"""The charts of the page of benchmarks, drawn by the build from `measured.json` and `models.json`."""

from __future__ import annotations

import json
import pathlib
import re
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


NAMES = {
    "vit": "ViT-B/16",
    "resnet": "ResNet-50",
    "unet": "U-Net",
    "gemma": "Gemma 3 270M",
    "mamba": "Mamba-2 130M",
    "lstm": "LSTM",
    "spiking": "spiking network",
    "wave": "waveform inversion",
}


def over_plain(rows: list[dict[str, Any]]) -> list[tuple[str, str, float, float, float, float]]:
    """Model, way, and bytes, FLOPs and seconds over those of the plain step, with the plain bytes at the end."""
    plain = {row["model"]: row for row in rows if row["way"] == "plain"}
    found = []
    for row in rows:
        base = plain[row["model"]]
        if row is not base and row.get("bytes") is not None:
            ratios = [row[key] / base[key] for key in ("bytes", "flops", "seconds")]
            found.append((row["model"], row["way"], *ratios, base["bytes"]))
    return found


def models(rows: list[dict[str, Any]]) -> None:
    """FLOPs against memory, both over the plain step, for models within budgets and with checkpoints by hand."""
    _, ax = plt.subplots(figsize=(7, 3.8), layout="constrained")
    found = over_plain(rows)
    for model in dict.fromkeys(row[0] for row in found):
        points = sorted((x, y) for name, way, x, y, *_ in found if name == model and way.startswith("budget"))
        by_hand = [(x, y) for name, way, x, y, *_ in found if name == model and not way.startswith("budget")]
        (line,) = ax.plot(*zip(*[*points, (1.0, 1.0)], strict=True), "o-", label=NAMES[model])
        if by_hand:
            ax.plot(*zip(*by_hand, strict=True), "x", color=line.get_color())
    ax.set(xlabel="memory over the plain step", ylabel="FLOPs over the plain step", xlim=(0, 1.05))
    ax.grid()
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=4)


def table_of_models(rows: list[dict[str, Any]]) -> str:
    """The same as a table in Markdown."""
    lines = ["| model | gradient step | memory | FLOPs | first call |", "| :--- | :--- | ---: | ---: | ---: |"]
    exceeded = {(row["model"], row["way"]) for row in rows if row.get("warned")}
    last = None
    for model, way, memory, flops, seconds, plain in over_plain(rows):
        if model != last:
            lines.append(f"| {NAMES[model]} | plain, {plain / 1e9:.1f} GB | 1.00 | 1.00 | 1.0 |")
        last = model
        warned = ", exceeded with a warning" if (model, way) in exceeded else ""
        lines.append(f"| | {way}{warned} | {memory:.2f} | {flops:.2f} | {seconds:.1f} |")
    refused = [row for row in rows if row.get("bytes") is None]
    lines += [f"| {NAMES[row['model']]} | {row['way']}: refused | | | |" for row in refused]
    return "\n".join(lines) + "\n"


def write(app: Any) -> None:
    """Draws the charts where the page finds them."""
    source = pathlib.Path(app.srcdir)
    tables, rows = (json.loads((source / name).read_text()) for name in ("measured.json", "models.json"))
    folder = source / "pictures" / "_charts"
    folder.mkdir(exist_ok=True)
    (folder / "models.md").write_text(table_of_models(rows))
    for chart, data in ((dispatch, tables), (loops, tables), (models, rows)):
        with plt.rc_context({**STYLE, "font.size": 11, "svg.hashsalt": chart.__name__}):
            chart(data)
            plt.savefig(folder / f"{chart.__name__}.svg", metadata={"Date": None})
            plt.close()


def setup(app: Any) -> dict[str, bool]:
    app.connect("builder-inited", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
