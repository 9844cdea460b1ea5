"""In which order and shape a value is made, where only one other order or shape of it is read."""

from __future__ import annotations

import collections
from typing import Any

import jax.extend.core as jex

from ..programs.primitives import Kind, kind_of
from ..programs.sizes import local_nbytes
from . import cost
from .joint import Joint


def forms(joint: Joint) -> dict[Any, Any]:
    """Values that are read only through a transpose or reshape, mapped to that view: gradients and their parts.

    The view is computed right away. A compiler that sees the product for a weight's gradient together with its
    transpose computes it in that order; where it does not, there are two of them for a while, and one more copy.
    """
    graph, numbers, found = joint.graph, joint.numbers, dict[Any, Any]()
    gradients = list(dict.fromkeys(atom for atom in joint.gradients if not isinstance(atom, jex.Literal)))
    parts, summed = list(gradients), set(graph.gradients)
    for node in reversed(graph.nodes):
        if node.is_backward and node.eqns[-1].primitive.name == "add_any" and not summed.isdisjoint(node.outputs):
            parts += node.eqns[-1].invars
            summed.update(node.inputs)
    uses = collections.Counter(v for node in graph.nodes for v in node.inputs)
    uses.update(v for atom in (*joint.outputs, *gradients) for v in joint.values_of(atom))
    for atom in dict.fromkeys(parts):
        values = [] if atom in numbers else joint.values_of(atom)
        if len(values) == 1 and uses[values[0]] == 1 and graph.nodes[graph.producer[values[0]]].is_backward:
            root = joint.variables[values[0]]
            if local_nbytes(root.aval) == local_nbytes(atom.aval):
                found[root] = atom
    return {**_forms_for_loops(joint), **found}


def _forms_for_loops(joint: Joint) -> dict[Any, Any]:
    """The same for elementwise results that nothing but a loop reads, in another order: it would have a copy made."""
    eqns = [eqn for node in joint.graph.nodes for eqn in node.eqns]
    reads = collections.defaultdict[int, set[Any]](set)
    for atom in [*joint.outputs, *joint.gradients, *[atom for eqn in eqns for atom in eqn.invars]]:
        for v in joint.values_of(atom):
            reads[v].add(atom)
    found = dict[Any, Any]()
    for atom in [atom for eqn in eqns if kind_of(eqn) is Kind.LOOP for atom in eqn.invars]:
        if len(values := joint.values_of(atom)) != 1 or atom in joint.numbers or reads[values[0]] != {atom}:
            continue
        root, maker = joint.variables[values[0]], joint.graph.nodes[joint.graph.producer[values[0]]]
        if maker.eqns[-1].primitive.name in cost.ELEMENTWISE and local_nbytes(root.aval) == local_nbytes(atom.aval):
            found[root] = atom
    return found
