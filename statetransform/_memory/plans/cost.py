"""What an equation costs: which ones are views, which ones are fused, their operations, and what they need inside."""

from __future__ import annotations

import collections
import math
import types
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax.extend.core as jex

from ... import _jax
from ..programs.flops import jaxpr_flops
from ..programs.primitives import Kind, primitives_of
from ..programs.sizes import local_nbytes
from ..programs.walk import Inner, counts_of_scan, inner_jaxprs

# Besides the views of the table, what holds no array of its own; a constraint may make a copy.
VIEWS = primitives_of(Kind.VIEW, Kind.FILL) - {"layout_constraint", "sharding_constraint"} | {
    "create_token", "pvary", "random_wrap", "random_unwrap",
}  # fmt: skip
# Views where each device goes on holding as much as before.
RESHARDING = frozenset(("sharding_constraint", "reshard"))
# Compilers also fuse these moves with their neighbours.
ELEMENTWISE = primitives_of(Kind.CAST, Kind.ELEMENTWISE) | {"reduce_precision", "slice", "pad"}
REDUCTIONS = primitives_of(Kind.REDUCTION)
PRODUCTS = frozenset(("dot_general", "conv_general_dilated", "ragged_dot_general"))
LOOPS = primitives_of(Kind.LOOP)
# These may write into the buffers of their operands, and do so within loops.
INPLACE = frozenset(("while", "dynamic_update_slice", "scatter", "scatter-add", "optimization_barrier"))


def is_view(eqn: Any) -> bool:
    """Whether the results take no memory of their own."""
    if eqn.primitive.name in RESHARDING:
        before, after = eqn.invars[0], eqn.outvars[0]
        return not isinstance(before, jex.Literal) and local_nbytes(before.aval) == local_nbytes(after.aval)
    return eqn.primitive.name in VIEWS and len(eqn.outvars) == 1 and not eqn.effects


def is_elementwise(eqn: Any) -> bool:
    """Whether compilers fuse an equation with its user; an outer product is one of elements as well."""
    name = eqn.primitive.name
    return name in ELEMENTWISE or (name == "dot_general" and not eqn.params["dimension_numbers"][0][0])


def is_batched(eqn: Any) -> bool:
    """Of a product: whether it is of many matrices, one for each index of a batch, or a convolution."""
    return eqn.primitive.name != "dot_general" or bool(eqn.params["dimension_numbers"][1][0])


def matrix_shape(eqn: Any) -> tuple[int, ...] | None:
    """The shape of a product as compilers compute it, as one of matrices, if its result has more dimensions."""
    if eqn.primitive.name != "dot_general":
        return None
    sides = list(zip(eqn.invars, *eqn.params["dimension_numbers"], strict=True))
    merged = [[v.aval.shape[k] for k in _free(v, *numbers)] for v, *numbers in sides]
    first, _, batch = sides[0]
    shape = *(first.aval.shape[k] for k in batch), *(math.prod(sizes) for sizes in merged if sizes)
    return shape if len(shape) < len(eqn.outvars[0].aval.shape) else None


def is_outer(eqn: Any) -> bool:
    """Whether an equation is an outer product, as in the gradient of a layer with one output: compilers multiply."""
    if eqn.primitive.name != "dot_general":
        return False
    contracting = eqn.params["dimension_numbers"][0][0]
    return all(eqn.invars[0].aval.shape[k] == 1 for k in contracting)


def overwritten(eqns: Any) -> list[Any] | None:
    """The atoms whose buffers the first outputs may take, one for each; None if these may take any.

    A loop and an update write into the buffer of one operand: they read the others to the end.
    """
    names = {eqn.primitive.name for eqn in eqns}
    last = eqns[-1]
    if names <= ELEMENTWISE:
        return None
    if names == {"scan"}:
        n_consts, n_carry = counts_of_scan(last)
        return list(last.invars[n_consts : n_consts + n_carry])
    if not names <= INPLACE:
        return []
    if names == {"while"}:
        return list(last.invars[-len(last.outvars) :])
    return list(last.invars[: len(last.outvars)])


def operations(eqn: Any) -> float:
    """Arithmetic of one equation, loops as often as they run; what moves data counts a little, to break ties."""
    counted = jaxpr_flops(types.SimpleNamespace(eqns=[eqn]))
    moved = sum(local_nbytes(var.aval) for var in eqn.outvars) / 64
    return counted + moved


def scratch(eqn: Any, views: Mapping[Any, Any] = MappingProxyType({})) -> int:
    """Bytes that an equation needs inside: what one run of a body has alive at once, and what kernels need.

    Args:
      eqn: the equation.
      views: the equations of variables that are views.
    """
    inside = lambda inner: int(_peak_inside(inner.jaxpr, _carries(eqn, inner)) * _share(eqn, inner))
    most = max(map(inside, inner_jaxprs(eqn)), default=0)
    if eqn.primitive.name == "cond":  # a branch computes its results where those of the equation are
        most = max(most - sum(local_nbytes(var.aval) for var in eqn.outvars), 0)
    rule = _RULES.get(eqn.primitive.name)
    return most + (rule(eqn, views) if rule else 0)


def _carries(eqn: Any, inner: Inner) -> dict[Any, Any]:
    """The results of the body of a loop whose buffers are those of its inputs, and these inputs."""
    body, name = _jax.opened(inner.jaxpr), eqn.primitive.name
    if name not in LOOPS or inner.role != "body":
        return {}
    first, n = counts_of_scan(eqn) if name == "scan" else (-len(body.outvars), len(body.outvars))
    pairs = zip(body.outvars[:n], body.invars[first:], strict=False)
    return {out: given for out, given in pairs if not isinstance(out, jex.Literal)}


def _share(eqn: Any, inner: Inner) -> float:
    """How much of what is inside of an equation one device holds, if only the types of its results say it."""
    stacked = lambda outer, inside: eqn.params.get("length", 1) if len(outer.aval.shape) > len(inside.aval.shape) else 1
    pairs = list(zip(eqn.outvars, _jax.opened(inner.jaxpr).outvars, strict=False)) if inner.role != "cond" else []
    whole = sum(local_nbytes(inside.aval) * stacked(outer, inside) for outer, inside in pairs)
    return min(sum(local_nbytes(outer.aval) for outer, _ in pairs) / whole, 1.0) if whole else 1.0


def copied(eqn: Any, views: Mapping[Any, Any] = MappingProxyType({})) -> list[Any]:
    """The operands of a product that are copied for it, since their dimensions are not in the order that is needed.

    Args:
      eqn: the product.
      views: the equations of variables that are views.
    """
    if eqn.primitive.name == "conv_general_dilated":
        numbers, last = eqn.params["dimension_numbers"], len(eqn.invars[0].aval.shape) - 1
        is_ordered = numbers.lhs_spec[:2] == (0, last), numbers.rhs_spec[:2] == (last, last - 1)
        return [v for v, is_as_needed in zip(eqn.invars, is_ordered, strict=True) if not is_as_needed]
    if eqn.primitive.name != "dot_general":
        return []
    sides = list(zip(eqn.invars, *eqn.params["dimension_numbers"], strict=True))
    is_simple = all(
        len(contracting) <= 1 and len(_free(v, contracting, batch)) <= 1 and tuple(batch) == tuple(range(len(batch)))
        for v, contracting, batch in sides
    )
    found = []
    for k, (v, contracting, batch) in enumerate(sides if not is_simple else ()):
        free = _free(v, contracting, batch)
        order = [*batch, *contracting, *free] if k else [*batch, *free, *contracting]
        found += [v] if _stored(v, order, views) != sorted(order) else []
    return found


def _free(v: Any, contracting: Sequence[int], batch: Sequence[int]) -> list[int]:
    return [k for k in range(len(v.aval.shape)) if k not in contracting and k not in batch]


def _stored(atom: Any, order: list[int], views: Mapping[Any, Any]) -> list[int]:
    """An order of dimensions as one of those of the value that an atom is a view of."""
    while not isinstance(atom, jex.Literal) and atom in views and views[atom].primitive.name == "transpose":
        order = [views[atom].params["permutation"][k] for k in order]
        atom = views[atom].invars[0]
    return order


def _copies(eqn: Any, views: Mapping[Any, Any]) -> int:
    sizes = [local_nbytes(v.aval) for v in copied(eqn, views)]
    (out,) = (var.aval for var in eqn.outvars)
    if eqn.primitive.name == "dot_general" or eqn.params["dimension_numbers"].out_spec[:2] == (0, len(out.shape) - 1):
        return sum(sizes)
    # The result is turned at the end, and has a copy of an operand in its place until then.
    return sum(sizes) + local_nbytes(out) - max((size for size in sizes if size <= local_nbytes(out)), default=0)


def _scatter(eqn: Any, views: Mapping[Any, Any]) -> int:
    del views
    operand, indices = (local_nbytes(v.aval) for v in eqn.invars[:2])
    return 5 * operand if indices >= operand else 0


_RULES = {"conv_general_dilated": _copies, "dot_general": _copies, "scatter-add": _scatter}


def _peak_inside(jaxpr: Any, carries: Mapping[Any, Any]) -> int:
    """The most bytes that one run of a body has alive at once, without its inputs; `carries` as of `_carries`."""
    body = _jax.opened(jaxpr)
    reads = [(atom, t) for t, eqn in enumerate(body.eqns) for atom in eqn.invars if not isinstance(atom, jex.Literal)]
    ends = len(body.eqns)
    last = {**dict(reads), **{atom: ends for atom in body.outvars if not isinstance(atom, jex.Literal)}}
    uses = collections.Counter(atom for atom, _ in reads)
    now, most, held = 0, 0, {}
    dying: dict[int, list[Any]] = {}
    for t, eqn in enumerate(body.eqns):
        given = [var for var in dying.get(t, ()) if held[var]] if eqn.primitive.name in LOOPS else []
        for var in eqn.outvars:
            is_alike = is_elementwise(eqn)
            fused = is_alike and uses[var] == 1 and last.get(var) != ends
            fused |= var in carries and last.get(carries[var], -1) < t + is_alike  # it takes the buffer of the carry
            size = 0 if fused or is_view(eqn) or eqn.primitive.name in INPLACE else local_nbytes(var.aval)
            if var in last:
                dying.setdefault(last[var], []).append(var)
                held[var] = size
                own = next((other for other in given if other.aval == var.aval), None)
                if own is None:
                    now += size
                else:  # a loop takes over the buffer of a carry that nothing else reads
                    given.remove(own)
                    held[own] = 0
        most = max(most, now + scratch(eqn))
        now -= sum(held.pop(var) for var in dying.pop(t, ()))
    return most
