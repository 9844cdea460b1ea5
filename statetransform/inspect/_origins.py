"""The residuals, and where a value in a jaxpr comes from: an input, a constant, or the innermost equation.

JAX's own listing stops at the outermost equation, so that everything inside a loop or a compiled function is the
"output of scan" or the "output of jitted function", without its name and line. Here the value is followed inside.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Sequence
from typing import Any

import jax.extend.core as jex

from .. import _jax
from .._base.library import is_own_file
from .._memory.programs.primitives import Kind, kind_of, primitives_of
from .._memory.programs.sizes import nbytes
from .._memory.programs.sources import Source, is_library_code, source_of
from .._memory.programs.walk import counts_of_scan, given_name, inner_jaxprs, walk
from ._gradient import Halves
from ._view import Label


@dataclasses.dataclass(frozen=True)
class Origin:
    """Where a value comes from: an "input", a "constant" (which have an index), a "literal" or an "equation".

    `iterations` is how often a loop stacked it; `carried`, for the carry of a loop, the origin of its first value.
    """

    kind: str
    index: int = 0
    primitive: str | None = None
    name: str | None = None
    source: Source | None = None
    iterations: int = 1
    carried: Origin | None = None


class Origins:
    """Finds origins in one jaxpr, closed or open; `caller` is the line to use for what is in a library function."""

    def __init__(self, jaxpr: Any, caller: Source | None = None) -> None:
        body = _jax.opened(jaxpr)
        self._made = {var: (eqn, i) for eqn in body.eqns for i, var in enumerate(eqn.outvars)}
        self._inputs = {var: i for i, var in enumerate(body.invars)}
        self._constants = {var: i for i, var in enumerate(body.constvars)}
        self._caller = caller

    def of(self, atom: Any) -> Origin:
        """The origin of a variable or literal."""
        name = None
        while not isinstance(atom, jex.Literal):
            if atom in self._inputs:
                return Origin("input", self._inputs[atom], name=name)
            if atom in self._constants:
                return Origin("constant", self._constants[atom], name=name)
            eqn, i = self._made[atom]
            # A value that a policy marks, or moves to another memory, is still that value.
            is_same = _jax.given_name(eqn) is not None or kind_of(eqn) is Kind.PASSES
            if not is_same and eqn.primitive.name != "device_put":
                return dataclasses.replace(found := self._computed(eqn, i), name=name or found.name)
            name = name or given_name(eqn)
            atom = eqn.invars[i]
        return Origin("literal", name=name)

    def _computed(self, eqn: Any, i: int) -> Origin:
        source = self._caller or source_of(eqn)
        here = Origin("equation", primitive=eqn.primitive.name, source=source)
        kind = eqn.primitive.name
        if kind == "scan":
            return self._scanned(eqn, i, here)
        if kind == "cond":
            return self._branched(eqn, i, here)
        inner = [j for j in inner_jaxprs(eqn) if len(_jax.opened(j.jaxpr).outvars) == len(eqn.outvars)]
        if kind == "while":
            inner = inner[-1:]
        if len(inner) != 1 or (kind_of(eqn) is Kind.RULE and not is_own_file(_jax.function_of(inner[0].jaxpr)[1])):
            return here
        found = self._inside(inner[0].jaxpr, i, source)
        if found.kind == "input":
            n_inputs = len(_jax.opened(inner[0].jaxpr).invars)
            if kind == "while" or n_inputs != len(eqn.invars):
                return here
            return dataclasses.replace(outside := self.of(eqn.invars[found.index]), name=found.name or outside.name)
        return dataclasses.replace(found, source=found.source or source)

    def _inside(self, jaxpr: Any, i: int, source: Source | None) -> Origin:
        body = _jax.opened(jaxpr)
        # The inside of a library function has the stack of its first call, wherever that was.
        return Origins(jaxpr, source if is_library_code(body) else self._caller).of(body.outvars[i])

    def _scanned(self, eqn: Any, i: int, here: Origin) -> Origin:
        n_consts, n_carry = counts_of_scan(eqn)
        times = int(eqn.params["length"]) if i >= n_carry else 1
        found = self._inside(eqn.params["jaxpr"], i, here.source)
        if found.kind == "input":
            before = self.of(eqn.invars[found.index])
            if n_consts <= found.index < n_consts + n_carry:
                return dataclasses.replace(here, iterations=times, carried=before, name=found.name)
            return dataclasses.replace(before, name=found.name or before.name)
        return dataclasses.replace(found, source=found.source or here.source, iterations=found.iterations * times)

    def _branched(self, eqn: Any, i: int, here: Origin) -> Origin:
        found = [self._inside(branch.jaxpr, i, here.source) for branch in inner_jaxprs(eqn)]
        best = max(found, key=_says)
        if best.kind == "input":
            return self.of(eqn.invars[best.index + 1])
        return dataclasses.replace(best, source=best.source or here.source)


def _says(origin: Origin) -> int:
    """How much an origin tells about a value that comes out of several branches."""
    if origin.kind == "equation":
        return 3 if origin.name else 0 if origin.primitive in primitives_of(Kind.FILL) else 2
    return 1 if origin.kind == "input" else 0


@dataclasses.dataclass(frozen=True)
class Residual:
    """One array that reverse mode keeps.

    Attributes:
      shape: its shape; inside a loop, the number of iterations comes first.
      dtype: its dtype, as text.
      bytes: its size in total.
      kind: "argument", "state", "constant", "computed" or "named".
      name: that of the argument or state, or the one given by `checkpoint_name`.
      state: the state whose value it is, on entry or in each iteration of a loop.
      primitive: what computed it; None for arguments, states and constants.
      file, line, function: the user's code that computed it; for a state, that created it.
      iterations: in how many iterations of a loop it is kept.
    """

    shape: tuple[int, ...]
    dtype: str
    bytes: int
    kind: str
    name: str | None
    state: str | None
    primitive: str | None
    file: str | None
    line: int | None
    function: str | None
    iterations: int
    listed: str = dataclasses.field(repr=False, compare=False)

    @property
    def source(self) -> str | None:
        """File name and line."""
        return None if self.file is None or self.line is None else Source(self.file, self.line, "").short

    @property
    def per_iteration(self) -> int:
        """The bytes of one iteration of the loop, or in total outside of loops."""
        return self.bytes // max(self.iterations, 1)


def list_residuals(halves: Halves) -> list[Residual]:
    """A record for each residual, in JAX's order: literals, constants, inputs, and what was computed, as computed."""
    body, labels, origins = _jax.opened(halves.forward), halves.view.labels, Origins(halves.forward)
    made = {var: eqn for eqn in body.eqns for var in eqn.outvars}
    place = {var: i for i, var in enumerate((*body.constvars, *body.invars, *made))}
    found = []
    for atom in halves.residuals:
        producer = atom
        while not (is_literal := isinstance(producer, jex.Literal)):  # not all releases can hash them
            # JAX rounds a saved value with `reduce_precision`, and lists the value before the rounding.
            if (eqn := made.get(producer)) is None or eqn.primitive.name != "reduce_precision":
                break
            producer = eqn.invars[0]
        found.append((-1 if is_literal else place[producer], _record(atom, origins.of(atom), producer, labels, made)))
    return [record for _, record in sorted(found, key=lambda pair: pair[0])]


def _record(atom: Any, origin: Origin, producer: Any, labels: Sequence[Label], made: dict[Any, Any]) -> Residual:
    aval, eqn = atom.aval, None if isinstance(producer, jex.Literal) else made.get(producer)
    kind, name, state, source = "computed", origin.name, None, origin.source
    if origin.kind == "input":
        label = labels[origin.index]
        kind, name, source = label.kind, label.name, label.source
        state = label.name if label.kind == "state" else None
    elif origin.kind in ("constant", "literal"):
        kind = "constant"
    elif origin.name is not None:
        kind = "named"
    before = origin.carried
    if before is not None and before.kind == "input" and labels[before.index].kind == "state":
        state = labels[before.index].name
        name = name or state
    return Residual(
        shape=tuple(getattr(aval, "shape", ())),
        dtype=str(getattr(aval, "dtype", type(aval).__name__)),
        bytes=nbytes(aval),
        kind=kind,
        name=name,
        state=state,
        primitive=origin.primitive,
        file=source.file if source else None,
        line=source.line if source else None,
        function=source.function if source and kind != "state" else None,
        iterations=origin.iterations,
        listed=f"{_jax.type_text(aval, short=True)} {_line(origin, eqn, labels)}",
    )


def _line(origin: Origin, eqn: Any, labels: Sequence[Label]) -> str:
    """The rest of a line as JAX prints it, with states by name, and with the names and lines inside loops."""
    source = f"a {origin.kind}"
    if origin.kind == "input":
        label = labels[origin.index]
        source = f"the argument {label.name}" if label.kind == "argument" else f"the state {label.name!r}"
    if eqn is None:
        return f"from {source}"
    name = eqn.primitive.name
    own = source_of(eqn) if _jax.given_name(eqn) is not None else origin.source
    # An input that only passes through has no line of its own: the line is then that of what it comes out of.
    own = own or next((site.source for site in walk(types.SimpleNamespace(eqns=[eqn])) if site.source), None)
    place = f" from {own.full}" if own else ""
    if origin.name is not None:
        inside = f" (in {origin.iterations} iterations of {name})" if origin.iterations > 1 else ""
        return f"named {origin.name!r}{place}{inside}"
    what = f"jitted function {eqn.params['name']!r}" if name == "jit" else name
    if origin.kind == "equation" and (kind_of(eqn) is Kind.RULE or _jax.given_name(eqn) is not None):
        what = origin.primitive
    passed = f" ({source})" if origin.kind == "input" else ""
    return f"output of {what}{place}{passed}"
