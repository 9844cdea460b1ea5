"""Where a value in a jaxpr comes from: an input, a constant, or the innermost equation that computed it.

JAX's own listing stops at the outermost equation, so that everything inside a loop or a compiled function is the
"output of scan" or the "output of jitted function", without its name and line. Here the value is followed inside.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.extend.core as jex

from .._core import jaxcompat
from .sources import Source, is_library_code, source_of
from .walk import inner_jaxprs

# What only passes a value on.
_THROUGH = frozenset({"reduce_precision", "optimization_barrier", "pvary", "copy_p"})
# What fills a branch of a conditional where the other one has a residual.
_FILLS = frozenset({"broadcast_in_dim", "empty", "empty2", "full", "iota"})


@dataclasses.dataclass(frozen=True)
class Origin:
    """Where a value comes from.

    Attributes:
        kind: "input", "constant", "literal" or "equation".
        index: of the input or the constant.
        primitive: of the equation that computed the value, behind any name.
        name: that `checkpoint_name` gave it.
        source: the user's line.
        iterations: how often a loop stacked it; 1 outside of loops.
        carried: for the carry of a loop, the origin of its value before the loop.
        outer: the outermost equation that the value comes out of, the one that JAX's listing shows.
    """

    kind: str
    index: int = 0
    primitive: str | None = None
    name: str | None = None
    source: Source | None = None
    iterations: int = 1
    carried: Origin | None = None
    outer: Any = None


class Origins:
    """Finds origins in one jaxpr, closed or open.

    Args:
        jaxpr: the jaxpr.
        caller: the line to use for what is in a library function.
    """

    def __init__(self, jaxpr: Any, caller: Source | None = None) -> None:
        body = jaxcompat.opened(jaxpr)
        self._made = {var: (eqn, i) for eqn in body.eqns for i, var in enumerate(eqn.outvars)}
        self._inputs = {var: i for i, var in enumerate(body.invars)}
        self._constants = {var: i for i, var in enumerate(body.constvars)}
        self._caller = caller

    def of(self, atom: Any) -> Origin:
        """The origin of a variable or literal.

        >>> import jax, jax.numpy as jnp
        >>> jaxpr = jax.make_jaxpr(jax.jit(lambda x: (jnp.sin(x), x)))(1.0).jaxpr
        >>> found = Origins(jaxpr)
        >>> [(o.kind, o.primitive) for o in map(found.of, jaxpr.outvars)]
        [('equation', 'sin'), ('input', None)]
        """
        name = None
        while not isinstance(atom, jex.Literal):
            if atom in self._inputs:
                return Origin("input", self._inputs[atom], name=name)
            if atom in self._constants:
                return Origin("constant", self._constants[atom], name=name)
            eqn, i = self._made[atom]
            given = jaxcompat.name_of(eqn)
            if given is None and eqn.primitive.name not in _THROUGH:
                return dataclasses.replace(found := self._computed(eqn, i), name=name or found.name)
            name = name or given
            atom = eqn.invars[i if len(eqn.outvars) > 1 else 0]
        return Origin("literal", name=name)

    def _computed(self, eqn: Any, i: int) -> Origin:
        source = self._caller or source_of(eqn)
        here = Origin("equation", primitive=eqn.primitive.name, source=source, outer=eqn)
        kind = eqn.primitive.name
        if kind == "scan":
            return self._scanned(eqn, i, here)
        if kind == "cond":
            return self._branched(eqn, i, here)
        inner = [j for j in inner_jaxprs(eqn) if len(jaxcompat.opened(j.jaxpr).outvars) == len(eqn.outvars)]
        if kind == "while":
            inner = inner[-1:]
        if len(inner) != 1 or kind.startswith("custom_"):
            return here
        found = self._inside(inner[0].jaxpr, i, source)
        if found.kind == "input":
            n_inputs = len(jaxcompat.opened(inner[0].jaxpr).invars)
            if kind == "while" or n_inputs != len(eqn.invars):
                return here
            return dataclasses.replace(outside := self.of(eqn.invars[found.index]), name=found.name or outside.name)
        return dataclasses.replace(found, outer=eqn, source=found.source or source)

    def _inside(self, jaxpr: Any, i: int, source: Source | None) -> Origin:
        body = jaxcompat.opened(jaxpr)
        # The inside of a library function has the stack of its first call, wherever that was.
        return Origins(jaxpr, source if is_library_code(body) else self._caller).of(body.outvars[i])

    def _scanned(self, eqn: Any, i: int, here: Origin) -> Origin:
        body, length = jaxcompat.opened(eqn.params["jaxpr"]), int(eqn.params["length"])
        is_stacked = [_rank(outer) > _rank(inner) for outer, inner in zip(eqn.outvars, body.outvars, strict=True)]
        n_carry = is_stacked.count(False)
        n_xs = sum(_rank(outer) > _rank(inner) for outer, inner in zip(eqn.invars, body.invars, strict=True))
        first_carry = len(body.invars) - n_xs - n_carry
        times = length if is_stacked[i] else 1
        found = self._inside(eqn.params["jaxpr"], i, here.source)
        if found.kind == "input":
            before = self.of(eqn.invars[found.index])
            if first_carry <= found.index < first_carry + n_carry:
                return dataclasses.replace(here, iterations=times, carried=before, name=found.name)
            return dataclasses.replace(before, outer=eqn, name=found.name or before.name)
        return dataclasses.replace(
            found, outer=eqn, source=found.source or here.source, iterations=found.iterations * times
        )

    def _branched(self, eqn: Any, i: int, here: Origin) -> Origin:
        found = [self._inside(branch.jaxpr, i, here.source) for branch in inner_jaxprs(eqn)]
        best = max(found, key=_says)
        if best.kind == "input":
            return dataclasses.replace(self.of(eqn.invars[best.index + 1]), outer=eqn)
        return dataclasses.replace(best, outer=eqn, source=best.source or here.source)


def _says(origin: Origin) -> int:
    """How much an origin tells about a value that comes out of several branches."""
    if origin.kind == "equation":
        return 3 if origin.name else 2 if origin.primitive not in _FILLS else 0
    return 1 if origin.kind == "input" else 0


def _rank(var: Any) -> int:
    return len(getattr(var.aval, "shape", ()))
