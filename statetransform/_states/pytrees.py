"""Takes pytrees apart in which there may be cells of other frameworks, and puts them together.

A node is a leaf, even if JAX knows it as a pytree. A carrier, a pytree of cells, JAX takes apart and rebuilds as it
does any pytree. No frame may lift the cells in it meanwhile, so `detached` rebuilds it of cells that no frame lifts.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any

import jax

from .adapters import carrier_classes, cell_of, is_carrier, is_node, known_of, node_classes
from .frame import no_frame
from .installing import waiting


def flatten(tree: Any) -> tuple[list[Any], Any]:
    """The leaves and the structure of a pytree. Nodes and carriers are leaves, and the carriers are detached."""
    if not node_classes and sys.modules.keys().isdisjoint(waiting):
        return jax.tree.flatten(tree)
    leaves, treedef = jax.tree.flatten(tree, is_leaf=_is_leaf)
    return [_detached(leaf) for leaf in leaves] if carrier_classes else leaves, treedef


def detached(tree: Any) -> Any:
    """A pytree with carriers of their own in it, whose cells no frame lifts; without any, the pytree itself."""
    if not carrier_classes:
        return tree
    leaves, treedef = flatten(tree)
    return treedef.unflatten(leaves) if any(map(is_carrier, leaves)) else tree


def with_values(tree: Any, values: Iterable[Any]) -> Any:
    """A pytree of states or cells with values in their places; of a carrier, another one with the values."""
    each = iter(values)
    leaves, treedef = jax.tree.flatten(tree, is_leaf=_is_leaf)
    return treedef.unflatten([_rebuilt(leaf, each) if is_carrier(leaf) else next(each) for leaf in leaves])


def _rebuilt(carrier: Any, each: Iterator[Any]) -> Any:
    """A carrier with the next values in place of its cells."""
    leaves = [leaf for _ in jax.tree.leaves(carrier, is_leaf=is_node) for leaf in jax.tree.leaves(next(each))]
    return jax.tree.structure(carrier).unflatten(leaves)


def _is_leaf(obj: Any) -> bool:
    known = known_of(type(obj))
    return known.is_node or known.is_carrier or bool(known.tests and is_node(obj))


def _detached(leaf: Any) -> Any:
    """A carrier, rebuilt of cells that no frame lifts; any other leaf as it is."""
    if not is_carrier(leaf):
        return leaf
    leaves, treedef = jax.tree.flatten(leaf)
    with no_frame():
        carrier = treedef.unflatten(leaves)
    for obj in jax.tree.leaves(carrier, is_leaf=is_node):
        if (cell := cell_of(type(obj))) is not None:
            cell.make_native(obj)
    return carrier
