"""Both passes of a function in one jaxpr, with its graph: what is a view of what."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax.extend.core as jex

from . import cost
from .graph import Graph


@dataclasses.dataclass(frozen=True)
class Joint:
    """Both passes of a function as one open jaxpr without constants, and as a graph.

    Attributes:
      jaxpr: from the constants, inputs and cotangents to outputs and gradients.
      consts: the values of its constants.
      n_inputs, n_outputs: of the function.
      graph: the nodes.
      variables: the variable of each value of the graph.
      views: the equation that makes each variable that is a view, or is made of constants.
      origins: of each value that the function itself computes, which of its equations does.
      matrices: the shapes of products as compilers compute them, as of matrices, where barriers are to tie these.
    """

    jaxpr: Any
    consts: Sequence[Any]
    n_inputs: int
    n_outputs: int
    graph: Graph
    variables: tuple[Any, ...]
    views: dict[Any, Any]
    origins: Mapping[int, int] = dataclasses.field(default_factory=dict)
    matrices: Mapping[Any, tuple[int, ...]] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def numbers(self) -> dict[Any, int]:
        """The number of each variable that is a value of the graph."""
        return {var: i for i, var in enumerate(self.variables)}

    @functools.cached_property
    def given(self) -> frozenset[Any]:
        """The variables that are there from the start: constants, inputs and cotangents."""
        return frozenset((*self.jaxpr.constvars, *self.jaxpr.invars))

    def roots(self, atoms: Sequence[Any]) -> list[Any]:
        """The variables of values, and the given ones, that some atoms are or are views of; each view is read once."""
        found, stack, seen = [], list(atoms), set[Any]()
        while stack:
            atom = stack.pop()
            if isinstance(atom, jex.Literal) or atom in seen:
                continue
            if atom in self.views:
                seen.add(atom)
                stack.extend(self.views[atom].invars)
            else:
                found.append(atom)
        return found

    def roots_of(self, atom: Any) -> list[Any]:
        """Those of one variable, found once."""
        if atom not in self._roots:
            self._roots[atom] = self.roots([atom])
        return self._roots[atom]

    @functools.cached_property
    def _roots(self) -> dict[Any, list[Any]]:
        return {}

    def values_of(self, atom: Any) -> list[int]:
        """The numbers of the values that an atom is a view of."""
        roots = [] if isinstance(atom, jex.Literal) else self.roots_of(atom)
        return [self.numbers[var] for var in roots if var in self.numbers]

    def operations(self, eqn: Any) -> float:
        """Those of an equation; none of a view."""
        if id(eqn) not in self._operations:
            self._operations[id(eqn)] = 0.0 if cost.is_view(eqn) else cost.operations(eqn)
        return self._operations[id(eqn)]

    @functools.cached_property
    def _operations(self) -> dict[int, float]:
        return {}

    @property
    def outputs(self) -> list[Any]:
        """The atoms of the outputs."""
        return list(self.jaxpr.outvars[: self.n_outputs])

    @property
    def gradients(self) -> list[Any]:
        """The atoms of the gradients."""
        return list(self.jaxpr.outvars[self.n_outputs :])
