"""`residuals` and `print_saved_residuals`: what reverse mode keeps."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from .._base.table import Records, Report, Table, folded
from .._memory.programs.sizes import format_bytes
from .._traces.tracebacks import boundary
from ._advice import advise
from ._gradient import Halves
from ._origins import Residual, list_residuals
from ._view import view_of

KINDS = ("argument", "state", "constant", "computed", "named")
_FIELDS = (*[f.name for f in dataclasses.fields(Residual) if f.name != "listed"], "source", "per_iteration")


class Residuals(Records[Residual]):
    """What reverse mode keeps: a sequence of records that prints as a table.

    Attributes:
      name: of the function.
      notes: what is differentiated, what a budget recomputes, and a checkpoint that does not help.

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
        return sum(record.bytes for record in self)

    @property
    def totals(self) -> dict[str, int]:
        """Bytes by kind, for the kinds that occur."""
        present = [kind for kind in KINDS if any(record.kind == kind for record in self)]
        return {kind: sum(record.bytes for record in self if record.kind == kind) for kind in present}

    def by(self, key: str) -> Groups:
        """Groups of records with the same value of a field, the largest first.

        Args:
          key: "source", "primitive", "state", "kind", or any other field of `Residual`.

        Returns:
          A mapping from the field's value to the records; prints as a table.

        Raises:
          ValueError: there is no such field.
        """
        if key not in _FIELDS:
            raise ValueError(f"residuals do not group by {key!r}; the fields are {', '.join(_FIELDS)}")
        groups: dict[Any, list[Residual]] = {}
        for record in self:
            groups.setdefault(getattr(record, key), []).append(record)
        return Groups(key, {value: Residuals(records, self.name) for value, records in groups.items()}, self.name)

    def to_dicts(self) -> list[dict[str, Any]]:
        """One dict per residual, with the fields of `Residual`."""
        return [{name: getattr(record, name) for name in _FIELDS} for record in self]

    def table(self) -> Table:
        """The records, the largest first, with totals in the title and the notes below."""
        totals = ", ".join(f"{kind} {format_bytes(size)}" for kind, size in self.totals.items())
        title = (
            f"residuals of {self.name}: {len(self)} array{'' if len(self) == 1 else 's'}, {format_bytes(self.bytes)}"
        )
        title += f" ({totals})" if totals else ""
        has_loops = any(record.iterations > 1 for record in self)
        columns = ["kind", "name", "type", ">bytes", *([">per iteration"] if has_loops else []), "computed by", "at"]
        largest_first = sorted(self, key=lambda record: -record.bytes)
        return folded(Table(title, columns, [_row(record, has_loops) for record in largest_first], self.notes))


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


class Groups(Report, dict[Any, Residuals]):
    """Residuals by the value of one field, the largest group first."""

    def __init__(self, key: str, groups: dict[Any, Residuals], name: str) -> None:
        super().__init__(sorted(groups.items(), key=lambda item: -item[1].bytes))
        self._key, self._name = key, name

    def to_dicts(self) -> list[dict[str, Any]]:
        """One dict per group: the field's value, the number of arrays and their bytes."""
        return [{self._key: value, "arrays": len(group), "bytes": group.bytes} for value, group in self.items()]

    def table(self) -> Table:
        """A row per group."""
        whole = sum(group.bytes for group in self.values()) or 1
        rows = [
            ["-" if value is None else str(value), str(len(group)), format_bytes(size), f"{100 * size / whole:.0f} %"]
            for value, group in self.items()
            for size in [group.bytes]
        ]
        return Table(f"residuals of {self._name} by {self._key}", [self._key, ">arrays", ">bytes", ">share"], rows)


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
      state     w     float32[4,4]   64 B               <docte...
      argument  x     float32[4]     16 B
      computed        float32[4]     16 B  cos          <docte...
      >>> inspect.residuals(layer, jnp.ones(4), states=w).totals  # this gradient does not need `w`
      {'argument': 16, 'computed': 16}
    """
    view = view_of(f, args, kwargs, argnums, states)
    return Residuals(list_residuals(Halves(view)), view.name, advise(view))


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
