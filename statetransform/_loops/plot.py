"""A plan as a picture."""

from __future__ import annotations

from typing import Any, TypeAlias

Schedule: TypeAlias = Any  # the one of `plan`, which imports this module


def draw_schedule(plan: Schedule, ax: Any) -> None:
    """Draws which step runs at which evaluation, and which carries are stored meanwhile."""
    time, since, away = 0, {0: 0}, {}
    lines: dict[str, list[Any]] = {"advance": [], "reverse": []}
    carries: dict[str, list[tuple[int, int, int]]] = {"stored carry": [], "carry far away": []}
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
            carries["carry far away"].append((action.start, away.pop(action.start), time))
        if action.kind == "reverse" and action.start in since:
            carries["stored carry"].append((action.start, since.pop(action.start), time))
    for (label, found), color, style in zip(carries.items(), ("0.75", "tab:orange"), ("solid", "dotted"), strict=True):
        if found:
            ax.hlines(*zip(*found, strict=True), color=color, linestyle=style, linewidth=1, label=label)
    for (kind, segments), color, width in zip(lines.items(), ("tab:blue", "black"), (1.2, 2.4), strict=True):
        for i, (x, y) in enumerate(segments):
            label = None if i else kind
            ax.plot(x, y, color=color, linewidth=width, label=label, solid_capstyle="butt")
    far = f", {plan.writes} far away" if plan.far else ""
    ax.set(
        xlabel="time (step evaluations)",
        ylabel="step",
        title=f"{plan.n} steps, {plan.k} stored carries{far}: {plan.evaluations} evaluations",
        ylim=(-0.02 * plan.n, 1.02 * plan.n),
    )
    ax.legend(loc="upper right", framealpha=0.9)
