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
WIDTH = 5.6  # inches: letters are as large as those of the page where a picture is 400 pixels wide


def dispatch(tables: dict[str, Table]) -> None:
    """Time of a compiled call over the number of states, for each package."""
    table = tables["Dispatch and the peers: time of a compiled call"]
    states = [int(re.match(r"\d+", row[0])[0]) for row in table["rows"]]  # type: ignore[index]
    _, ax = plt.subplots(figsize=(WIDTH, 4), layout="constrained")
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
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2)


def loops(tables: dict[str, Table]) -> None:
    """Memory and time of the gradient of a loop: a row for each way, a panel for each quantity."""
    table = tables["matmul, 1000 steps, 20 stored carries"]
    rows = table["rows"][::-1]
    names = [{"unknown length": "while_loop, checkpoint=20"}.get(row[0], row[0]) for row in rows]
    colours = [BLUE if row[0] in ("checkpoint=20", "unknown length") else GREY for row in rows]
    panels = (("temporary MB", "memory of the gradient (MB)"), ("wall over plain", "time over the plain scan"))
    _, axes = plt.subplots(2, 1, figsize=(WIDTH, 5.8), layout="constrained")
    for ax, (column, label) in zip(axes, panels, strict=True):
        found = [float(row[table["columns"].index(column)]) for row in rows]
        ax.scatter(found, names, c=colours, s=50, zorder=2)
        for x, y in zip(found, names, strict=True):
            ax.annotate(f"{x:.3g}", (x, y), textcoords="offset points", xytext=(8, 0), va="center", fontsize=10)
        ax.set(xlabel=label)
        ax.grid(axis="y")
    axes[0].set(xscale="log", xlim=(1, 400))
    axes[0].set_xticks([1, 10, 100], ["1", "10", "100"])
    axes[1].set(xlim=(0.9, 2.0))


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
    """FLOPs against memory, both over the plain step: a panel for each model, within budgets and by hand."""
    found = over_plain(rows)
    shown = list(dict.fromkeys(row[0] for row in found))
    lines = -(-len(shown) // 2)
    figure, axes = plt.subplots(lines, 2, figsize=(WIDTH, 2.2 * lines + 0.5), layout="constrained")
    for ax, model in zip(axes.flat, shown, strict=False):
        points = sorted((x, y) for name, way, x, y, *_ in found if name == model and way.startswith("budget"))
        by_hand = [(x, y) for name, way, x, y, *_ in found if name == model and not way.startswith("budget")]
        ax.plot(*zip(*[*points, (1.0, 1.0)], strict=True), "o-", color=BLUE, label="a budget")
        if by_hand:
            ax.plot(*zip(*by_hand, strict=True), "x", color=ORANGE, markeredgewidth=2, label="checkpoints by hand")
        plain = next(row[-1] for row in found if row[0] == model)
        ax.set_title(f"{NAMES[model]}, {plain / 1e9:.3g} GB", fontsize=10)
        ax.set_xlim(0, 1.1 * max(x for x, _ in [*by_hand, (1.0, 1.0)]))
        ax.yaxis.set_major_formatter("{x:.2f}")
        ax.margins(y=0.15)
        ax.grid()
    for ax in axes.flat[len(shown) :]:
        ax.remove()
    figure.supxlabel("memory over the plain step", fontsize=11)
    figure.supylabel("FLOPs over the plain step", fontsize=11)
    handles = {
        label: handle for ax in figure.axes for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles.keys(), loc="outside upper center", ncols=2)


def table_of_models(rows: list[dict[str, Any]]) -> str:
    """The same as a table in Markdown."""
    lines = ["| model | gradient step | memory | FLOPs | first call |", "| :--- | :--- | ---: | ---: | ---: |"]
    exceeded = {(row["model"], row["way"]) for row in rows if row.get("warned")}
    last = None
    for model, way, memory, flops, seconds, plain in over_plain(rows):
        if model != last:
            lines.append(f"| {NAMES[model]} | plain, {plain / 1e9:.3g} GB | 1.00 | 1.00 | 1.0 |")
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
