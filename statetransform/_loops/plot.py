"""A plan as a picture. The only module here that needs matplotlib, and only when something is drawn."""

from __future__ import annotations

from typing import Any, TypeAlias

from .._report.optional import require

Schedule: TypeAlias = Any  # the one of `plan`, which imports this module


def plot_schedule(plan: Schedule, ax: Any = None) -> Any:
    """Draws which step runs at which evaluation, and which carries are stored meanwhile; gives the axes."""
    if ax is None:
        pyplot = require("matplotlib.pyplot", "plot", "schedule.plot")
        _, ax = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    time, seen, since, away = 0, set(), {0: 0}, {}
    lines: dict[str, list[tuple[list[int], list[int]]]] = {"advance": [], "reverse": []}
    stored: list[tuple[int, int, int]] = []
    far: list[tuple[int, int, int]] = []
    for action in plan.actions:
        if action.kind in lines:
            length = action.stop - action.start
            lines[action.kind].append(([time, time + length], [action.start, action.stop]))
            time += length
        if action.kind in ("store", "read"):
            since[action.start] = time
        if action.kind == "write":
            away[action.start] = time
            since.pop(action.start, None)
        if action.kind == "read":
            far.append((action.start, away.pop(action.start), time))
        if action.kind == "reverse" and action.start in since:
            stored.append((action.start, since.pop(action.start), time))
    for carries, color, style, label in (
        (stored, "0.75", "solid", "stored carry"),
        (far, "tab:orange", "dotted", "carry far away"),
    ):
        for step, start, stop in carries:
            ax.hlines(step, start, stop, color=color, linestyle=style, linewidth=1, label=label)
            label = None
    for (kind, segments), color, width in zip(lines.items(), ("tab:blue", "black"), (1.2, 2.4), strict=True):
        for x, y in segments:
            ax.plot(x, y, color=color, linewidth=width, label=None if kind in seen else kind, solid_capstyle="butt")
            seen.add(kind)
    away_text = f", {plan.writes} far away" if plan.far else ""
    ax.set(
        xlabel="time (step evaluations)",
        ylabel="step",
        title=f"{plan.n} steps, {plan.k} stored carries{away_text}: {plan.evaluations} evaluations",
        ylim=(-0.02 * plan.n, 1.02 * plan.n),
    )
    ax.legend(loc="upper right", framealpha=0.9)
    return ax
