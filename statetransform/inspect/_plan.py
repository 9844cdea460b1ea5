"""The curve of what budgets cost: `policies.plan`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from .._base.table import Drawing, Records, Table
from .._memory.plans.candidates import Candidate
from .._memory.plans.choose import Planner, Planners
from .._memory.plans.measured import compiled_step
from .._memory.programs.references import made_in, refuse_references
from .._memory.programs.sizes import format_bytes, local_nbytes
from .._memory.targets import placed
from .._traces.shardings import sharding_of
from .._traces.tracebacks import boundary
from ._view import differentiated, view_of

_POINTS = 16


@dataclasses.dataclass(frozen=True)
class Point:
    """One plan on the curve.

    Attributes:
      planned_bytes: intermediates alive at the same time at most.
      compiled_bytes: temporary bytes of the compiled gradient step; None where that was not asked for.
      flops_over_plain: operations over those of plain differentiation.
    """

    planned_bytes: int
    compiled_bytes: int | None
    flops_over_plain: float


class Curve(Drawing, Records[Point]):
    """What less memory costs: plans from the plain program down to the least found.

    `plot` draws FLOPs over bytes. The plan does not count arguments, outputs and gradients: subtract them from what the
    device has to find a budget.

    Attributes:
      name: of the function.
      plain_bytes: temporary bytes of the compiled plain gradient step, None where that was not asked for.
      argument_bytes, output_bytes, gradient_bytes: of what is not in a plan.
      notes: what these figures do not know.
    """

    def __init__(
        self,
        name: str,
        points: Sequence[Point],
        plain_bytes: int | None,
        around: tuple[int, int, int],
        notes: Sequence[str] = (),
    ) -> None:
        super().__init__(points)
        self.notes: tuple[str, ...] = tuple(notes)
        self.name: str = name
        self.plain_bytes: int | None = plain_bytes
        self.argument_bytes: int = around[0]
        self.output_bytes: int = around[1]
        self.gradient_bytes: int = around[2]

    def table(self) -> Table:
        """What it prints: a row for each point."""
        has_compiled = any(point.compiled_bytes is not None for point in self)
        rows = []
        for p in self:
            compiled = "unknown" if p.compiled_bytes is None else format_bytes(p.compiled_bytes)
            flops = f"{p.flops_over_plain:.3f} x"
            rows.append([format_bytes(p.planned_bytes), *([compiled] if has_compiled else []), flops])
        sizes = zip(
            ("arguments", "outputs", "gradients"),
            (self.argument_bytes, self.output_bytes, self.gradient_bytes),
            strict=True,
        )
        return Table(
            f"{self.name}: what less memory costs in one gradient step",
            [">planned", *([">compiled"] if has_compiled else []), ">FLOPs"],
            rows,
            ["Besides: " + ", ".join(f"{what} {format_bytes(size)}" for what, size in sizes) + ".", *self.notes],
        )

    def _draw(self, ax: Any) -> None:
        at = [point.planned_bytes / 2**20 for point in self]
        ax.plot(at, [point.flops_over_plain for point in self], "o-", label="plan")
        ax.set(xlabel="bytes alive at most (MiB)", ylabel="FLOPs over plain", title=self.name)


@boundary
def plan(
    f: Callable[..., Any],
    /,
    *args: Any,
    argnums: Any = None,
    states: Any = None,
    compile: bool = False,
    target: Any = None,
    **kwargs: Any,
) -> Curve:
    """The trade-off between memory and recomputation of a function's gradient, before a budget is chosen.

    Args:
      f: a function, with states or without.
      `*args`, `**kwargs`: its arguments: arrays, `jax.ShapeDtypeStruct`, or objects that hold states.
      argnums, states: what to differentiate with respect to, as in `transform.grad`. Default: everything.
      compile: also compile each plan, and read its temporary bytes.
      target: the devices to compile for, if they are not there: a :class:`statetransform.Target`, its name ("H100"), or
        devices of a topology. Default: where the arguments are, or what JAX runs on.

    Returns:
      The points, the plain program first; prints as a table, and draws itself with `plot()`.

    Raises:
      TypeError: `f` is not callable, has nothing to differentiate, or makes a `jax.Ref`.
      ValueError: `f` differentiates a `while_loop`. Its number of steps is not known in advance, so neither is the cost
        of a plan. `fit` runs it within a budget.
      ValueError, ImportError, RuntimeError: `target` cannot be had; see :func:`statetransform.target`.

    Example:
      >>> import jax.numpy as jnp
      >>> from statetransform import policies
      >>> def loss(x, ws):
      ...     for w in ws:
      ...         x = jnp.tanh(x @ w)
      ...     return (x**2).sum()
      >>> curve = policies.plan(loss, jnp.ones((256, 32)), [jnp.ones((32, 32))] * 8)
      >>> curve[0].flops_over_plain, curve[-1].planned_bytes < curve[0].planned_bytes / 2
      (1.0, True)
    """
    view = view_of(f, args, kwargs, argnums, states, target)
    closed, pattern = differentiated(view)
    if not any(pattern.inputs) or not any(pattern.outputs):
        raise TypeError(f"plan: {view.name} has no floating-point argument or result, so it has no gradient to plan")
    refuse_references("plan", made_in(closed), "What runs by a plan has a derivative rule of its own")
    shardings = tuple(map(sharding_of, view.inputs))
    planner = Planners(closed, shardings, compile, target=view.target).of(pattern)
    points = _points(planner, compile)
    notes = view.target.notes if compile else []
    plain = planner.plain_bytes() if compile else None
    size = lambda avals: sum(map(local_nbytes, avals))
    inputs = placed(view.target, closed.in_avals, shardings)
    gradients = size(aval for aval, is_moved in zip(inputs, pattern.inputs, strict=True) if is_moved)
    return Curve(view.name, points, plain, (size(inputs), size(closed.out_avals), gradients), notes)


def _points(planner: Planner, is_compiled: bool) -> list[Point]:
    top = planner.versions.first.solver.plain
    found, least = list[Candidate](), top.bytes
    for some in planner.candidates.within(top.bytes):
        if some.plan.bytes < least and some.over_plain > (found[-1].over_plain if found else 1.0):
            found.append(some)
            least = some.plan.bytes
    if len(found) >= _POINTS:
        found = [found[round(k * (len(found) - 1) / (_POINTS - 2))] for k in range(_POINTS - 1)]
    points = [Point(top.bytes, planner.plain_bytes() if is_compiled else None, 1.0)]
    for some in found:
        step, version = some.step
        size = compiled_step(version.as_outermost(step), version).bytes if is_compiled else None
        points.append(Point(some.plan.bytes, size, some.over_plain))
    return points
