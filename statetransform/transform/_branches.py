"""Branches: states written by any branch are outputs of all."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax

from .._base.errors import StateStructureError, describe, show_site
from .._jax import has_tracer, is_jit_disabled, type_text, typeof
from .._states.formatting import show_types, type_on_mesh
from .._states.frame import leave, look_at_all
from .._states.state import State
from .._traces.arguments import hide, reveal
from .._traces.lift import at_once
from .._traces.trace import Call
from .._traces.tracebacks import boundary
from ._bodies import TracedFunction, cure_on_mesh, traced_once
from ._eager_loops import in_one_program

_NO_OPERAND: Any = object()


@boundary
def cond(
    pred: Any,
    true_fun: Callable[..., Any],
    false_fun: Callable[..., Any],
    *operands: Any,
    operand: Any = _NO_OPERAND,
) -> Any:
    """Applies one of two functions: :func:`jax.lax.cond` with states. What any branch writes is an output of both.

    Args:
      pred: a boolean scalar.
      true_fun (Callable): called with the operands if `pred` holds.
      false_fun (Callable): called with the operands otherwise; returns the same structure, shapes and dtypes.
      *operands: arguments for the branches.
      operand: a single argument by keyword, in place of `operands`; kept as in JAX.

    Returns:
      The output of the branch. A state that the branch does not write keeps its value.

    Raises:
      StateStructureError: the branches leave a state with different types; the message shows them.
      StateTraceError: a branch makes a state that outlives it; make it before.

    References:
      https://docs.jax.dev/en/latest/_autosummary/jax.lax.cond.html

    Example:
      >>> from statetransform import State, transform
      >>> n = State(0, name="n")
      >>> def count(x):
      ...     n.value = n.value + 1
      ...     return x
      >>> float(transform.cond(True, count, lambda x: -x, 2.0)), int(n.value)
      (2.0, 1)
    """
    operands = operands if operand is _NO_OPERAND else (operand,)
    if is_jit_disabled() and not has_tracer(pred):
        return at_once(true_fun if pred else false_fun, *operands)
    select = lambda pred, branches, operands: jax.lax.cond(pred, *branches, *operands)
    return _branch("cond", pred, {"true_fun": true_fun, "false_fun": false_fun}, operands, select)


@boundary
def switch(index: Any, branches: Sequence[Callable[..., Any]], *operands: Any, operand: Any = _NO_OPERAND) -> Any:
    """Applies one of several functions: :func:`jax.lax.switch` with states. What any branch writes is an output of all.

    Args:
      index: an integer scalar; values out of range are clamped.
      branches (Sequence[Callable]): the branches, which return the same structure, shapes and dtypes.
      *operands: arguments for the branches.
      operand: a single argument by keyword, in place of `operands`; kept as in JAX.

    Returns:
      The output of the branch. A state that the branch does not write keeps its value.

    Raises:
      StateStructureError: the branches leave a state with different types; the message shows them.
      StateTraceError: a branch makes a state that outlives it; make it before.

    References:
      https://docs.jax.dev/en/latest/_autosummary/jax.lax.switch.html

    Example:
      >>> from statetransform import State, transform
      >>> w = State(3.0, name="w")
      >>> float(transform.switch(1, [lambda x: x, lambda x: x * w.value], 2.0))
      6.0
    """
    operands = operands if operand is _NO_OPERAND else (operand,)
    if is_jit_disabled() and not has_tracer(index):
        return at_once(branches[min(max(int(index), 0), len(branches) - 1)], *operands)
    select = lambda index, branches, operands: jax.lax.switch(index, branches, *operands)
    if not branches:
        return select(index, branches, operands)  # says what is wrong
    return _branch("switch", index, {f"branch {i}": f for i, f in enumerate(branches)}, operands, select)


_Named = dict[str, Callable[..., Any]]  # the branches by what messages call them


def _branch(where: str, index: Any, named: _Named, operands: tuple[Any, ...], select: Callable[..., Any]) -> Any:
    for name, fun in named.items():
        if not callable(fun):
            raise TypeError(f"{where}: {name} must be a function, not {fun!r} of type {type(fun).__name__}")

    operands, objects = hide(operands)
    found = [traced_once(where, fun, operands, objects, {}) for fun in named.values()]
    written = list(dict.fromkeys(state for call in found for state in call.written))
    used = list(dict.fromkeys([*written, *[state for call in found for state in call.reads]]))
    place = {state: i for i, state in enumerate(used)}
    values = look_at_all(used)
    for state in written:
        _check_types(where, state, values[place[state]], dict(zip(named, found, strict=True)))
    functions = [TracedFunction.of(call, used) for call in found]
    calls = [fun.call for fun in functions]
    targets = tuple(tuple(place[state] for state in call.written) for call in found)
    n_written = len(written)

    def run(held: list[Any], index: Any, values: list[Any], operands: Any) -> Any:
        def branch(i: int, *operands: Any) -> tuple[Any, list[Any]]:
            out, changed = calls[i](held[i], values, *operands)
            changed = dict(zip(targets[i], changed, strict=True))
            return out, [changed.get(k, values[k]) for k in range(n_written)]

        return select(index, [partial(branch, i) for i in range(len(calls))], operands)

    try:
        out, results = in_one_program(where, functions, targets, run, index, values, operands)
    except TypeError as error:
        text = _differences(where, named, found)
        if text is None:
            raise
        raise TypeError(text) from error
    for objects in zip(*(call.objects for call in found), strict=True):
        if any(obj is not objects[0] for obj in objects):
            raise StateStructureError.objects(where, "the branches return different objects", named, objects)
    sites = {state: site for call in found for state, site in call.sites.items()}
    leave(zip(written, results, strict=True), (), sites)
    return reveal(out, found[0].objects)


def _check_types(where: str, state: State, entry: Any, branches: dict[str, Call]) -> None:
    """All branches must leave a state with the same type; a branch that does not write it leaves it alone."""
    before = jax.tree.map(typeof, entry)
    values = [branch.written_avals.get(state, before) for branch in branches.values()]
    if all(value == values[0] for value in values):
        return
    if len({type_on_mesh(value) for value in values}) == 1:
        return
    text = f"{where}: the branches leave {describe(state)} with different types.\n"
    for (name, branch), value in zip(branches.items(), values, strict=True):
        site = branch.sites.get(state)
        where_written = f"written at {show_site(site)}" if site else "not written"
        text += f"  {name}: {show_types(value)}   ({where_written})\n"
    raise StateStructureError(text + _cure("Write values of one", "in every branch", values))


def _cure(verb: str, where: str, values: Sequence[Any]) -> str:
    """What to write where the branches give different types."""
    first, *others = (tuple(map(typeof, jax.tree.leaves(value))) for value in values)
    pairs = [
        pair for other in others for pair in zip(first, other, strict=False) if type_text(pair[0]) != type_text(pair[1])
    ]
    if pairs and (cure := cure_on_mesh("y", *pairs[0])):
        return cure
    return f"{verb} structure, shape and dtype {where}, `x.astype(...)` for example."


def _differences(where: str, named: _Named, found: list[Call]) -> str | None:
    """What a message has to say of branches whose outputs differ; JAX's own would speak of the functions made here."""
    if len({type_on_mesh(branch.out_avals[0]) for branch in found}) == 1:
        return None
    rows = []
    for (name, fun), branch in zip(named.items(), found, strict=True):
        code = getattr(inspect.unwrap(fun), "__code__", None)
        site = f"   ({fun.__name__} at {show_site((code.co_filename, code.co_firstlineno))})" if code else ""
        rows.append(f"  {name}: {show_types(branch.out_avals[0])}{site}")
    return (
        f"{where}: the branches must return values of the same types, but they return\n"
        + "\n".join(rows)
        + "\n"
        + _cure("Return the same", "from every branch", [branch.out_avals[0] for branch in found])
    )
