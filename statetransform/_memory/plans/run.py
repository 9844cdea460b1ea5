"""Runs the nodes of a plan one by one, or counts their operations.

Views are made where they are used. What compilers would make at the start, as it depends on nothing, is made when it is
its turn: arrays of equal numbers.
"""

from __future__ import annotations

import collections
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
from jax import lax

from ... import _jax
from ..programs.sizes import local_nbytes
from . import cost
from .barriers import behind, has_number, tied
from .joint import Joint
from .pools import is_unpooled, unpooled
from .tricks import FILLS, MATRICES, POOLS

DRAWN = 16  # a node that writes so many times what it reads is treated as a random draw
# These compute equal numbers where they use them.
_READS_NUMBERS = cost.VIEWS | cost.ELEMENTWISE | cost.REDUCTIONS


class Run:
    """Evaluates nodes, making views where they are used, and those in `forms` at once."""

    def __init__(
        self,
        joint: Joint,
        inputs: Sequence[Any],
        cotangents: Sequence[Any],
        forms: Mapping[Any, Any],
        lives: Sequence[tuple[int, int, int]],
    ) -> None:
        self._joint, self._forms, self._lives = joint, forms, lives
        self.env: dict[Any, Any] = dict(zip(joint.jaxpr.constvars, joint.consts, strict=True))
        self.env.update(zip(joint.jaxpr.invars[: joint.n_inputs], inputs, strict=True))
        self.env.update(zip(joint.jaxpr.invars[joint.n_inputs :], cotangents, strict=False))
        self._views: dict[Any, Any] = {}
        self._roots: dict[Any, frozenset[Any]] = {}  # of the views, the variables that they are made of
        self._now = 0  # the step
        self.made: list[Any] = []  # variables, the last one at the end

    def read(self, atom: Any) -> Any:
        """The value of an atom, now."""
        if isinstance(atom, jex.Literal):
            return atom.val
        if atom in self.env:
            return self.env[atom]
        if atom not in self._views:
            view = self._joint.views[atom]
            (self._views[atom],) = self._bind(view)
            read = [a for a in view.invars if not isinstance(a, jex.Literal)]
            self._roots[atom] = frozenset[Any]().union(*(self._roots[a] if a in self._views else {a} for a in read))
        return self._views[atom]

    def _forget(self, changed: Collection[Any]) -> None:
        """Views of what has changed are made again, and those that cost nothing."""
        for atom in list(self._views):
            if cost.is_view(self._joint.views[atom]) or not self._roots[atom].isdisjoint(changed):
                del self._views[atom]

    def node(self, t: int, i: int) -> None:
        """Runs one node, at a step of the plan."""
        self._now, node = t, self._joint.graph.nodes[i]
        for eqn in node.eqns:
            outputs = self._bind(eqn)
            if not self.env.keys().isdisjoint(eqn.outvars):
                self._forget(eqn.outvars)
            self.env.update(zip(eqn.outvars, outputs, strict=True))
            for form in [self._forms[var] for var in eqn.outvars if var in self._forms]:
                self.env[form] = self.read(form)
        self.made += node.eqns[-1].outvars

    def tie(self, values: list[Any], given: list[Any]) -> None:
        """Puts a barrier around some variables."""
        names = [*values, *given]
        self.env.update(zip(names, self._barrier(names, [self.env[var] for var in names]), strict=True))
        self._forget(names)

    def _barrier(self, names: list[Any], values: list[Any]) -> list[Any]:
        return tied_as_made(self._joint, names, values)

    def _bind(self, eqn: Any) -> Sequence[Any]:
        inputs = [self.read(atom) for atom in eqn.invars]
        with _jax.in_place_of(eqn):
            if FILLS.is_on and eqn.primitive.name not in _READS_NUMBERS:
                self._delay(eqn, inputs)
            if POOLS.is_on and is_unpooled(eqn):
                cotangent, x = inputs
                return [unpooled(eqn.params, cotangent, x)]
            return _jax.bind(eqn.primitive, inputs, eqn.params)

    def _delay(self, eqn: Any, inputs: list[Any]) -> None:
        """Makes the arrays of equal or counted numbers that an operation writes into when it is their turn.

        They depend on nothing: compilers make all of them at the start. Sorting writes into the numbers that it orders.
        """
        views = {k: self._joint.views.get(a) for k, a in enumerate(eqn.invars) if not isinstance(a, jex.Literal)}
        fills = {k: view for k, view in views.items() if view is not None and _is_fill(view)}
        others = [x for k, x in enumerate(inputs) if k in views and k not in fills]
        for k, view in fills.items():
            number = self._late(others, view.invars[0].val if view.invars else 0, view.outvars[0].aval)
            (found,) = _jax.bind(view.primitive, [number] if view.invars else [], view.params)
            inputs[k] = found if view.invars else found + number

    def _late(self, inputs: Sequence[Any], number: Any, aval: Any) -> Any:
        """A number, to fill arrays of a type with, behind some inputs and the last large value that is alive.

        The inputs may be there from the start, as indices are. So no compiler knows the number before the value is
        there. Values of integers do not count, since they may be made of constants.
        """
        number, size = np.asarray(number, aval.dtype), local_nbytes(aval)
        alive = {self._joint.variables[v] for v, first, last in self._lives if first < self._now <= last}
        varies_as = lambda x: _jax.varying_axes(x) <= _jax.varying_axes(aval)
        is_large = lambda x: DRAWN * local_nbytes(jax.typeof(x)) >= size and jnp.issubdtype(x.dtype, jnp.inexact)
        fits = lambda x: is_large(x) and has_number(x) and varies_as(x)
        last = next((x for var in reversed(self.made) if var in alive and fits(x := self.env[var])), None)
        number = number if last is None else behind(number, last)
        # In `shard_map`, the barrier of JAX 0.10 makes all of its operands vary over the devices if one does.
        before = list(filter(varies_as, inputs))
        return lax.optimization_barrier((jnp.asarray(number), *before))[0] if before else number


class Count(Run):
    """Counts the operations instead."""

    def __init__(self, joint: Joint, forms: Mapping[Any, Any], lives: Sequence[tuple[int, int, int]]) -> None:
        super().__init__(joint, [0] * joint.n_inputs, [0] * len(joint.jaxpr.invars), forms, lives)
        self.operations = 0.0
        self._made_of = collections.defaultdict[Any, list[Any]](list)  # by variable, the views that count for something

    def read(self, atom: Any) -> Any:
        """Counts what is computed to read an atom."""
        if isinstance(atom, jex.Literal) or atom in self.env or atom in self._views:
            return 0
        view = self._joint.views[atom]
        self._bind(view)
        if self._joint.operations(view):
            self._views[atom] = 0
            for root in self._joint.roots_of(atom):
                self._made_of[root].append(atom)
        return 0

    def _forget(self, changed: Collection[Any]) -> None:
        for var in changed:
            for atom in self._made_of.pop(var, ()):
                self._views.pop(atom, None)

    def _bind(self, eqn: Any) -> Sequence[Any]:
        for atom in eqn.invars:
            self.read(atom)
        self.operations += self._joint.operations(eqn)
        return [0] * len(eqn.outvars)

    def _barrier(self, names: list[Any], values: list[Any]) -> list[Any]:
        return values


def tied_as_made(joint: Joint, names: Sequence[Any], values: Sequence[Any]) -> list[Any]:
    """Values behind a barrier: products as the matrices that compilers compute, with a view of each behind it.

    Args:
      joint: what the values are of.
      names: their variables there; None for what has none.
      values: the values.
    """
    shapes = [joint.matrices.get(name) if MATRICES.is_on else None for name in names]
    found = tied([x if shape is None else x.reshape(shape) for x, shape in zip(values, shapes, strict=True)])
    return [y if shape is None else y.reshape(x.shape) for y, x, shape in zip(found, values, shapes, strict=True)]


def _is_fill(view: Any) -> bool:
    return view.primitive.name in ("broadcast_in_dim", "iota") and all(isinstance(a, jex.Literal) for a in view.invars)
