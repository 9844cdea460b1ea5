"""From a gradient step to its graph: the nodes in one jaxpr of both passes.

What depends on the cotangents is the backward pass. Views are not nodes: whoever emits a plan makes them again where
they are used. An elementwise result that only one node uses, which is elementwise or a reduction, is computed within
that, as compilers do it.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence, Set
from types import MappingProxyType
from typing import Any

import jax.extend.core as jex

from ... import _jax
from ..programs.sizes import local_nbytes, local_shape
from ..programs.walk import backward_slice, inner_jaxprs
from . import cost
from .existing import Held
from .gradient import Pattern
from .graph import Graph, Node
from .joint import Joint

# Sums of so many additions become one node for each. Attention has two additions: of queries, keys and values.
_MANY = 3
# Nodes of their own, though they may not exist as compiled: on a CPU, and on cards.
_ON_CPU = cost.PRODUCTS | cost.LOOPS
_ON_CARDS = _ON_CPU | cost.REDUCTIONS


def build(
    flat: Any,
    pattern: Pattern,
    n_forward: int | None = None,
    seen: Mapping[Any, int] = MappingProxyType({}),
    held: Mapping[int, Held] = MappingProxyType({}),
    has_all: bool = True,
    is_for_card: bool = False,
) -> Joint:
    """The graph of a gradient step that is flattened.

    Args:
      flat: its closed jaxpr.
      pattern: what is differentiated.
      n_forward: how many of the equations are the forward pass. None takes all for it that no cotangent reaches, so
        that checkpoints in the function count for nothing.
      seen: which equation of the function computes the value of some variables.
      held: the equations whose values exist as compiled, by number, and what they hold for all lanes, if that is known.
      has_all: whether all values are in the graph; otherwise those that exist.
      is_for_card: whether it is for a GPU or a TPU, not for a CPU. Where their compilers fuse a view of what is read
        they work in place, and they make one kernel of a softmax.
    """
    jaxpr, consts = _jax.opened(flat), _jax.consts_of(flat)
    n_inputs, n_outputs = len(pattern.inputs), len(pattern.outputs)
    kind, lanes = _Builder if has_all else _OfExisting, pattern.lanes.count
    there = [i for i, eqn in enumerate(jaxpr.eqns) if i in held and _holds(held[i], eqn)]
    of_one = {i: held[i].of_one(lanes) for i in there}
    return kind(jaxpr, n_inputs, n_outputs, n_forward, of_one, is_for_card).joint(consts, seen)


def _holds(held: Held, eqn: Any) -> bool:
    """Whether what bears an equation's name is its value, or work on it, and not a part of it.

    Compilers move signs behind sums: the sign of the logits in the head of a language model is then one number for each
    word. A value may be there in a narrower type than its own, but hardly in one an eighth as wide.
    """
    return len(eqn.outvars) != 1 or not 0 < 8 * held.size < local_nbytes(eqn.outvars[0].aval)


class _Builder:
    """Turns equations into nodes."""

    def __init__(
        self,
        jaxpr: Any,
        n_inputs: int,
        n_outputs: int,
        n_forward: int | None,
        held: Mapping[int, Held],
        is_for_card: bool,
    ) -> None:
        self._is_for_card = is_for_card
        self.jaxpr, self.n_inputs, self.n_outputs = jaxpr, n_inputs, n_outputs
        self.held = {id(eqn): held[i] for i, eqn in enumerate(jaxpr.eqns) if i in held}
        self.is_known = bool(held)
        self.returned = {atom for atom in jaxpr.outvars if not isinstance(atom, jex.Literal)}
        self.eqns = backward_slice(jaxpr, jaxpr.outvars)
        self.costs = list(map(cost.operations, self.eqns))
        self.sums = {id(eqn) for eqn in _long_sums(self.eqns, self.returned)}
        self.roots: dict[Any, tuple[Any, ...]] = {}
        self.views: dict[Any, Any] = {}
        given = [*jaxpr.constvars, *jaxpr.invars]
        self.roots.update(dict.fromkeys(given, ()))
        moving = set(jaxpr.invars[n_inputs:])  # the cotangents
        self.is_backward: list[bool] = []
        forward = None if n_forward is None else set(map(id, jaxpr.eqns[:n_forward]))
        for eqn in self.eqns:
            depends = any(not isinstance(a, jex.Literal) and a in moving for a in eqn.invars)
            depends = depends if forward is None else id(eqn) not in forward
            self.is_backward.append(depends)
            if depends:
                moving.update(eqn.outvars)
            if cost.is_view(eqn) or (not eqn.effects and self._is_made_where_used(eqn)):
                self.roots[eqn.outvars[0]] = self._roots_of(eqn.invars)
                self.views[eqn.outvars[0]] = eqn
            else:
                self.roots.update({var: (var,) for var in eqn.outvars})
        self.moved = collections.Counter[Any]()  # bytes of copies in another order or shape, by what is copied
        for eqn in self.eqns:
            if (own := self.held.get(id(eqn))) and eqn.outvars and eqn.outvars[0] in self.views:
                for root in self._roots_of(eqn.outvars):
                    is_copy = own.size > local_nbytes(root.aval)
                    self.moved[root] = max(self.moved[root], own.scratch + (own.size if is_copy else 0))

    def _is_made_where_used(self, eqn: Any) -> bool:
        """Whether a scalar is computed of scalar constants: not worth a node."""
        return len(eqn.outvars) == 1 and not eqn.invars and eqn.primitive.name in cost.VIEWS

    def _roots_of(self, atoms: Sequence[Any]) -> tuple[Any, ...]:
        found = [root for a in atoms if not isinstance(a, jex.Literal) for root in self.roots.get(a, ())]
        return tuple(dict.fromkeys(found))

    def _groups(self) -> list[list[int]]:
        """The equations of each node, those that are fused with it first."""
        users: dict[Any, list[int]] = {}
        worked = [t for t, eqn in enumerate(self.eqns) if eqn.outvars and eqn.outvars[0] not in self.views]
        worked += [t for t, eqn in enumerate(self.eqns) if not eqn.outvars]
        worked.sort()
        for t in worked:
            for root in self._roots_of(self.eqns[t].invars):
                users.setdefault(root, []).append(t)
        kept = set(self._roots_of(self.jaxpr.outvars))
        homes = self._homes(worked, users, kept)
        groups: dict[int, list[int]] = {}
        for t in worked:
            groups.setdefault(homes[t], []).append(t)
        return [groups[home] for home in sorted(groups)]

    def _homes(self, worked: list[int], users: dict[Any, list[int]], kept: set[Any]) -> dict[int, int]:
        """The equation whose node computes each equation: itself, or the one that it is fused with."""
        homes: dict[int, int] = {}
        for t in reversed(worked):
            eqn, homes[t] = self.eqns[t], t
            using = users.get(eqn.outvars[0], []) if eqn.outvars else []
            is_cheap = eqn.primitive.name in cost.ELEMENTWISE and id(eqn) not in self.sums
            if not is_cheap or eqn.effects or eqn.outvars[0] in kept:
                continue
            is_only = len(using) == 1 and self._is_fused(t, using[0])
            if is_only or (all(self._is_taken(t, u) for u in using) and self._is_better_later(t)):
                found = {homes[u] for u in using}
                homes[t] = found.pop() if len(found) == 1 else t
        return homes

    def _is_taken(self, t: int, user: int) -> bool:
        """Whether a user may compute an equation of its own pass, or a backward one an equation of the forward pass."""
        if self._is_fused(t, user):
            return True
        fits = self.eqns[user].primitive.name in cost.ELEMENTWISE | cost.REDUCTIONS
        return fits and self.is_backward[user] and not self.is_backward[t]

    def _is_fused(self, t: int, user: int) -> bool:
        name = self.eqns[user].primitive.name
        return self.is_backward[t] == self.is_backward[user] and name in cost.ELEMENTWISE | cost.REDUCTIONS

    def _is_better_later(self, t: int) -> bool:
        """Whether to hold what an equation is made of takes hardly more than to hold its result."""
        inputs = sum(local_nbytes(root.aval) for root in self._roots_of(self.eqns[t].invars))
        return inputs <= 1.1 * local_nbytes(self.eqns[t].outvars[0].aval)

    def joint(self, consts: Sequence[Any], seen: Mapping[Any, int]) -> Joint:
        groups = self._groups()
        # Forward nodes first; the order within each pass is that of the trace.
        groups.sort(key=lambda group: self.is_backward[group[-1]])
        groups = self._in_time(groups)
        outputs = set(self._roots_of(self.jaxpr.outvars[: self.n_outputs]))
        gradients = set(self._roots_of(self.jaxpr.outvars[self.n_outputs :])) - outputs
        number: dict[Any, int] = {}
        sizes: list[int] = []
        variables: list[Any] = []
        drafts = []
        for group in groups:
            inside = {var for t in group for var in self.eqns[t].outvars}
            outer = [root for t in group for root in self._roots_of(self.eqns[t].invars) if root not in inside]
            made = list(self.eqns[group[-1]].outvars)
            for var in made:
                number[var] = len(sizes)
                sizes.append(0 if var in outputs or var in gradients else self._size(self.eqns[group[-1]], var))
                variables.append(var)
            drafts.append((group, dict.fromkeys(outer), made))
        nodes = tuple(
            self._node(group, [number[v] for v in outer], [number[v] for v in made]) for group, outer, made in drafts
        )
        pinned = frozenset(i for i, node in enumerate(nodes) if any(eqn.effects for eqn in node.eqns))
        in_numbers = lambda some: frozenset(number[var] for var in some)
        results = in_numbers(v for v in outputs)
        buffers = tuple((number[v], local_nbytes(v.aval)) for v in sorted(outputs | gradients, key=number.__getitem__))
        lasting = in_numbers({*number} - self._taken(drafts))
        graph = Graph(nodes, tuple(sizes), results, in_numbers(gradients), pinned, buffers, lasting)
        origins: dict[int, int] = {}
        for atom, t in seen.items():
            for v in [number[root] for root in self._roots_of([atom]) if root in number]:
                origins[v] = min(origins.get(v, t), t)
        matrices = self._matrices(nodes) if self._is_for_card else {}
        found = self.jaxpr, consts, self.n_inputs, self.n_outputs, graph, tuple(variables), self.views
        return Joint(*found, origins, matrices)

    def _in_time(self, groups: list[list[int]]) -> list[list[int]]:
        """With what the forward pass makes of what is given where it is first read: what it is made of is there anyway.

        Parts of an input are such values, for each step of a loop that is unrolled.
        """
        reads = [self._roots_of([a for t in group for a in self.eqns[t].invars]) for group in groups]
        waiting, order = dict[Any, int](), dict[int, None]()
        for k, group in enumerate(groups):
            own = {var for t in group for var in self.eqns[t].outvars}
            is_forward = not self.is_backward[group[-1]]
            is_small = not any(self.eqns[t].effects or inner_jaxprs(self.eqns[t]) for t in group)  # inside
            if is_forward and is_small and own.issuperset(reads[k]):
                waiting.update(dict.fromkeys(own, k))
            elif is_forward:
                order.update(dict.fromkeys(waiting[root] for root in reads[k] if root in waiting))
                order[k] = None
        order.update(dict.fromkeys(range(len(groups))))
        return [groups[k] for k in order]

    def _taken(self, drafts: Sequence[tuple[list[int], Any, list[Any]]]) -> set[Any]:
        """The values whose buffers some node can take.

        Behind each product that compilers compute as one of matrices there is a view. They fuse it with the elementwise
        operations that read it. On the CPU these do not work in place then, unless all that they read comes out of such
        views.
        """
        found, flattened = set[Any](), set[Any]()
        for group, _, made in drafts:
            eqns = [self.eqns[t] for t in group]
            if (atoms := cost.overwritten(eqns)) is not None:
                found.update(self._roots_of(atoms))
                flattened.update(made if cost.matrix_shape(eqns[-1]) and not self._is_for_card else ())
                continue
            as_made = self._as_made(eqns, made[0])
            if as_made and as_made <= flattened:
                flattened.update(made)
                found |= as_made
            else:
                found |= as_made - flattened
        return found

    def _matrices(self, nodes: Sequence[Node]) -> dict[Any, tuple[int, ...]]:
        """The shapes of products as matrices, unless devices hold parts of them: these may cut what is merged."""
        shapes = {node.eqns[-1].outvars[0]: cost.matrix_shape(node.eqns[-1]) for node in nodes if node.is_product}
        return {var: shape for var, shape in shapes.items() if shape and local_shape(var.aval) == var.aval.shape}

    def _as_made(self, eqns: Sequence[Any], made: Any) -> set[Any]:
        """The values that some equations read, with the dimensions of what they make of them."""
        read = [a for eqn in eqns for a in eqn.invars if not isinstance(a, jex.Literal)]
        return {root for a in read for root in self._roots_of([a]) if _is_as(a, root) and _is_as(a, made)}

    def _size(self, eqn: Any, var: Any) -> int:
        """Bytes of a value: as compiled, with tiles and with copies in another layout that are read as long.

        Of products that compilers compute as one, each is a part of that.
        """
        own = None if len(eqn.outvars) > 1 or inner_jaxprs(eqn) else self.held.get(id(eqn))
        if own is None or (eqn.primitive.name == "dot_general" and own.numbers > math.prod(local_shape(var.aval))):
            return local_nbytes(var.aval)
        return max(local_nbytes(var.aval), own.size)

    def _scratch(self, eqn: Any) -> int:
        """Bytes that an equation needs inside: as compiled, where that is known; what is within loops has no scope."""
        if not self.is_known or inner_jaxprs(eqn):
            return cost.scratch(eqn, self.views)
        own = self.held.get(id(eqn))
        return (own.scratch if own else 0) + max((self.moved[var] for var in eqn.outvars), default=0)

    def _node(self, group: list[int], inputs: list[int], outputs: list[int]) -> Node:
        eqns = tuple(self.eqns[t] for t in group)
        atoms = cost.overwritten(eqns)
        # What is given, or made of constants, has no buffer that may be taken.
        inplace = outputs if atoms is None else [v for v, a in zip(outputs, atoms, strict=False) if self._roots_of([a])]
        return Node(
            tuple(inputs),
            tuple(outputs),
            cost=sum(self.costs[t] for t in group),
            scratch=max(map(self._scratch, eqns)),
            is_backward=self.is_backward[group[-1]],
            is_product=eqns[-1].primitive.name in cost.PRODUCTS,
            is_batched=cost.is_batched(eqns[-1]),
            inplace=tuple(inplace),
            eqns=eqns,
        )


class _OfExisting(_Builder):
    """Nodes are the values that exist as compiled, and long sums. What is neither is computed where it is read.

    On cards, reductions are nodes as well. In the one kernel of a softmax its sums do not exist, but alone they are
    made of what a plan has alive, and what takes the place of that is made next. On a CPU they cost Gemma 1.14 of the
    work in place of 1.10 within a quarter.
    """

    def _is_made_where_used(self, eqn: Any) -> bool:
        always = _ON_CARDS if self._is_for_card else _ON_CPU
        is_work = eqn.primitive.name in always and not cost.is_outer(eqn)
        if super()._is_made_where_used(eqn) or len(eqn.outvars) != 1 or is_work:
            return super()._is_made_where_used(eqn)
        return not (id(eqn) in self.held or id(eqn) in self.sums or eqn.outvars[0] in self.returned)

    def _homes(self, worked: list[int], users: dict[Any, list[int]], kept: set[Any]) -> dict[int, int]:
        return {t: t for t in worked}

    def _node(self, group: list[int], inputs: list[int], outputs: list[int]) -> Node:
        """With what is computed inside of it."""
        node, inside, stack = super()._node(group, inputs, outputs), dict[Any, Any](), list(self.eqns[group[0]].invars)
        while stack:
            atom = stack.pop()
            if not isinstance(atom, jex.Literal) and atom in self.views and atom not in inside:
                inside[atom] = view = self.views[atom]
                stack += view.invars
        more = sum(cost.operations(view) for view in inside.values() if not cost.is_view(view))
        return dataclasses.replace(node, cost=node.cost + more)


def _long_sums(eqns: Sequence[Any], returned: Set[Any]) -> Iterator[Any]:
    """The additions in gradients and in cotangents of many parts: each part is added when it is there.

    Left alone, compilers add all parts at the end, in one fusion. The steps of Sinkhorn's algorithm share their costs.
    """
    read = lambda eqn: [atom for atom in eqn.invars if not isinstance(atom, jex.Literal)]
    additions, long = collections.Counter[Any](), set(returned)  # in what is a sum, or a view of one
    for eqn in eqns:
        is_sum = eqn.primitive.name == "add_any"
        if is_sum or cost.is_view(eqn):
            additions[eqn.outvars[0]] = is_sum + max((additions[atom] for atom in read(eqn)), default=0)
    for eqn in reversed(eqns):
        if any(additions[var] and (var in long or additions[var] >= _MANY) for var in eqn.outvars):
            long.update(read(eqn))
            if eqn.primitive.name == "add_any":
                yield eqn


def _is_as(one: Any, other: Any) -> bool:
    """Whether two variables have the same dimensions, in another order perhaps."""
    return sorted(one.aval.shape) == sorted(other.aval.shape)
