"""`timeline`: what is alive through the forward and the backward pass."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import jax.extend.core as jex

from .. import _jax
from .._base.table import Drawing, Records, Table
from .._memory.plans.build import build
from .._memory.plans.gradient import flattened
from .._memory.plans.joint import Joint
from .._memory.plans.simulate import lifetimes
from .._memory.programs.primitives import Kind, kind_of
from .._memory.programs.sizes import byte_unit, format_bytes, local_nbytes
from .._memory.programs.sources import source_of
from .._traces.tracebacks import boundary
from ._gradient import GradientStep
from ._view import Label, view_of

_NAMED_STATES = 8  # more states than that are one group


@dataclasses.dataclass(frozen=True)
class Moment:
    """One operation of the gradient step: which it is, and what is alive while it runs, in bytes by group.

    An operation is an equation, with the elementwise ones that compilers fuse with it.
    """

    phase: str
    primitive: str
    source: str | None
    live: dict[str, int]

    @property
    def bytes(self) -> int:
        """All that is alive."""
        return sum(self.live.values())


def moments(step: GradientStep, labels: Sequence[Label]) -> list[Moment]:
    """What is alive at each operation, in the order of the program."""
    joint = _joint(step)
    graph, order = joint.graph, joint.graph.plain
    sizes = dict(enumerate(graph.sizes)) | dict(graph.buffers)
    last = [graph.nodes[i].eqns[-1] for i in order]  # the equations that give the operations their names
    sources = [source.short if (source := source_of(eqn)) else None for eqn in last]
    changes: list[Counter[str]] = [Counter() for _ in range(len(order) + 1)]
    for value, begin, end in lifetimes(graph, order):
        group = sources[begin] or "elsewhere"
        changes[begin][group] += sizes[value]
        if value not in graph.results | graph.gradients:  # these stay
            changes[end + 1][group] -= sizes[value]
    now, found = _given(joint, labels), []
    for t, (i, eqn) in enumerate(zip(order, last, strict=True)):
        node = graph.nodes[i]
        now.update(changes[t])
        live = {group: size for group, size in now.items() if size}
        if node.scratch:
            live["within loops" if kind_of(eqn) is Kind.LOOP else "within operations"] = node.scratch
        found.append(Moment("backward" if node.is_backward else "forward", eqn.primitive.name, sources[t], live))
    return found


def _joint(step: GradientStep) -> Joint:
    """The graph of a step in which checkpoints recompute their values in the backward pass."""
    pattern, body = step.version.pattern, _jax.opened(step.jaxpr)
    cotangents = set(body.invars[len(pattern.inputs) :])
    is_late = [any(not isinstance(a, jex.Literal) and a in cotangents for a in eqn.invars) for eqn in body.eqns]
    forward = body.eqns[: is_late.index(True)] if any(is_late) else body.eqns
    consts = dict(zip(body.constvars, _jax.consts_of(step.jaxpr), strict=True))
    n_forward = len(_jax.opened(flattened(_jax.with_equations(body, forward, [], consts))).eqns)
    return build(flattened(step.jaxpr), pattern, n_forward=n_forward)


def _given(joint: Joint, labels: Sequence[Label]) -> Counter[str]:
    """Bytes of what is there from the start to the end, by group."""
    many = sum(label.kind == "state" for label in labels) > _NAMED_STATES
    names = {"argument": "arguments", "state": "states"}
    groups = [names[x.kind] if x.kind == "argument" or many else f"state {x.name}" for x in labels]
    groups += ["cotangents"] * (len(joint.jaxpr.invars) - len(labels)) + ["constants"] * len(joint.jaxpr.constvars)
    found: Counter[str] = Counter()
    for group, var in zip(groups, [*joint.jaxpr.invars, *joint.jaxpr.constvars], strict=True):
        found[group] += local_nbytes(var.aval)
    return found


class Timeline(Drawing, Records[Moment]):
    """Live bytes at each operation; a sequence of moments, forward ones first.

    `plot` draws the live bytes over the operations, stacked by source, with the peak.

    Attributes:
      name: of the function.
      compiled: bytes of arguments, outputs and temporaries of the compiled gradient step, None where the backend does
          not say.

    Example:
      >>> from statetransform import inspect
      >>> import jax.numpy as jnp
      >>> line = inspect.timeline(lambda x: jnp.sin(x).sum(), jnp.ones(1024))
      >>> line.peak, line.boundary, line.groups["arguments"][0]
      (8200, 1, 4096)
    """

    _size: ClassVar[tuple[float, float]] = (8.5, 4.5)

    def __init__(self, name: str, found: Sequence[Moment], compiled: dict[str, int] | None) -> None:
        super().__init__(found)
        self.name: str = name
        self.compiled: dict[str, int] | None = compiled

    @property
    def peak(self) -> int:
        """The most bytes that are alive at once; an estimate."""
        return max((moment.bytes for moment in self), default=0)

    @property
    def peak_at(self) -> int:
        """The number of the operation with the peak, from 0."""
        return max(range(len(self)), key=lambda i: self[i].bytes, default=0)

    @property
    def boundary(self) -> int:
        """The number of operations of the forward pass."""
        return sum(moment.phase == "forward" for moment in self)

    @property
    def groups(self) -> dict[str, list[int]]:
        """Live bytes at each operation by source: arguments, states and constants first, then lines of code."""
        names = dict.fromkeys(name for moment in self for name in moment.live)
        always = [n for n in names if n in ("arguments", "states", "constants", "cotangents") or n.startswith("state ")]
        rest = sorted((n for n in names if n not in always), key=lambda n: -max(m.live.get(n, 0) for m in self))
        return {name: [moment.live.get(name, 0) for moment in self] for name in (*always, *rest)}

    def to_dicts(self) -> list[dict[str, Any]]:
        """One dict per operation."""
        return [{"step": i, **dataclasses.asdict(moment), "bytes": moment.bytes} for i, moment in enumerate(self)]

    def table(self) -> Table:
        """What is alive at the peak, by source."""
        notes = []
        if not len(self):
            return Table(f"{self.name} computes nothing", [], [])
        top = self[self.peak_at]
        place = f" of {top.source}" if top.source else ""
        title = (
            f"{self.name}: at most {format_bytes(self.peak)} alive (estimate), at operation {self.peak_at + 1} of "
            f"{len(self)}, {top.primitive}{place} in the {top.phase} pass; alive there:"
        )
        rows = [
            [name, format_bytes(values[self.peak_at]), f"{100 * values[self.peak_at] / max(self.peak, 1):.0f} %"]
            for name, values in self.groups.items()
            if values[self.peak_at]
        ]
        if self.compiled is not None:
            parts = ", ".join(f"{what} {format_bytes(size)}" for what, size in self.compiled.items())
            notes.append(f"The compiled program has {format_bytes(sum(self.compiled.values()))}: {parts}.")
        return Table(title, ["source", ">bytes", ">share"], rows, notes)

    def _draw(self, ax: Any) -> None:
        scale, unit = byte_unit(self.peak)
        steps, groups = range(1, len(self) + 1), _largest(self.groups)
        heights = [[value / scale for value in values] for values in groups.values()]
        ax.stackplot(steps, heights, labels=groups, step="mid", linewidth=0)
        ax.step(steps, [moment.bytes / scale for moment in self], where="mid", color="black", linewidth=1.0)
        if len(self):
            top = self[self.peak_at]
            ax.set_title(f"peak {format_bytes(self.peak)}{f' at {top.source}' if top.source else ''}", fontsize=10)
            ax.plot([self.peak_at + 1], [self.peak / scale], "v", color="black", markersize=7)
        if 0 < self.boundary < len(self):
            ax.axvline(self.boundary + 0.5, color="black", linestyle=":", label="forward | backward")
        ax.set(xlabel="operation of the program", ylabel=f"alive ({unit}, estimate)", xlim=(1, max(len(self), 2)))
        ax.set_ylim(bottom=0)
        handles, labels = ax.get_legend_handles_labels()
        ax.legend(handles[::-1], labels[::-1], loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=8, frameon=False)


_SHOWN = 9  # groups with an entry of their own in the legend


def _largest(groups: dict[str, list[int]]) -> dict[str, list[int]]:
    """The groups that matter, the others as one."""
    ranked = sorted(groups, key=lambda name: -max(groups[name], default=0))
    shown = set(ranked if len(ranked) <= _SHOWN + 1 else ranked[:_SHOWN])
    rest = [values for name, values in groups.items() if name not in shown]
    kept = {name: values for name, values in groups.items() if name in shown}
    return kept | ({f"{len(rest)} others": list(map(sum, zip(*rest, strict=True)))} if rest else {})


@boundary
def timeline(
    f: Callable[..., Any],
    /,
    *args: Any,
    argnums: Any = None,
    states: Any = None,
    compile: bool = True,
    **kwargs: Any,
) -> Timeline:
    """Live bytes through the forward and the backward pass of a function, by the line that computed them.

    An estimate by the planner's simulator: the program before compilation, with elementwise chains and views fused. The
    report adds the sizes of the compiled program, which are exact but have no course over time.

    Args:
      f, `*args`, `argnums`, `states`, `**kwargs`: as for `residuals`.
      compile: False leaves out the sizes of the compiled program, and compiles nothing.

    Returns:
      A moment per operation, in bytes; prints what is alive at the peak; `plot()` draws the course.

    Raises:
      TypeError: `f` is not callable, or JAX cannot differentiate it at these arguments.

    References:
      https://docs.jax.dev/en/latest/gradient-checkpointing.html

    Example:
      >>> from statetransform import State, inspect
      >>> import jax.numpy as jnp
      >>> w = State(jnp.ones((64, 64)), name="w")
      >>> print(inspect.timeline(lambda x: jnp.sin(w.value @ x).sum(), jnp.ones(64)))
      <lambda>: at most 32... KiB alive (estimate), at operation ... in the backward pass; alive there:
      source ...
      state w ...
    """
    view = view_of(f, args, kwargs, argnums, states)
    step = GradientStep.of(view, compile)
    found = moments(step, view.labels)
    parts = {"arguments": "argument", "outputs": "output", "temporaries": "temporary"} if compile else {}
    sizes = {what: size for what, key in parts.items() if (size := step.bytes_of(key)) is not None}
    return Timeline(view.name, found, sizes if len(sizes) == 3 else None)
