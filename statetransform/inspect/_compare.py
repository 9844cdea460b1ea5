"""`compare`: what several checkpointings of a program keep, recompute and cost."""

from __future__ import annotations

import dataclasses
import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from .._core.report import Drawing, Report, Table
from .._core.tracebacks import boundary
from .._jaxpr.sizes import format_bytes, format_count
from .._planner.view import View, view_of
from ..policies._apply import checkpointed
from ..policies._policy import Policy
from ..policies._refuse import check_policy
from ._cost import Measured, Step, flops_of, step_of, without_checkpoints
from ._halves import halves_of
from ._origins import list_residuals
from ._render import plot_comparison


@dataclasses.dataclass(frozen=True)
class Candidate:
    """One way to differentiate a program.

    Attributes:
        name: as given.
        residual_bytes: what reverse mode keeps, in bytes.
        temporary_bytes: temporaries of the compiled gradient step; None where the backend does not say.
        flops: operations of the gradient step.
        recompute_ratio: `flops` divided by those of the same program with all checkpoints removed.
        time: of one run, in seconds; None if it was not asked for.
        is_best: whether no other candidate is as good in memory and operations, and better in one of them.
    """

    name: str
    residual_bytes: int
    temporary_bytes: int | None
    flops: float
    recompute_ratio: float
    time: float | None = None
    is_best: bool = False

    @property
    def memory(self) -> int:
        """The bytes to compare: temporaries, or residuals where these are not known."""
        return self.residual_bytes if self.temporary_bytes is None else self.temporary_bytes


class Comparison(Drawing, Report, Sequence[Candidate]):
    """Candidates in the order given; prints as a table, in which the best trade-offs have a star.

    `plot` draws memory against recomputation, with the frontier of the best trade-offs.
    """

    def __init__(self, rows: Sequence[Candidate], notes: Sequence[str]) -> None:
        self._rows = tuple(rows)
        self.notes: tuple[str, ...] = tuple(notes)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, str):
            return next(row for row in self._rows if row.name == index)
        return self._rows[index]

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def best(self) -> list[str]:
        """The names of the best trade-offs, least memory first."""
        return [row.name for row in sorted(self._rows, key=lambda row: row.memory) if row.is_best]

    def to_dicts(self) -> list[dict[str, Any]]:
        """One dict per candidate."""
        return [dataclasses.asdict(row) for row in self]

    def table(self) -> Table:
        """A row per candidate."""
        has_time = any(row.time is not None for row in self)
        columns = ["", "name", ">residuals", ">temporaries", ">FLOPs", ">recompute", *([">time"] if has_time else [])]
        rows = [
            [
                "*" if row.is_best else "",
                row.name,
                format_bytes(row.residual_bytes),
                "unknown" if row.temporary_bytes is None else format_bytes(row.temporary_bytes),
                format_count(row.flops),
                f"{row.recompute_ratio:.2f} x",
                *([_milliseconds(row.time)] if has_time else []),
            ]
            for row in self
        ]
        marked = frozenset(i for i, row in enumerate(self) if row.is_best)
        return Table(
            "one gradient step", columns, rows, ("* no other has less of both memory and FLOPs", *self.notes), marked
        )

    def _draw(self, ax: Any) -> None:
        plot_comparison(self, ax)


def _milliseconds(seconds: float | None) -> str:
    return "unknown" if seconds is None else f"{1e3 * seconds:.3g} ms"


@boundary
def compare(
    candidates: Mapping[str, Any],
    /,
    *args: Any,
    time: bool = False,
    argnums: Any = None,
    states: Any = None,
    compile: bool = True,
    **kwargs: Any,
) -> Comparison:
    """Which checkpointing is worth it: a row per candidate with what is kept, what is recomputed, and what it costs.

    Each gradient step is compiled, as by `cost`. FLOPs are the compiler's where no candidate has a loop, or else
    counted before compilation for all of them.

    Args:
      candidates: functions and policies by name. A policy (one of `policies`, or None for no checkpoint) stands for the
        first function among the candidates, with its whole body checkpointed under the policy; if there is none, for
        the function that comes first in `args`.
      `*args`, `**kwargs`: the arguments, as for `residuals`.
      time: also run each step a few times, and give the least time.
      argnums, states: what to differentiate with respect to, as for `residuals`. Policies are for the same gradient.
      compile: False compiles and runs nothing. FLOPs are then counted, and residuals stand for temporaries.

    Returns:
      The candidates, sizes in bytes and times in seconds; marks the best trade-offs between temporaries and FLOPs.

    Raises:
      TypeError: the candidates are not a mapping, one is neither function nor policy, or there is no function for the
        policies.
      ValueError: there are no candidates, or `time` is asked for without `compile`.

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
            "policies.dots_saveable}, x)`; what one function costs says `cost(f, x)`."
        )
    if time and not compile:
        raise ValueError("compare: only a compiled program can be timed; leave out `compile=False` or `time=True`")
    if not candidates:
        raise ValueError("compare takes at least one candidate: `compare({'plain': f}, x)`")
    base, args = _base(candidates, args)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        measured = _measure(candidates, base, lambda f: view_of(f, args, kwargs, argnums, states), compile)
    notes = list(dict.fromkeys(str(w.message) for w in caught if issubclass(w.category, UserWarning)))
    has_estimates = any(flops_of(compiled)[2] for _, _, compiled, _ in measured)
    if has_estimates:
        notes.append("FLOPs are an estimate: counted before compilation, loops as often as they run.")
    known: dict[str, float] = {}
    rows, merged = [], []
    for name, kept, compiled, plain in measured:
        flops = compiled.step.flops.operations if has_estimates else flops_of(compiled)[0]
        ratio = flops / (_plain_flops(plain, compiled, has_estimates, known) or 1)
        asked = compiled.step.flops.operations / (plain.plain_flops.operations or 1)
        if asked > 1.02 and ratio < 1 + 0.5 * (asked - 1):
            merged.append(f"{name} ({asked:.2f} x)")
        seconds = compiled.time() if time else None
        rows.append(Candidate(name, kept, compiled.bytes_of("temp"), flops, ratio, seconds))
    if merged:
        notes.append(
            f"The compiler has merged most of the recomputation that was asked for, and keeps the values instead, in "
            f"{', '.join(merged)}."
        )
    return Comparison(_with_best(rows), notes)


def _measure(
    candidates: Mapping[str, Any], base: Any, view: Callable[[Any], View], compile: bool
) -> list[tuple[str, int, Measured, Step]]:
    """For each candidate its name, what it keeps, its step, and the step without checkpoints."""
    measured = []
    of_base = view(base) if any(map(_is_policy, candidates.values())) else None
    for name, candidate in candidates.items():
        if of_base is not None and _is_policy(candidate):
            own, plain = _under(of_base, candidate), of_base
        else:
            own = plain = view(candidate)
        halves = halves_of(own)
        kept = sum(record.bytes for record in list_residuals(halves))
        unchecked = step_of(halves_of(without_checkpoints(plain)))
        measured.append((name, kept, step_of(halves).measured(compile), unchecked))
    return measured


def _plain_flops(plain: Step, compiled: Measured, is_estimate: bool, known: dict[str, float]) -> float:
    """The operations of the program without checkpoints, compiled once where candidates share it."""
    if is_estimate:
        return plain.plain_flops.operations
    if not compiled.step.has_checkpoints:
        return flops_of(compiled)[0]
    key = str(plain.jaxpr)
    if key not in known:
        known[key] = flops_of(plain.measured())[0]
    return known[key]


def _with_best(rows: list[Candidate]) -> list[Candidate]:
    """Marks the candidates that no other one dominates."""

    def is_better(a: Candidate, b: Candidate) -> bool:
        return a.memory <= b.memory and a.flops <= b.flops and (a.memory < b.memory or a.flops < b.flops)

    return [dataclasses.replace(row, is_best=not any(is_better(other, row) for other in rows)) for row in rows]


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
    check_policy(candidate)
    known = vars(jax.checkpoint_policies).values()
    if candidate is None or isinstance(candidate, Policy) or any(candidate is policy for policy in known):
        return True
    home = getattr(candidate, "__module__", None) or ""
    if home.startswith("jax."):  # made by a function of JAX
        return "checkpoint" in home and not hasattr(candidate, "__wrapped__")
    try:
        parameters = list(inspect.signature(candidate).parameters.values())
    except (TypeError, ValueError):
        return False
    # As JAX calls it: policy(primitive, *avals, **params).
    kinds = [parameter.kind.name for parameter in parameters]
    if len(kinds) != 3 or kinds[1:] != ["VAR_POSITIONAL", "VAR_KEYWORD"]:
        return False
    return parameters[0].name.lstrip("_").startswith("p")


def _under(view: View, policy: Any) -> View:
    """The whole function under a checkpoint with a policy; None is for no checkpoint."""
    if policy is None:
        return view
    again = checkpointed(lambda *xs: view.fun(*xs), policy=policy)
    return dataclasses.replace(view, fun=again)
