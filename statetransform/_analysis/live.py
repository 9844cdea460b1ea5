"""How many bytes are alive at each equation of a gradient: an estimate before compilation.

The two halves are run in their order. A value is alive from the equation that computes it to the last one that uses
it; arguments, states and constants always. Views take no bytes, nor does an elementwise result that is used once, by
another elementwise operation or a reduction, since compilers fuse these. What a loop needs within one iteration is
there while the loop runs. The order of a compiler may be another one, and it reuses buffers where this does not.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import jax.extend.core as jex

from .._core import jaxcompat
from .origins import _FILLS as FILLS
from .rewrite import inlined
from .sizes import nbytes
from .sources import source_of
from .split import Split, without_dead_code
from .walk import inner_jaxprs

_VIEWS = frozenset(
    ("reshape", "squeeze", "expand_dims", "transpose", "broadcast_in_dim", "copy", "copy_p", "name", "reduce_precision",
     "optimization_barrier", "stop_gradient", "pvary", "sharding_constraint")
)  # fmt: skip
# Everything else that computes each element of its output from the elements at the same place.
_ELEMENTWISE = frozenset(
    ("add", "sub", "mul", "div", "neg", "sign", "abs", "max", "min", "pow", "integer_pow", "square", "sqrt",
     "rsqrt", "cbrt", "exp", "exp2", "expm1", "log", "log1p", "sin", "cos", "tan", "asin", "acos", "atan",
     "atan2", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "logistic", "erf", "erfc", "erf_inv",
     "select_n", "convert_element_type", "gt", "ge", "lt", "le", "eq", "ne", "and", "or", "xor", "not", "floor",
     "ceil", "round", "rem", "clamp", "is_finite", "add_any", "one_minus_square", "real", "imag", "conj",
     "complex", "nextafter", "mul_add", "iota")
)  # fmt: skip
_NAMED_STATES = 8  # more states than that are one group
_REDUCTIONS = frozenset(("reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or", "argmax"))


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


def moments(halves: Split) -> list[Moment]:
    """What is alive at each equation, forward half first.

    >>> from statetransform._analysis.split import split
    >>> from statetransform._analysis.staged import stage
    >>> import jax.numpy as jnp
    >>> found = moments(split(stage(lambda x: jnp.sin(x).sum(), (jnp.ones(4),), {})))
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
    run.add("forward", without_dead_code(forward, list(body.outvars)), body.outvars)
    for var, atom in zip(back.invars, residuals, strict=False):
        run.alias(var, atom)
    for var in back.invars[len(residuals) :]:
        run.hold(var, "cotangents")
    run.add("backward", without_dead_code(backward, list(back.outvars)), back.outvars)
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
                elif eqn.primitive.name in _VIEWS and nbytes(var.aval) == nbytes(eqn.invars[i].aval):
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
    name = eqn.primitive.name
    if name in _VIEWS or name in FILLS:
        return True
    user = users[0].primitive.name
    return name in _ELEMENTWISE and len(users) == 1 and (user in _ELEMENTWISE or user in _REDUCTIONS)


def _transient(eqn: Any) -> int:
    """What one run of the jaxprs inside an equation needs besides its inputs."""
    most = 0
    for inner in inner_jaxprs(eqn):
        body = jaxcompat.opened(inner.jaxpr)
        run = _Run()
        for var in (*body.invars, *body.constvars):
            run.hold(var, "inputs")
        run.add("inside", without_dead_code(inner.jaxpr, list(body.outvars)), body.outvars)
        held = sum(run._always.values())
        most = max(most, max((moment.bytes - held for moment in run.moments()), default=0))
    return most
