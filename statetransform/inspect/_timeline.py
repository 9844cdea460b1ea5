"""`timeline`: what is alive through the forward and the backward pass."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import jax.extend.core as jex

from .._core import jaxcompat
from .._core.report import Drawing, Report, Table
from .._core.tracebacks import boundary
from .._jaxpr.primitives import FUSED, VIEWS, Kind, kind_of
from .._jaxpr.rewrite import inlined
from .._jaxpr.sizes import format_bytes, nbytes
from .._jaxpr.sources import source_of
from .._jaxpr.walk import backward_slice, inner_jaxprs
from .._planner.view import view_of
from ._cost import step_of
from ._halves import Halves, halves_of
from ._render import plot_timeline

_NAMED_STATES = 8  # more states than that are one group


@dataclasses.dataclass(frozen=True)
class Moment:
    """One equation of the two halves: which it is, and what is alive while it runs, in bytes by group."""

    phase: str
    primitive: str
    source: str | None
    live: dict[str, int]

    @property
    def bytes(self) -> int:
        """All that is alive."""
        return sum(self.live.values())


def moments(halves: Halves) -> list[Moment]:
    """What is alive at each equation, forward half first.

    >>> from statetransform.inspect._halves import halves_of
    >>> from statetransform._planner.view import view_of
    >>> import jax.numpy as jnp
    >>> found = moments(halves_of(view_of(lambda x: jnp.sin(x).sum(), (jnp.ones(4),), {})))
    >>> [(m.phase, m.primitive, m.bytes) for m in found][:2]
    [('forward', 'sin', 20), ('forward', 'cos', 36)]
    """
    run = _Run()
    forward, backward = inlined(halves.forward), inlined(halves.backward())
    body, back = jaxcompat.opened(forward), jaxcompat.opened(backward)
    many = sum(label.kind == "state" for label in halves.labels) > _NAMED_STATES
    for var, label in zip(body.invars, halves.labels, strict=True):
        state = "states" if many else f"state {label.name}"
        run.hold(var, "arguments" if label.kind == "argument" else state)
    for var in (*body.constvars, *back.constvars):
        run.hold(var, "constants")
    first = halves.n_outputs + halves.n_auxiliary
    residuals = list(body.outvars)[first:]
    run.add("forward", backward_slice(forward, list(body.outvars)), body.outvars)
    for var, atom in zip(back.invars, residuals, strict=False):
        run.alias(var, atom)
    for var in back.invars[len(residuals) :]:
        run.hold(var, "cotangents")
    run.add("backward", backward_slice(backward, list(back.outvars)), back.outvars)
    run.keep([*list(body.outvars)[:first], *back.outvars])
    return run.moments()


class _Run:
    """Follows buffers through a sequence of equations."""

    def __init__(self) -> None:
        self._always: Counter[str] = Counter()
        self._roots: dict[Any, frozenset[Any]] = {}  # the buffers that a variable is, or is computed from when used
        self._born: dict[Any, tuple[int, int, str]] = {}  # buffer -> first step, bytes, group
        self._last: dict[Any, int] = {}
        self._steps: list[tuple[str, str, str | None, int]] = []

    def hold(self, var: Any, group: str) -> None:
        """A buffer that is not ours to free."""
        self._always[group] += nbytes(var.aval)
        self._roots[var] = frozenset()

    def alias(self, var: Any, atom: Any) -> None:
        """Another name for a buffer."""
        self._roots[var] = self._of(atom)

    def keep(self, atoms: list[Any]) -> None:
        """These are alive to the end."""
        for atom in atoms:
            self._use(atom, len(self._steps) - 1)

    def _of(self, atom: Any) -> frozenset[Any]:
        return frozenset() if isinstance(atom, jex.Literal) else self._roots.get(atom, frozenset())

    def _use(self, atom: Any, step: int) -> None:
        for root in self._of(atom):
            self._last[root] = max(step, self._last[root])

    def add(self, phase: str, eqns: list[Any], outputs: Any) -> None:
        """Appends the equations of one half."""
        is_output = {atom for atom in outputs if not isinstance(atom, jex.Literal)}
        users: dict[Any, list[Any]] = {}
        for eqn in eqns:
            for atom in eqn.invars:
                if not isinstance(atom, jex.Literal):
                    users.setdefault(atom, []).append(eqn)
        for eqn in eqns:
            step, source = len(self._steps), source_of(eqn)
            group = source.short if source else "elsewhere"
            for atom in eqn.invars:
                self._use(atom, step)
            for i, var in enumerate(eqn.outvars):
                if var not in users and var not in is_output:
                    continue
                if var not in is_output and _is_free(eqn, users[var]):
                    inputs = [eqn.invars[i]] if len(eqn.outvars) > 1 else eqn.invars
                    self._roots[var] = frozenset().union(*map(self._of, inputs))
                elif _is_view(eqn, i):
                    self._roots[var] = self._of(eqn.invars[i])
                else:
                    self._roots[var] = frozenset((var,))
                    self._born[var] = step, nbytes(var.aval), group
                    self._last[var] = step
            self._steps.append((phase, eqn.primitive.name, source.short if source else None, _transient(eqn)))

    def moments(self) -> list[Moment]:
        """The result."""
        changes: list[Counter[str]] = [Counter() for _ in range(len(self._steps) + 1)]
        for var, (step, size, group) in self._born.items():
            changes[step][group] += size
            changes[self._last[var] + 1][group] -= size
        now, found = Counter(self._always), []
        for change, (phase, primitive, source, transient) in zip(changes, self._steps, strict=False):
            now.update(change)
            live = {group: size for group, size in now.items() if size}
            if transient:
                live["within loops"] = transient
            found.append(Moment(phase, primitive, source, live))
        return found


def _is_free(eqn: Any, users: list[Any]) -> bool:
    """Whether a result is not materialised where it is used."""
    if kind_of(eqn) in VIEWS:
        return True
    return kind_of(eqn) in FUSED and len(users) == 1 and kind_of(users[0]) in (*FUSED, Kind.REDUCTION)


def _is_view(eqn: Any, i: int) -> bool:
    """Whether an output is the buffer of the operand at the same position."""
    if kind_of(eqn) not in VIEWS or i >= len(eqn.invars):
        return False
    return nbytes(eqn.outvars[i].aval) == nbytes(eqn.invars[i].aval)


def _transient(eqn: Any) -> int:
    """What one run of the jaxprs inside an equation needs besides its inputs."""
    most = 0
    for inner in inner_jaxprs(eqn):
        body = jaxcompat.opened(inner.jaxpr)
        run = _Run()
        for var in (*body.invars, *body.constvars):
            run.hold(var, "inputs")
        run.add("inside", backward_slice(inner.jaxpr, list(body.outvars)), body.outvars)
        held = sum(run._always.values())
        most = max(most, max((moment.bytes - held for moment in run.moments()), default=0))
    return most


class Timeline(Drawing, Report, Sequence[Moment]):
    """Live bytes at each equation; a sequence of moments, forward ones first.

    `plot` draws the live bytes over the equations, stacked by source, with the peak.

    Attributes:
        name: of the function.
        compiled: bytes of arguments, outputs and temporaries of the compiled gradient step, None where the backend does
            not say.

    Example:
      >>> from statetransform import inspect
      >>> import jax.numpy as jnp
      >>> line = inspect.timeline(lambda x: jnp.sin(x).sum(), jnp.ones(1024))
      >>> line.peak, line.boundary, line.groups["arguments"][0]
      (12296, 3, 4096)
    """

    def __init__(self, name: str, found: Sequence[Moment], compiled: dict[str, int] | None) -> None:
        self.name: str = name
        self.compiled: dict[str, int] | None = compiled
        self._moments = tuple(found)

    def __getitem__(self, index: Any) -> Any:
        return self._moments[index]

    def __len__(self) -> int:
        return len(self._moments)

    @property
    def peak(self) -> int:
        """The most bytes that are alive at once; an estimate."""
        return max((moment.bytes for moment in self), default=0)

    @property
    def peak_at(self) -> int:
        """The number of the equation at which that is, from 0."""
        return max(range(len(self)), key=lambda i: self[i].bytes, default=0)

    @property
    def boundary(self) -> int:
        """The number of equations of the forward pass."""
        return sum(moment.phase == "forward" for moment in self)

    @property
    def groups(self) -> dict[str, list[int]]:
        """Live bytes at each equation by source: arguments, states and constants first, then lines of code."""
        names = dict.fromkeys(name for moment in self for name in moment.live)
        always = [n for n in names if n in ("arguments", "states", "constants", "cotangents") or n.startswith("state ")]
        rest = sorted((n for n in names if n not in always), key=lambda n: -max(m.live.get(n, 0) for m in self))
        return {name: [moment.live.get(name, 0) for moment in self] for name in (*always, *rest)}

    def to_dicts(self) -> list[dict[str, Any]]:
        """One dict per equation."""
        return [{"step": i, **dataclasses.asdict(moment), "bytes": moment.bytes} for i, moment in enumerate(self)]

    def table(self) -> Table:
        """What is alive at the peak, by source."""
        notes = []
        if not len(self):
            return Table(f"{self.name} computes nothing", [], [])
        top = self[self.peak_at]
        place = f" of {top.source}" if top.source else ""
        title = (
            f"{self.name}: at most {format_bytes(self.peak)} alive (estimate), at equation {self.peak_at + 1} of "
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
        plot_timeline(self, ax)


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

    An estimate: the program before compilation is followed equation by equation, with elementwise chains and views
    fused. The compiled program's own sizes, which are exact but have no course over time, stand beside it.

    Args:
      f, `*args`, `argnums`, `states`, `**kwargs`: as for `residuals`.
      compile: False leaves out the sizes of the compiled program, and compiles nothing.

    Returns:
      A moment per equation, in bytes; prints what is alive at the peak; `plot()` draws the course.

    Raises:
      TypeError: `f` is not callable, or JAX cannot differentiate it at these arguments.

    References:
      https://docs.jax.dev/en/latest/gradient-checkpointing.html

    Example:
      >>> from statetransform import State, inspect
      >>> import jax.numpy as jnp
      >>> w = State(jnp.ones((64, 64)), name="w")
      >>> print(inspect.timeline(lambda x: jnp.sin(w.value @ x).sum(), jnp.ones(64)))
      <lambda>: at most 32... KiB alive (estimate), at equation ... in the backward pass; alive there:
      source ...
      state w ...
    """
    view = view_of(f, args, kwargs, argnums, states)
    halves = halves_of(view)
    found = moments(halves)
    if not compile:
        return Timeline(view.name, found, None)
    compiled = step_of(halves).measured()
    sizes = {what: compiled.bytes_of(key) for what, key in _PARTS.items()}
    known = {what: size for what, size in sizes.items() if size is not None}
    return Timeline(view.name, found, known if len(known) == len(sizes) else None)


_PARTS = {"arguments": "argument", "outputs": "output", "temporaries": "temp"}
