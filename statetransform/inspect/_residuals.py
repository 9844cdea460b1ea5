"""`residuals` and `print_saved_residuals`: what reverse mode keeps."""

from __future__ import annotations

import dataclasses
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import jax

from .._jaxpr.flops import equation_flops
from .._jaxpr.rewrite import is_budgeted
from .._jaxpr.sizes import format_bytes, format_count
from .._jaxpr.walk import inner_jaxprs, walk
from .._planner.view import View, view_of
from .._report.table import Records, Table, folded
from .._trace.tracebacks import boundary
from ._gradient import GradientStep, Halves
from ._origins import Residual, list_residuals

KINDS = ("argument", "state", "constant", "computed", "named")
_LISTED = 6  # operations that are recomputed
_FIELDS = (*[f.name for f in dataclasses.fields(Residual) if f.name != "listed"], "source", "per_iteration")


class Residuals(Records[Residual]):
    """What reverse mode keeps: a sequence of records that prints as a table.

    Attributes:
      name: of the function.
      notes: which gradients are zero, and what a budget recomputes at which cost.

    References:
      https://docs.jax.dev/en/latest/gradient-checkpointing.html

    Example:
      >>> from statetransform import inspect
      >>> import jax.numpy as jnp
      >>> found = inspect.residuals(lambda x: jnp.sin(x) * x, jnp.ones(4))
      >>> len(found), found.bytes, found.totals
      (3, 48, {'argument': 16, 'computed': 32})
    """

    def __init__(self, records: Sequence[Residual], name: str, notes: Sequence[str] = ()) -> None:
        super().__init__(records)
        self.name: str = name
        self.notes: tuple[str, ...] = tuple(notes)

    @property
    def bytes(self) -> int:
        """The bytes of all residuals; arguments and states that are kept count as well."""
        return sum(record.bytes for record in self._records)

    @property
    def totals(self) -> dict[str, int]:
        """Bytes by kind, for the kinds that occur."""
        present = [kind for kind in KINDS if any(record.kind == kind for record in self)]
        return {kind: sum(record.bytes for record in self if record.kind == kind) for kind in present}

    def by(self, key: str) -> dict[Any, int]:
        """Bytes by the value of a field of `Residual`, such as "source", "primitive" or "state", the largest first."""
        found: Counter[Any] = Counter()
        for record in self:
            found[getattr(record, key)] += record.bytes
        return dict(found.most_common())

    def to_dicts(self) -> list[dict[str, Any]]:
        """One dict per residual, with the fields of `Residual`."""
        return [{name: getattr(record, name) for name in _FIELDS} for record in self]

    def table(self) -> Table:
        """The records, with totals in the title and the notes below."""
        totals = ", ".join(f"{kind} {format_bytes(size)}" for kind, size in self.totals.items())
        title = (
            f"residuals of {self.name}: {len(self)} array{'' if len(self) == 1 else 's'}, {format_bytes(self.bytes)}"
        )
        title += f" ({totals})" if totals else ""
        has_loops = any(record.iterations > 1 for record in self)
        columns = ["kind", "name", "type", ">bytes", *([">per iteration"] if has_loops else []), "computed by", "at"]
        return folded(Table(title, columns, [_row(record, has_loops) for record in self], self.notes))


def _row(record: Residual, has_loops: bool) -> list[str]:
    loop = [f"{record.iterations} x {format_bytes(record.per_iteration)}" if record.iterations > 1 else ""]
    return [
        record.kind,
        record.name or "",
        f"{record.dtype}[{','.join(map(str, record.shape))}]",
        format_bytes(record.bytes),
        *(loop if has_loops else []),
        record.primitive or "",
        record.source or "",
    ]


def _notes(view: View) -> list[str]:
    """What the records do not show."""
    notes = [*view.notes, *[f"The gradient for {name} is zero: it is not read." for name in view.unused]]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the trace of the residuals has said it
        primal = jax.make_jaxpr(lambda *xs: view.fun(*xs)[0])(*view.inputs)
        if any(is_budgeted(site.eqn) for site in walk(primal)):
            notes.append(_recomputed(GradientStep.of(view, is_compiled=False)))
    return notes


def _recomputed(step: GradientStep) -> str:
    """What the plans for budgets compute again, and at which cost."""
    plain = step.without_checkpoints()
    again = (_work(step.jaxpr) - _work(plain.jaxpr)).most_common()
    cost = step.flops / (plain.flops or 1)
    if cost < 1.005 or not again:
        return "Nothing is recomputed to meet the budget."
    listed = ", ".join(f"{what} ({format_count(flops)})" for what, flops in again[:_LISTED])
    rest = f", and {len(again) - _LISTED} more" if len(again) > _LISTED else ""
    return f"To meet the budget, the gradient step takes {cost:.2f} times the FLOPs. Recomputed: {listed}{rest}."


def _work(jaxpr: Any) -> Counter[str]:
    """FLOPs by primitive and line."""
    found: Counter[str] = Counter()
    for site in walk(jaxpr):
        if not inner_jaxprs(site.eqn) and site.source:
            found[f"{site.primitive} of {site.source.short}"] += site.repeats * equation_flops(site.eqn)
    return found


@boundary
def residuals(
    f: Callable[..., Any], /, *args: Any, argnums: Any = None, states: Any = None, **kwargs: Any
) -> Residuals:
    """What reverse mode keeps for the backward pass of a function, as data.

    Like :func:`jax.ad_checkpoint.print_saved_residuals`, but with states, bytes, and the names and lines of values
    inside loops and compiled functions. The output is differentiated with respect to all arguments and all states that
    the function reads, or to those that `argnums` and `states` name. If no output has a floating-point type, the
    states that the function writes are differentiated instead. Nothing is computed, and no state is written.

    Args:
      f: a function or bound method, transformed (`transform.jit`, `transform.checkpoint`, ...) or not.
      `*args`, `**kwargs`: its arguments, or `jax.ShapeDtypeStruct` instead of arrays. Auxiliary output that JAX
        cannot trace is left out.
      argnums, states: what to differentiate with respect to, as in `transform.grad`: positions of arguments, and a
        `State` or pytree of them. Without both, all that can be differentiated.

    Returns:
      The records, in JAX's order (constants, arguments, states, then what was computed). Sizes are in bytes; a value
      in a loop has the number of iterations as the first dimension of its shape.

    Raises:
      TypeError: `f` is not callable, JAX cannot differentiate it at these arguments, or what `argnums` and `states`
        name has no gradient.
      ValueError: `argnums` names no argument, or `states` has a state twice.

    References:
      https://docs.jax.dev/en/latest/gradient-checkpointing.html

    Example:
      >>> from statetransform import State, inspect
      >>> import jax.numpy as jnp
      >>> w = State(jnp.ones((4, 4)), name="w")
      >>> def layer(x):
      ...     return jnp.sin(w.value @ x)
      >>> print(inspect.residuals(layer, jnp.ones(4)))
      residuals of layer: 3 arrays, 96 B (argument 16 B, state 64 B, computed 16 B)
      kind      name  type          bytes  computed by  at
      --------  ----  ------------  -----  -----------  ------...
      argument  x     float32[4]     16 B
      state     w     float32[4,4]   64 B               <docte...
      computed        float32[4]     16 B  cos          <docte...
      >>> inspect.residuals(layer, jnp.ones(4), states=w).totals  # this gradient does not need `w`
      {'argument': 16, 'computed': 16}
    """
    view = view_of(f, args, kwargs, argnums, states)
    return Residuals(list_residuals(Halves(view)), view.name, _notes(view))


@boundary
def print_saved_residuals(
    f: Callable[..., Any], /, *args: Any, argnums: Any = None, states: Any = None, **kwargs: Any
) -> None:
    """Prints what reverse mode keeps, a line for each array: :func:`jax.ad_checkpoint.print_saved_residuals`, with
    states by name.

    Where JAX stops at the loop or the compiled function that a value comes out of, the line and the name are those of
    the equation inside.

    Args:
      f, `*args`, `argnums`, `states`, `**kwargs`: as for `residuals`.

    Raises:
      TypeError: `f` is not callable, or JAX cannot differentiate it at these arguments.

    References:
      https://docs.jax.dev/en/latest/gradient-checkpointing.html

    Example:
      >>> from statetransform import State, inspect
      >>> import jax.numpy as jnp
      >>> w = State(jnp.ones((4, 4)), name="w")
      >>> inspect.print_saved_residuals(lambda x: jnp.sin(w.value @ x), jnp.ones(4))
      f32[4] from the argument x
      f32[4,4] from the state 'w'
      f32[4] output of cos from <doctest ...
    """
    for record in list_residuals(Halves(view_of(f, args, kwargs, argnums, states))):
        print(record.listed)
