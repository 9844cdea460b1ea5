"""One step split into the part that records residuals and the part that uses them."""

from __future__ import annotations

from typing import Any

import jax
import jax.extend.core as jex

from .._jaxcompat import eval_jaxpr, part_of
from .._jaxpr.walk import backward_slice
from .arrays import Leaves, is_differentiable, pick
from .step import Cotangents, Selected, Step


class Tape:
    """One step split into the part that records residuals and the part that uses them.

    Residuals that do not depend on carry or inputs are not recorded, nor are the inputs themselves. `avals` are the
    abstract values of what is.
    """

    def __init__(self, step: Step, selected: Selected, consts: Leaves, carry: Leaves, x: Leaves) -> None:
        self._jaxpr, self._tree = self._traced(step, selected, consts, carry, x)
        self._n = len(carry), len(carry) + len(step.y_avals)
        jaxpr = self._jaxpr.jaxpr
        self._x = jaxpr.invars[len(consts) + len(carry) :]
        residuals = jaxpr.outvars[self._n[1] :]
        moving = set(jaxpr.invars[len(consts) :])
        for eqn in jaxpr.eqns:
            if any(isinstance(v, jex.Var) and v in moving for v in eqn.invars):
                moving.update(eqn.outvars)
        self._residuals = residuals
        recorded = [v for v in residuals if isinstance(v, jex.Var) and v in moving and v not in self._x]
        self._recorded = list(dict.fromkeys(recorded))
        self._fixed = [v for v in residuals if isinstance(v, jex.Var) and v not in moving]
        self._fixed_jaxpr = part_of(jaxpr, jaxpr.invars[: len(consts)], self._fixed)
        self.avals: tuple[Any, ...] = tuple(v.aval for v in self._recorded)

    @staticmethod
    def _traced(step: Step, selected: Selected, consts: Leaves, carry: Leaves, x: Leaves) -> tuple[Any, Any]:
        """A step as a jaxpr whose last outputs are its residuals, and the treedef of their linear function."""
        trees = []

        def linearized(consts: Leaves, carry: Leaves, x: Leaves) -> Any:
            fun, arguments = step.of_selected(selected, consts, carry, x)

            def differentiable(*some: Leaves) -> Any:
                out, y = fun(*some)
                return (pick(out, selected.carry), [leaf for leaf in y if is_differentiable(leaf)]), (out, y)

            _, pull, (out, y) = jax.vjp(differentiable, *arguments, has_aux=True)
            residuals, tree = jax.tree.flatten(pull)
            trees.append(tree)
            return out, y, residuals

        return jax.make_jaxpr(linearized)(consts, carry, x), trees[0]

    @property
    def nbytes(self) -> int:
        """Bytes recorded in each step."""
        return sum(aval.size * aval.dtype.itemsize for aval in self.avals)

    @property
    def needed(self) -> tuple[bool, ...]:
        """Which leaves of the carry the residuals of this step and of all later ones depend on.

        All of them if the step has effects, so that these see the values that they saw in the forward sweep.
        """
        jaxpr, n = self._jaxpr.jaxpr, self._n[0]
        carry = jaxpr.invars[len(jaxpr.invars) - len(self._x) - n :][:n]
        found = (bool(jaxpr.effects),) * n
        while not all(found):
            outputs = [*self._residuals, *pick(jaxpr.outvars[:n], found)]
            atoms = [*outputs, *(v for eqn in backward_slice(jaxpr, outputs) for v in eqn.invars)]
            used = {v for v in atoms if isinstance(v, jex.Var)}
            before, found = found, tuple(v in used for v in carry)
            if found == before:
                break
        return found

    def record(self, consts: Leaves, carry: Leaves, x: Leaves) -> tuple[Leaves, Leaves, Leaves]:
        """The carry, the outputs, and what is recorded, one array for each of `avals`."""
        out = eval_jaxpr(self._jaxpr.jaxpr, self._jaxpr.consts, *consts, *carry, *x)
        values = dict(zip([id(v) for v in self._residuals], out[self._n[1] :], strict=True))
        return out[: self._n[0]], out[self._n[0] : self._n[1]], [values[id(v)] for v in self._recorded]

    def fixed(self, consts: Leaves) -> Leaves:
        """The residuals that are the same in every step."""
        return eval_jaxpr(self._fixed_jaxpr, self._jaxpr.consts, *consts)

    def pull(self, fixed: Leaves, recorded: Leaves, x: Leaves, cts: Any) -> Cotangents:
        """The cotangents of the selected constants, of the carry, and of the selected inputs."""
        pairs = zip((*self._fixed, *self._x, *self._recorded), (*fixed, *x, *recorded), strict=True)
        values = dict(pairs)
        residuals = [values[v] if isinstance(v, jex.Var) else v.val for v in self._residuals]
        return self._tree.unflatten(residuals)(cts)
