"""The list of residuals: what reverse mode keeps from the forward pass for the backward pass."""

from __future__ import annotations

import dataclasses
from typing import Any

from .._core import jaxcompat
from .origins import Origin, Origins
from .sizes import nbytes
from .sources import Source, source_of
from .split import Split


@dataclasses.dataclass(frozen=True)
class Residual:
    """One array that reverse mode keeps.

    Attributes:
        shape: its shape; of a value inside a loop with the number of iterations in front.
        dtype: its dtype, as text.
        bytes: its size in total.
        kind: "argument", "state", "constant", "computed" or "named".
        name: of the argument or of the state, or the one that `checkpoint_name` gave.
        state: the state that it is the value of: at the start, or in each iteration of a loop.
        primitive: what computed it; None for what was there before.
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


def list_residuals(halves: Split) -> list[Residual]:
    """A record for each residual, in JAX's order: literals, constants, inputs, and what was computed, as computed.

    >>> from statetransform._analysis.staged import stage
    >>> from statetransform._analysis.split import split
    >>> import jax.numpy as jnp
    >>> [(r.kind, r.name or r.primitive) for r in list_residuals(split(stage(lambda x: jnp.sin(x) * x, (2.0,), {})))]
    [('argument', 'x'), ('computed', 'sin'), ('computed', 'cos')]
    """
    body = jaxcompat.opened(halves.forward)
    origins = Origins(halves.forward)
    place = {var: (1, i) for i, var in enumerate(body.constvars)}
    place |= {var: (2, i) for i, var in enumerate(body.invars)}
    outvars = (var for eqn in body.eqns for var in eqn.outvars)
    place |= {var: (3, i) for i, var in enumerate(outvars)}
    # JAX rounds a saved value with this behind it, and lists what is before.
    rounded = {eqn.outvars[0]: eqn.invars[0] for eqn in body.eqns if eqn.primitive.name == "reduce_precision"}
    made = {var: eqn for eqn in body.eqns for var in eqn.outvars}
    seen = [(atom, _through(rounded, atom)) for atom in halves.residuals]
    # Literals cannot be hashed in all releases, and stand first in JAX's list.
    order = sorted(seen, key=lambda pair: (0, 0) if hasattr(pair[1], "val") else place[pair[1]])
    return [_record(atom, origins.of(atom), producer, halves, made) for atom, producer in order]


def _through(rounded: dict[Any, Any], atom: Any) -> Any:
    """The atom behind the rounding."""
    while not hasattr(atom, "val") and atom in rounded:
        atom = rounded[atom]
    return atom


def _record(atom: Any, origin: Origin, producer: Any, halves: Split, made: dict[Any, Any]) -> Residual:
    aval, eqn = atom.aval, None if hasattr(producer, "val") else made.get(producer)
    kind, name, state, source = "computed", origin.name, None, origin.source
    if origin.kind == "input":
        label = halves.labels[origin.index]
        kind, name, source = label.kind, label.name, label.source
        state = label.name if label.kind == "state" else None
    elif origin.kind in ("constant", "literal"):
        kind = "constant"
    elif origin.name is not None:
        kind = "named"
    before = origin.carried
    if before is not None and before.kind == "input" and halves.labels[before.index].kind == "state":
        state = halves.labels[before.index].name
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
        listed=f"{aval.str_short(short_dtypes=True)} {_line(origin, producer, halves, eqn)}",
    )


def _line(origin: Origin, producer: Any, halves: Split, eqn: Any) -> str:
    """The rest of a line as JAX prints it, with states by name, and with the names and lines inside loops."""
    if hasattr(producer, "val"):
        return "from a literal"
    if eqn is None:
        inputs = list(jaxcompat.opened(halves.forward).invars)
        if producer not in inputs:
            return "from a constant"
        label = halves.labels[inputs.index(producer)]
        return f"from the argument {label.name}" if label.kind == "argument" else f"from the state {label.name!r}"
    name = eqn.primitive.name
    own = source_of(eqn) if jaxcompat.name_of(eqn) is not None else origin.source
    place = own.full if own else ""
    if origin.name is not None:
        inside = f" (in {origin.iterations} iterations of {name})" if origin.iterations > 1 else ""
        return f"named {origin.name!r} from {place}{inside}"
    if name == "jit":
        return f"output of jitted function {eqn.params['name']!r} from {place}"
    return f"output of {name} from {place}"
