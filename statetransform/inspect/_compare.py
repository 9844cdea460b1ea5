"""`compare`: what several checkpointings of a program keep, recompute and cost."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from .._base.table import Drawing, Records, Table
from .._memory.loops.budget import MemoryBudget
from .._memory.policies._policy import Policy
from .._memory.policies._refuse import check_policy
from .._memory.programs.rewrite import program_of
from .._memory.programs.sizes import byte_unit, format_bytes, format_count
from .._traces.tracebacks import boundary
from ..transform._checkpoint import Around
from ._gradient import GradientStep, Halves
from ._origins import list_residuals
from ._view import View, view_of


@dataclasses.dataclass(frozen=True)
class Candidate:
    """One way to differentiate a program.

    Attributes:
      name: as given.
      residual_bytes: what reverse mode keeps, in bytes.
      temporary_bytes: temporaries of the compiled gradient step; None where the backend does not say.
      flops: operations of the gradient step.
      recompute_ratio: `flops` divided by those of the same program with all checkpoints removed.
      time: of one run, in seconds; None if it was not measured.
      seconds: the compiler's own estimate of that, which those of TPUs make; None from others.
      is_refused: whether the compiler refuses the step, as the device has too little memory.
      is_best: whether no other candidate is as good in memory and operations, and better in one of them.
    """

    name: str
    residual_bytes: int
    temporary_bytes: int | None
    flops: float
    recompute_ratio: float
    time: float | None = None
    is_best: bool = False
    seconds: float | None = None
    is_refused: bool = False

    @property
    def memory(self) -> int:
        """The bytes to compare: temporaries, or residuals where these are not known."""
        return self.residual_bytes if self.temporary_bytes is None else self.temporary_bytes


class Comparison(Drawing, Records[Candidate]):
    """Candidates in the order given; prints as a table, in which the best trade-offs have a star.

    `plot` draws memory against recomputation, with the frontier of the best trade-offs.
    """

    def __init__(self, rows: Sequence[Candidate], notes: Sequence[str]) -> None:
        super().__init__(rows)
        self.notes: tuple[str, ...] = tuple(notes)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, str):
            named = {row.name: row for row in self}
            if index not in named:
                raise KeyError(f"no candidate is called {index!r}; there are {', '.join(map(repr, named))}")
            return named[index]
        return super().__getitem__(index)

    @property
    def best(self) -> list[str]:
        """The names of the best trade-offs, least memory first."""
        return [row.name for row in sorted(self, key=lambda row: row.memory) if row.is_best]

    def table(self) -> Table:
        """A row per candidate."""
        has_time = any(row.time is not None for row in self)
        has_seconds = any(row.seconds is not None for row in self)
        columns = ["", "name", ">residuals", ">temporaries", ">FLOPs", ">recompute", *([">time"] if has_time else [])]
        columns += [">estimated time"] if has_seconds else []
        milliseconds = lambda seconds: "unknown" if seconds is None else f"{1e3 * seconds:.3g} ms"
        rows = [
            [
                "*" if row.is_best else "",
                row.name,
                format_bytes(row.residual_bytes),
                "unknown" if row.temporary_bytes is None else format_bytes(row.temporary_bytes) + " !" * row.is_refused,
                format_count(row.flops),
                f"{row.recompute_ratio:.2f} x",
                *([milliseconds(row.time)] if has_time else []),
                *([milliseconds(row.seconds)] if has_seconds else []),
            ]
            for row in self
        ]
        notes = ["* no other has less of both memory and FLOPs"]
        if any(row.is_refused for row in self):
            notes.append("! refused by the compiler, as the device has too little memory")
        return Table("one gradient step", columns, rows, (*notes, *self.notes))

    def _draw(self, ax: Any) -> None:
        scale, unit = byte_unit(max((row.memory for row in self), default=1))
        is_temporary = all(row.temporary_bytes is not None for row in self)
        best = sorted((row.recompute_ratio, row.memory / scale) for row in self if row.is_best)
        ax.plot([x for x, _ in best], [y for _, y in best], "--", color="0.35", zorder=1)
        for row, marker in zip(self, itertools.cycle("osD^vP*XpH<>"), strict=False):
            look = {"color": "black"} if row.is_best else {"color": "0.35", "markerfacecolor": "white"}
            label = f"{row.name} *" if row.is_best else row.name
            ax.plot(row.recompute_ratio, row.memory / scale, marker, markersize=8, label=label, clip_on=False, **look)
        ax.set_xlabel("recomputation (FLOPs, times those without checkpoints)")
        ax.set_ylabel(f"{'temporaries' if is_temporary else 'residuals'} ({unit})")
        ax.set_ylim(bottom=0)
        ax.grid(color="0.9")
        ax.set_axisbelow(True)
        ax.legend(title="* best trade-offs", loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)


@boundary
def compare(
    candidates: Mapping[str, Any],
    /,
    *args: Any,
    time: bool = False,
    argnums: Any = None,
    states: Any = None,
    compile: bool = True,
    target: Any = None,
    **kwargs: Any,
) -> Comparison:
    """Compares ways to checkpoint: a row per candidate with what is kept, what is recomputed, and what it costs.

    Each gradient step is compiled, as by `cost`. FLOPs are the compiler's where no candidate has a loop, or else
    counted before compilation for all of them.

    Args:
      candidates: functions and policies by name. A policy (one of `policies`, a budget, or None for no checkpoint)
        means the first function among the candidates, checkpointed as a whole under the policy. If there is none, it
        means the function that comes first in `args`.
      `*args`, `**kwargs`: the arguments, as for `residuals`.
      time: also run each step a few times, and give the least time.
      argnums, states: what to differentiate with respect to, as for `residuals`. Policies apply to the same gradient.
      compile: False compiles and runs nothing. FLOPs are then counted, and residuals replace temporaries.
      target: the devices to compile for, if they are not there: a :class:`statetransform.Target`, its name ("H100"), or
        devices of a topology. Default: where the arguments are, or what JAX runs on.
        Budgets among the candidates are planned for them, too.

    Returns:
      The candidates, sizes in bytes and times in seconds; marks the best trade-offs between temporaries and FLOPs.

    Raises:
      TypeError: the candidates are not a mapping, one is neither function nor policy, or there is no function for the
        policies.
      ValueError: there are no candidates, or `time` is given without `compile`, or for devices that are not there.
      ValueError, ImportError, RuntimeError: `target` cannot be had; see :func:`statetransform.target`.

    References:
      Chen et al., Training Deep Nets with Sublinear Memory Cost (2016), section 4.
      https://docs.jax.dev/en/latest/gradient-checkpointing.html

    Example:
      >>> from statetransform import State, inspect, policies, transform
      >>> import jax.numpy as jnp
      >>> w = State(jnp.full((64, 64), 0.01), name="w")
      >>> layer = lambda x: jnp.tanh(jnp.sin(w.value @ x))
      >>> def plain(x):
      ...     return layer(layer(layer(x))).sum()
      >>> def each(x):
      ...     again = transform.checkpoint(layer)
      ...     return again(again(again(x))).sum()
      >>> found = inspect.compare({"plain": plain, "each layer": each}, jnp.ones((64, 64)))
      >>> found["each layer"].residual_bytes < found["plain"].residual_bytes
      True
      >>> found["plain"].recompute_ratio
      1.0
    """
    if not isinstance(candidates, Mapping):
        what = "a function" if callable(candidates) else f"{candidates!r} of type {type(candidates).__name__}"
        raise TypeError(
            f"compare takes functions and policies by name, not {what}. Write `compare({{'plain': f, 'dots': "
            "policies.dots_saveable}, x)`; for the cost of a single function use `cost(f, x)`."
        )
    if time and not compile:
        raise ValueError("compare: only a compiled program can be timed; leave out `compile=False` or `time=True`")
    if not candidates:
        raise ValueError("compare takes at least one candidate: `compare({'plain': f}, x)`")
    base, args = _base(candidates, args)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ways = _ways(candidates, base, lambda f: view_of(f, args, kwargs, argnums, states, target), compile)
    notes = list(dict.fromkeys(str(w.message) for w in caught if issubclass(w.category, UserWarning)))
    is_estimate = any(step.flops_are_estimated for _, _, step, _ in ways)
    if is_estimate:
        notes.append("FLOPs are an estimate: counted before compilation, loops as often as they run.")
    where = ways[0][2].target
    if time and not where.is_here:
        raise ValueError(f"compare: a program for {where}, which is not there, cannot be timed; leave out `time=True`")
    notes += where.notes if compile else []
    rows = []
    for name, kept, step, plain in ways:
        flops = step.counted if is_estimate else step.flops
        ratio = flops / ((plain.needed if is_estimate else plain.flops) or 1)
        size, seconds = step.bytes_of("temporary"), step.time() if time else None
        said = (None, False) if step.compiled is None else (step.compiled.seconds, step.compiled.is_refused)
        rows.append(Candidate(name, kept, size, flops, ratio, seconds, False, *said))
    costs = [(math.inf if row.is_refused else row.memory, row.flops) for row in rows]
    beaten = lambda own: any(other != own and other[0] <= own[0] and other[1] <= own[1] for other in costs)
    best = [dataclasses.replace(row, is_best=not beaten(own)) for row, own in zip(rows, costs, strict=True)]
    return Comparison(best, notes)


def _ways(candidates: Mapping[str, Any], base: Any, view: Callable[[Any], View], compile: bool) -> Any:
    """A tuple for each candidate: its name, the bytes that it keeps, its step, and the same without checkpoints."""
    of_base = view(base) if any(map(_is_policy, candidates.values())) else None
    plains: dict[str, GradientStep] = {}  # what several candidates have in common is compiled once
    found = []
    for name, candidate in candidates.items():
        if of_base is not None and _is_policy(candidate):
            own, unchanged = _under(of_base, candidate), of_base
        else:
            own = unchanged = view(candidate)
        kept = sum(record.bytes for record in list_residuals(Halves(own)))
        step = GradientStep.of(own, compile)
        plain = (step if unchanged is own else GradientStep.of(unchanged, compile)).without_checkpoints()
        found.append((name, kept, step, plains.setdefault(str(plain.jaxpr), plain)))
    return found


def _base(candidates: Mapping[str, Any], args: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    """The function that the policies are for, and the arguments."""
    functions = [candidate for candidate in candidates.values() if not _is_policy(candidate)]
    if functions:
        return functions[0], args
    if args and callable(args[0]):
        return args[0], args[1:]
    raise TypeError(
        "compare: the candidates are policies only, and no function comes first in the arguments. Write "
        "`compare({'dots': policies.dots_saveable}, f, x)`, or put the function among the candidates."
    )


def _is_policy(candidate: Any) -> bool:
    """Whether a candidate is a policy and no function of the user's.

    Raises:
      TypeError: it is neither.
    """
    if isinstance(candidate, MemoryBudget):
        return True
    check_policy(candidate)
    known = vars(jax.checkpoint_policies).values()
    if candidate is None or isinstance(candidate, Policy) or any(candidate is policy for policy in known):
        return True
    try:
        parameters = list(inspect.signature(candidate).parameters.values())
    except (TypeError, ValueError):
        return False
    # As JAX's own are written: policy(prim, *avals, **params). A loss of (params, *batch, **options) is a function.
    kinds = [parameter.kind.name for parameter in parameters]
    if len(kinds) != 3 or kinds[1:] != ["VAR_POSITIONAL", "VAR_KEYWORD"]:
        return False
    return parameters[0].name.lstrip("_") in ("prim", "primitive")


def _under(view: View, policy: Any) -> View:
    """The whole function under a checkpoint with a policy; None is for no checkpoint."""
    if policy is None:
        return view

    def fun(*xs: Any) -> tuple[list[Any], list[Any]]:
        program, results, _ = program_of(view.fun, xs, {})
        checkpointed = Around(policy)(program, (xs, {}), (*results, []))
        return jax.tree.unflatten(jax.tree.structure(results), checkpointed(*xs))

    return dataclasses.replace(view, fun=fun)
